"""Broken and hostile ONNX inputs: each gives one clear error of our family, none a crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowcast.errors import CompileError, ImportModelError, UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx


def graph_of(nodes: list[onnx.NodeProto], shape: list[int], outputs: list[str],
             initializers: dict[str, np.ndarray]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                             [onnx.ValueInfoProto(name=n) for n in outputs],
                             [numpy_helper.from_array(a, n) for n, a in initializers.items()])


def model(*nodes: onnx.NodeProto, shape: tuple[int, ...] = (2, 3), opset: int = 20,
          **initializers: np.ndarray) -> onnx.ModelProto:
    graph = graph_of(list(nodes), list(shape), ["y"], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op: str, inputs: str, outputs: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(","), outputs.split(","), name=f"the_{op}", **attributes)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def raw_tensor(dims: list[int], raw: bytes, data_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    result = model(node("Add", "x,w"))
    result.graph.initializer.append(TensorProto(name="w", dims=dims, data_type=data_type, raw_data=raw))
    return result


def nested_functions() -> onnx.ModelProto:
    """Each function calls the next one ten times: 10^20 nodes from twenty definitions."""
    imports = [helper.make_opsetid("own", 1), helper.make_opsetid("", 20)]
    functions = []
    for i in range(20):
        body = [helper.make_node(f"f{i + 1}", ["a"], [f"t{k}"], domain="own") for k in range(9)]
        body.append(helper.make_node(f"f{i + 1}", ["a"], ["b"], domain="own"))
        if i == 19:
            body = [helper.make_node("Relu", ["a"], ["b"])]
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], body, imports))
    call = helper.make_node("f0", ["x"], ["y"], domain="own")
    return helper.make_model(graph_of([call], [2], ["y"], {}), opset_imports=imports, functions=functions)


def recursive_function() -> onnx.ModelProto:
    imports = [helper.make_opsetid("own", 1), helper.make_opsetid("", 20)]
    body = [helper.make_node("f", ["a"], ["b"], domain="own")]
    function = helper.make_function("own", "f", ["a"], ["b"], body, imports)
    call = helper.make_node("f", ["x"], ["y"], domain="own")
    return helper.make_model(graph_of([call], [2], ["y"], {}), opset_imports=imports, functions=[function])


def without_opset() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    del result.opset_import[:]
    return result


def duplicate_input() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.input.append(result.graph.input[0])
    return result


def sequence_input() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    return result


def with_unsorted_initializer() -> onnx.ModelProto:
    result = model(node("Add", "x,w"), w=floats(3))
    result.graph.initializer.append(result.graph.initializer[0])
    return result


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], type[CompileError], str]] = {
    "empty": (onnx.ModelProto, ImportModelError, "no graph"),
    "no outputs": (
        lambda: helper.make_model(graph_of([node("Relu", "x")], [2], [], {})),
        ImportModelError, "no outputs"),
    "missing input name": (lambda: model(node("Add", "x,nowhere")), ImportModelError, "nothing produces"),
    "missing output": (lambda: model(node("Relu", "x", "z")), ImportModelError, "not produced"),
    "cycle": (
        lambda: model(node("Add", "x,b", "a"), node("Relu", "a", "b"), node("Relu", "b")),
        ImportModelError, "cycle"),
    "produced twice": (lambda: model(node("Relu", "x"), node("Neg", "x")), ImportModelError, "produced twice"),
    "input overwritten": (lambda: model(node("Relu", "x", "x"), node("Neg", "x")), ImportModelError, "produced twice"),
    "input twice": (duplicate_input, ImportModelError, "given twice"),
    "initializer twice": (with_unsorted_initializer, ImportModelError, "given twice"),
    "no opset": (without_opset, ImportModelError, "no version"),
    "opset of the future": (lambda: model(node("Relu", "x"), opset=999), ImportModelError, "version is unknown"),
    "unknown domain": (lambda: model(node("Relu", "x", domain="nobody.knows")), ImportModelError, "nobody.knows"),
    "no operator": (lambda: model(node("", "x")), ImportModelError, "no operator"),
    "unknown operator": (lambda: model(node("Frobnicate", "x")), UnsupportedOperatorError, "Frobnicate"),
    "unknown attribute": (
        lambda: model(node("Relu", "x", beta=1)),
        ImportModelError, "breaks the operator's definition"),
    "attribute of a wrong type": (lambda: model(node("Softmax", "x", axis=0.5)), ImportModelError, "Softmax"),
    "too few inputs": (lambda: model(node("Add", "x")), ImportModelError, "Add"),
    "left out input": (lambda: model(node("Conv", "x,"), shape=(1, 3, 8, 8)), ImportModelError, "Conv"),
    "shapes that do not broadcast": (lambda: model(node("Add", "x,w"), w=floats(7)), ImportModelError, "do not fit"),
    "matrices that do not fit": (lambda: model(node("MatMul", "x,w"), w=floats(4, 5)), ImportModelError, "do not fit"),
    "raw data too short": (lambda: raw_tensor([2, 3], b"\0" * 20), ImportModelError, "wrong length"),
    "raw data for a huge tensor": (lambda: raw_tensor([2 ** 40, 2 ** 20], b""), ImportModelError, "impossible shape"),
    "negative dimension": (lambda: raw_tensor([-1, 3], b"\0" * 12), ImportModelError, "negative dimension"),
    "unknown element type": (lambda: raw_tensor([3], b"\0" * 12, 99), ImportModelError, "unknown element type"),
    "strings": (lambda: raw_tensor([1], b"", TensorProto.STRING), UnsupportedOperatorError, "strings"),
    "sequence input": (sequence_input, UnsupportedOperatorError, "not a tensor"),
    "gather out of range": (lambda: model(node("Gather", "x,i"), i=ints(5)), ImportModelError, "out of range"),
    "gather of constants out of range": (lambda: model(node("Gather", "w,i", "c"), node("Add", "x,c"), w=floats(3),
                                                       i=ints(1, -9)), ImportModelError, "the_Gather"),
    "gather elements out of range": (lambda: model(node("GatherElements", "x,i", axis=1), i=ints(3, 0)[None]),
                                     ImportModelError, "out of range"),
    "gather nd out of range": (
        lambda: model(node("GatherND", "x,i"), i=ints(0, 3)[None]),
        ImportModelError, "out of range"),
    "scatter out of range": (lambda: model(node("ScatterND", "x,i,u"), i=ints(2)[None], u=floats(1, 3)),
                             ImportModelError, "out of range"),
    "axis out of range": (lambda: model(node("Softmax", "x", axis=5)), ImportModelError, "axis"),
    "axis twice": (lambda: model(node("ReduceSum", "x,a"), a=ints(0, -2)), ImportModelError, "twice"),
    "permutation with a repeat": (lambda: model(node("Transpose", "x", perm=[0, 0])), ImportModelError, "twice"),
    "reshape to another size": (
        lambda: model(node("Reshape", "x,s"), s=ints(4, 4)),
        ImportModelError, "number of elements"),
    "reshape with two unknowns": (lambda: model(node("Reshape", "x,s"), s=ints(-1, -1)), ImportModelError, "shape"),
    "constant too large": (lambda: model(node("ConstantOfShape", "s"), s=ints(2 ** 40, 2 ** 20)), ImportModelError,
                           "impossible size"),
    "range too long": (lambda: model(node("Range", "a,b,c"), a=np.asarray(0), b=np.asarray(2 ** 50), c=np.asarray(1)),
                       ImportModelError, "impossible size"),
    "range that never ends": (lambda: model(node("Range", "a,b,c"), a=np.asarray(0), b=np.asarray(9), c=np.asarray(0)),
                              ImportModelError, "Range"),
    "constant tiled too often": (lambda: model(node("Tile", "w,r"), w=floats(8), r=ints(2 ** 40)), ImportModelError,
                                 "impossible size"),
    "expand too large": (
        lambda: model(node("Expand", "x,s"), s=ints(2 ** 50, 1, 1)),
        ImportModelError, "impossible shape"),
    "pad too wide": (
        lambda: model(node("Pad", "x,p"), p=ints(0, 2 ** 50, 0, 0)),
        ImportModelError, "widths are larger"),
    "stride of zero": (lambda: model(node("Conv", "x,w", strides=[0, 1]), shape=(1, 3, 8, 8), w=floats(4, 3, 3, 3)),
                       ImportModelError, "strides"),
    "zero groups": (lambda: model(node("Conv", "x,w", group=0), shape=(1, 3, 8, 8), w=floats(4, 3, 3, 3)),
                    ImportModelError, "groups"),
    "wrong channels": (lambda: model(node("Conv", "x,w"), shape=(1, 5, 8, 8), w=floats(4, 3, 3, 3)), ImportModelError,
                       "channels"),
    "kernel larger than the image": (lambda: model(node("Conv", "x,w"), shape=(1, 3, 2, 2), w=floats(4, 3, 5, 5)),
                                     ImportModelError, "kernel is larger"),
    "split that does not add up": (lambda: model(node("Split", "x,s", "y,z", axis=1), s=ints(1, 1)), ImportModelError,
                                   "add up"),
    "k too large": (lambda: model(node("TopK", "x,k", "y,i"), k=ints(99)), ImportModelError, "k is out of range"),
    "division of constants by zero": (
        lambda: model(node("Div", "a,b", "c"), node("Reshape", "x,c"), a=ints(1), b=ints(0)),
                                      ImportModelError, "the_"),
    "statistics that do not fit": (
        lambda: model(node("BatchNormalization", "x,a,a,a,a"), a=floats(7)), ImportModelError,
                                   "do not fit"),
    "weights of a recurrent layer that do not fit": (
        lambda: model(node("LSTM", "x,w,r", hidden_size=4), shape=(5, 1, 3), w=floats(1, 16, 9), r=floats(1, 16, 4)),
        ImportModelError, "does not fit the others"),
    "function that calls itself": (recursive_function, ImportModelError, "nested too deeply"),
    "functions that multiply": (nested_functions, ImportModelError, "too many nodes"),
    "equation with an unknown letter": (lambda: model(node("Einsum", "x", equation="ij->ijk")), ImportModelError,
                                        "equation does not fit"),
    "equation with too many terms": (lambda: model(node("Einsum", "x", equation="ij,jk->ik")), ImportModelError,
                                     "equation does not fit"),
    "resize to an impossible size": (lambda: model(node("Resize", "x,,s"), s=np.asarray([1, 1e8], np.float32)),
                                     ImportModelError, "impossible size"),
    "gather elements beyond another axis": (lambda: model(node("GatherElements", "x,i"), i=np.zeros((2, 9), np.int64)),
                                            ImportModelError, "indices do not fit"),
    "sequence longer than its axis": (
        lambda: model(node("ReverseSequence", "x,s", batch_axis=0, time_axis=1), s=ints(99, 1)),
        ImportModelError, "out of range"),
    "all of the result padded away": (lambda: model(node("ConvTranspose", "x,w", pads=[50] * 4), shape=(1, 3, 8, 8),
                                                    w=floats(3, 4, 3, 3)), ImportModelError, "leaves nothing"),
    "loop": (
        lambda: model(node("Loop", "m,", "y", body=graph_of([], [1], [], {})), m=ints(3)), ImportModelError,
             "the body has not as many inputs"),
}


@pytest.mark.parametrize("name", MODELS)
def test_broken_models(name: str) -> None:
    make, kind, text = MODELS[name]
    with pytest.raises(CompileError, match=text) as caught:
        import_onnx(make())
    assert type(caught.value) is kind
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(("content", "text"), [
    (None, "does not exist"), (b"", "no graph"), (b"\xff" * 64, "not an ONNX model"),
    (model(node("Relu", "x")).SerializeToString()[:-5], "not an ONNX model"),
    (b"PK\x03\x04 zip archive", "not an ONNX model"),
])
def test_broken_files(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImportModelError, match=text):
        import_onnx(path)


def test_folder_and_other_objects(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match="does not exist"):
        import_onnx(tmp_path)
    with pytest.raises(ImportModelError, match="not an ONNX model"):
        import_onnx(42)  # type: ignore[arg-type]


@pytest.mark.parametrize(("location", "entries", "text"), [
    ("/etc/hostname", {}, "not allowed"), ("../secret", {}, "not allowed"), ("a/../../secret", {}, "not allowed"),
    ("", {}, "not allowed"), ("gone", {}, "does not exist"), ("link", {}, "names a link"),
    ("data", {"offset": "4", "length": "24"}, "beyond the end"), ("data", {"offset": "-8"}, "beyond the end"),
    ("data", {"offset": "much"}, "unreadable place"), ("data", {"length": "20"}, "wrong length"),
])
def test_external_data_stays_in_the_folder(tmp_path: Path, location: str, entries: dict[str, str], text: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"\0" * 24)
    (folder / "data").write_bytes(b"\0" * 24)
    os.symlink(tmp_path / "secret", folder / "link")
    result = model(node("Add", "x,w"))
    tensor = TensorProto(name="w", dims=[2, 3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    result.graph.initializer.append(tensor)
    (folder / "m.onnx").write_bytes(result.SerializeToString())
    with pytest.raises(ImportModelError, match=text):
        import_onnx(folder / "m.onnx")


def test_external_data_needs_a_folder() -> None:
    result = model(node("Add", "x,w"))
    tensor = TensorProto(name="w", dims=[3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="data")
    result.graph.initializer.append(tensor)
    with pytest.raises(ImportModelError, match="pass the path"):
        import_onnx(result)
