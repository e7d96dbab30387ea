"""Models whose graphs, names, types or functions are broken, by name: builder, class of the error, what it says."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from narrowcast.errors import ImportModelError, UnsupportedOperatorError

from .building import call, floats, function, graph_of, ints, model, node, raw_tensor, with_functions
from .cases import Cases


def _without_opset() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    del result.opset_import[:]
    return result


def _two_opsets() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.opset_import.append(helper.make_opsetid("", 11))
    return result


def _other_opset(version: int) -> onnx.ModelProto:
    result = model(node("Gelu", "x", domain="com.microsoft"))
    result.opset_import.append(helper.make_opsetid("com.microsoft", version))
    return result


def _duplicate_input() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.input.append(result.graph.input[0])
    return result


def _sequence_input() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    return result


def _without_type() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.input[0].ClearField("type")
    return result


def _with_input_type(kind: int) -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.input[0].type.tensor_type.elem_type = kind
    return result


def _duplicate_initializer() -> onnx.ModelProto:
    result = model(node("Add", "x,w"), w=floats(3))
    result.graph.initializer.append(result.graph.initializer[0])
    return result


def _sparse_initializer() -> onnx.ModelProto:
    result = model(node("Add", "x,w"))
    values, indices = numpy_helper.from_array(floats(1), "w"), numpy_helper.from_array(ints(2 ** 40), "i")
    result.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2 ** 50]))
    return result


def _output_without_name() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.output[0].name = ""
    return result


def _named(name: str) -> onnx.ModelProto:
    return model(helper.make_node("Relu", ["x"], ["y"], name=name))


def _not_text() -> onnx.ModelProto:
    result = model(helper.make_node("Relu", ["x"], ["y"], name="not_utf8"))
    damaged = result.SerializeToString().replace(b"not_utf8", b"not_\xff\xfe\xfd\xfc")
    result.ParseFromString(damaged)
    return result


def _with_attribute(**fields: object) -> onnx.ModelProto:
    """A Softmax with an attribute ``axis`` as it is given."""
    result = model(node("Softmax", "x"))
    result.graph.node[0].attribute.append(AttributeProto(name="axis", **fields))  # type: ignore[arg-type]
    return result


def _attribute_twice() -> onnx.ModelProto:
    result = model(node("Softmax", "x", axis=0))
    result.graph.node[0].attribute.append(result.graph.node[0].attribute[0])
    return result


def _multiplying_functions() -> onnx.ModelProto:
    """Each function calls the next one ten times: 10^20 nodes from twenty definitions."""
    functions = [function(f"f{i}", [*(call(f"f{i + 1}", "a", f"t{k}") for k in range(9)), call(f"f{i + 1}", "a", "b")])
                 for i in range(19)]
    return with_functions([call("f0", "x", "y")], [*functions, function("f19", [_RELU])])


def _nested_functions(depth: int) -> onnx.ModelProto:
    functions = [function(f"f{i}", [call(f"f{i + 1}", "a", "b")]) for i in range(depth)]
    last = function(f"f{depth}", [helper.make_node("Relu", ["a"], ["b"])])
    return with_functions([call("f0", "x", "y")], [*functions, last])


def _nested_branches(depth: int) -> onnx.ModelProto:
    other = graph = helper.make_graph([node("Relu", "x")], "inner", [], [onnx.ValueInfoProto(name="y")])
    for _ in range(depth):
        choice = node("If", "c", "y", then_branch=graph, else_branch=other)
        graph = helper.make_graph([choice], "inner", [], [onnx.ValueInfoProto(name="y")])
    result = model(c=np.asarray(True))
    result.graph.node.extend(graph.node)
    return result


def _many_nodes() -> onnx.ModelProto:
    return model(*(helper.make_node("Neg", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(100_000)),
                 node("Neg", "v100000"))


def _branch(then: onnx.GraphProto | None, other: onnx.GraphProto | None, condition: np.ndarray) -> onnx.ModelProto:
    graphs = {name: g for name, g in (("then_branch", then), ("else_branch", other)) if g is not None}
    return model(node("If", "c", "y", **graphs), c=condition)


def _inner(*nodes: onnx.NodeProto, output: str = "z") -> onnx.GraphProto:
    return helper.make_graph(nodes, "inner", [], [onnx.ValueInfoProto(name=output)])


_RELU = helper.make_node("Relu", ["a"], ["b"])

STRUCTURES: Cases = {
    "attribute that is a graph in an old model": (
        lambda: model(node("Split", "x", "y,z", axis=0, split=onnx.GraphProto()), opset=6), UnsupportedOperatorError,
        "the_Split"),
    "attribute of another type in an old model": (lambda: model(node("Split", "x", "y,z", axis=[0]), opset=6),
                                                  ImportModelError, "the_Split"),
    "empty": (onnx.ModelProto, ImportModelError, "no graph"),
    "no outputs": (lambda: helper.make_model(graph_of([node("Relu", "x")], [2], [])), ImportModelError, "no outputs"),
    "output without a name": (_output_without_name, ImportModelError, "not produced"),
    "missing input name": (lambda: model(node("Add", "x,nowhere")), ImportModelError, "the_Add.*nothing produces"),
    "missing output": (lambda: model(node("Relu", "x", "z")), ImportModelError, "not produced"),
    "cycle": (lambda: model(node("Add", "x,b", "a"), node("Relu", "a", "b"), node("Relu", "b")), ImportModelError,
              "cycle"),
    "node that reads itself": (lambda: model(node("Add", "x,y")), ImportModelError, "cycle"),
    "produced twice": (lambda: model(node("Relu", "x"), node("Neg", "x")), ImportModelError, "the_Neg.*produced twice"),
    "two outputs of one name": (lambda: model(node("Split", "x", "y,y", axis=0, num_outputs=2)), ImportModelError,
                                "produced twice"),
    "input overwritten": (lambda: model(node("Relu", "x", "x"), node("Neg", "x")), ImportModelError, "produced twice"),
    "input twice": (_duplicate_input, ImportModelError, "given twice"),
    "input without type": (_without_type, UnsupportedOperatorError, "x: .*not a tensor"),
    "input of no element type": (lambda: _with_input_type(0), ImportModelError, "x: .*element type"),
    "input of an unknown element type": (lambda: _with_input_type(99), ImportModelError, "x: .*element type"),
    "input of strings": (lambda: _with_input_type(TensorProto.STRING), UnsupportedOperatorError, "x: .*type"),
    "input of complex numbers": (lambda: _with_input_type(TensorProto.COMPLEX64), UnsupportedOperatorError,
                                 "x: .*complex64"),
    "sequence input": (_sequence_input, UnsupportedOperatorError, "x: .*not a tensor"),
    "initializer twice": (_duplicate_initializer, ImportModelError, "given twice"),
    "sparse initializer": (_sparse_initializer, ImportModelError, "sparse"),
    "no opset": (_without_opset, ImportModelError, "no version"),
    "two opsets": (_two_opsets, ImportModelError, "two versions"),
    "opset of the future": (lambda: model(node("Relu", "x"), opset=999), ImportModelError, "version is unknown"),
    "opset of 0": (lambda: model(node("Relu", "x"), opset=0), ImportModelError, "version is unknown"),
    "negative opset": (lambda: model(node("Relu", "x"), opset=-2 ** 62), ImportModelError, "version is unknown"),
    "another domain's opset of a trillion": (lambda: _other_opset(2 ** 40), ImportModelError, "version is unknown"),
    "another domain's negative opset": (lambda: _other_opset(-1), ImportModelError, "version is unknown"),
    "unknown domain": (lambda: model(node("Relu", "x", domain="nobody.knows")), ImportModelError, "nobody.knows"),
    "no operator": (lambda: model(node("", "x")), ImportModelError, "no operator"),
    "unknown operator": (lambda: model(node("Frobnicate", "x")), UnsupportedOperatorError, "Frobnicate"),
    "unknown attribute": (lambda: model(node("Relu", "x", beta=1)), ImportModelError, "the_Relu: .*definition"),
    "attribute of a wrong type": (lambda: model(node("Softmax", "x", axis=0.5)), ImportModelError, "the_Softmax"),
    "attribute without a type": (lambda: _with_attribute(i=1), UnsupportedOperatorError, "the_Softmax.*axis"),
    "attribute of two types": (lambda: _with_attribute(type=AttributeProto.FLOAT, i=1), ImportModelError, "Softmax"),
    "attribute of a function outside of one": (
        lambda: _with_attribute(type=AttributeProto.INT, ref_attr_name="axis"), ImportModelError,
        "the_Softmax.*(definition|argument)"),
    "attribute twice": (_attribute_twice, ImportModelError, "the_Softmax.*(twice|definition)"),
    "attribute that is a graph": (lambda: model(node("Relu", "x", alpha=_inner(_RELU))), ImportModelError, "Relu"),
    "too few inputs": (lambda: model(node("Add", "x")), ImportModelError, "the_Add"),
    "too many inputs": (lambda: model(node("Relu", "x,x,x")), ImportModelError, "the_Relu"),
    "too many outputs": (lambda: model(node("Relu", "x", "y,z")), ImportModelError, "the_Relu"),
    "no inputs": (lambda: model(helper.make_node("Relu", [], ["y"], name="the_Relu")), ImportModelError, "the_Relu"),
    "left out input": (lambda: model(node("Conv", "x,"), shape=(1, 3, 8, 8)), ImportModelError, "the_Conv"),
    "left out first input": (lambda: model(node("Add", ",x")), ImportModelError, "the_Add"),
    "name with a null": (lambda: _named("a\0b"), ImportModelError, "name is unusable"),
    "name that moves the cursor": (lambda: _named("\x1b[2J"), ImportModelError, "name is unusable.*x1b"),
    "name of two lines": (lambda: _named("a\nok"), ImportModelError, "name is unusable"),
    "name of 65 thousand characters": (lambda: _named("n" * 65_536), ImportModelError, "name is unusable"),
    "name that is not UTF-8": (_not_text, ImportModelError, "name is unusable"),
    "symbol that cannot be shown": (lambda: model(node("Relu", "x"), shape=("a\x07", 3)), ImportModelError,
                                    "name is unusable"),
    "raw data too short": (lambda: raw_tensor([2, 3], b"\0" * 20), ImportModelError, "tensor w .*wrong length"),
    "raw data too long": (lambda: raw_tensor([2, 3], b"\0" * 28), ImportModelError, "tensor w .*wrong length"),
    "raw data of half a byte": (lambda: raw_tensor([3], b"\0", TensorProto.INT4), ImportModelError, "wrong length"),
    "raw data for a huge tensor": (lambda: raw_tensor([2 ** 40, 2 ** 20], b""), ImportModelError, "tensor w .*shape"),
    "dimensions whose product overflows": (lambda: raw_tensor([2 ** 32, 2 ** 32], b""), ImportModelError,
                                           "impossible shape"),
    "nothing of a huge tensor": (lambda: raw_tensor([0, 2 ** 62], b""), ImportModelError, "impossible shape"),
    "a thousand dimensions": (lambda: raw_tensor([1] * 1000, b"\0" * 4), ImportModelError, "impossible shape"),
    "numbers that do not fit the dimensions": (lambda: raw_tensor([2, 3], None, float_data=[1.0] * 5), ImportModelError,
                                               "tensor w"),
    "numbers in the wrong field": (lambda: raw_tensor([3], None, int32_data=[1, 2, 3]), ImportModelError, "tensor w"),
    "negative dimension": (lambda: raw_tensor([-1, 3], b"\0" * 12), ImportModelError, "negative dimension"),
    "unknown element type": (lambda: raw_tensor([3], b"\0" * 12, 99), ImportModelError, "unknown element type"),
    "no element type": (lambda: raw_tensor([3], b"\0" * 12, 0), ImportModelError, "unknown element type"),
    "strings": (lambda: raw_tensor([1], b"", TensorProto.STRING), UnsupportedOperatorError, "tensor w .*strings"),
    "complex numbers": (lambda: raw_tensor([1], b"\0" * 8, TensorProto.COMPLEX64), ImportModelError,
                        "the_Add.*complex64"),
    "tensor in segments": (lambda: raw_tensor([3], b"\0" * 12, segment=TensorProto.Segment(begin=0, end=2 ** 60)),
                           UnsupportedOperatorError, "segments"),
    "constant without a value": (lambda: model(helper.make_node("Constant", [], ["y"], name="the_Constant")),
                                 UnsupportedOperatorError, "the_Constant"),
    "constant of strings": (lambda: model(helper.make_node("Constant", [], ["y"], name="the_Constant",
                                                           value_strings=["a"])), UnsupportedOperatorError,
                            "the_Constant"),
    "function that calls itself": (
        lambda: with_functions([call("f", "x", "y")], [function("f", [call("f", "a", "b")])]), ImportModelError,
        "nested too deeply"),
    "functions that call each other": (
        lambda: with_functions([call("f", "x", "y")], [function("f", [call("g", "a", "b")]),
                                                       function("g", [call("f", "a", "b")])]),
        ImportModelError, "nested too deeply"),
    "functions that multiply": (_multiplying_functions, ImportModelError, "too many nodes"),
    "functions forty deep": (lambda: _nested_functions(40), ImportModelError, "nested too deeply"),
    "functions of one name": (lambda: with_functions([call("f", "x", "y")], [function("f", [_RELU])] * 2),
                              UnsupportedOperatorError, "defined twice"),
    "function without its result": (
        lambda: with_functions([call("f", "x", "y")], [function("f", [helper.make_node("Relu", ["a"], ["c"])])]),
        ImportModelError, "f: .*not produced"),
    "function that produces twice": (
        lambda: with_functions([call("f", "x", "y")], [function("f", [_RELU, helper.make_node("Neg", ["a"], ["b"])])]),
        ImportModelError, "produced twice"),
    "function that reads its caller's values": (
        lambda: with_functions([call("f", "x", "y")], [function("f", [helper.make_node("Add", ["a", "x"], ["b"])])]),
        ImportModelError, "nothing produces"),
    "function with too many arguments": (
        lambda: with_functions([helper.make_node("f", ["x", "x"], ["y"], domain="own", name="the_f")],
                               [function("f", [_RELU])]), ImportModelError, "the_f.*fewer arguments"),
    "function with too many results": (
        lambda: with_functions([helper.make_node("f", ["x"], ["y", "z"], domain="own", name="the_f")],
                               [function("f", [_RELU])]), ImportModelError, "the_f"),
    "branches thirty-three deep": (lambda: _nested_branches(33), ImportModelError, "nested too deeply"),
    "too many nodes": (_many_nodes, ImportModelError, "too many nodes"),
    "condition of two values": (lambda: _branch(_inner(node("Relu", "x", "z")), _inner(node("Neg", "x", "z")),
                                                np.asarray([True, False])), ImportModelError, "the_If.*condition"),
    "branch that is missing": (lambda: _branch(None, _inner(node("Relu", "x", "z")), np.asarray(True)),
                               ImportModelError, "the_If"),
    "branch without its output": (lambda: _branch(_inner(node("Relu", "x", "q")), _inner(node("Relu", "x", "z")),
                                                  np.asarray(True)), ImportModelError, "not produced"),
    "branch that reads what is nowhere": (
        lambda: _branch(_inner(node("Relu", "nowhere", "z")), _inner(node("Relu", "x", "z")), np.asarray(True)),
        ImportModelError, "the_Relu.*nothing produces"),
    "branch that hides an outer name": (
        lambda: _branch(_inner(node("Relu", "x", "c"), output="c"), _inner(node("Relu", "x", "z")), np.asarray(True)),
        ImportModelError, "produced twice"),
    "loop without a body": (lambda: model(node("Loop", "m,", "y"), m=ints(3)), ImportModelError, "the_Loop|Loop"),
}
