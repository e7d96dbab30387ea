"""Forms that ONNX models come in: those of older operator sets, optional inputs, empty and scalar tensors, and what
exporters make of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowcast
from narrowcast.errors import ImportModelError
from narrowcast.frontends.onnx import import_onnx
from narrowcast.ir import Constant, op_bindings

from .bindings import names, operations
from .onnx_models import agrees, computed, expected, ints, model, node, noise

FLOAT = TensorProto.FLOAT


@dataclass(frozen=True)
class Form:
    """One node at an operator set, with its shape of x and its constants.

    exact : what it gives, where ONNX Runtime lacks the form.
    """

    opset: int
    node: onnx.NodeProto
    shape: tuple[int, ...] = (2, 3, 4)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    terms: int = 8
    exact: np.ndarray | None = None


STATISTICS = {"s": noise(3), "b": noise(3, seed=1), "m": noise(3, seed=2), "v": np.abs(noise(3, seed=3)) + 1}

FORMS = {
    "Upsample-7": Form(7, node("Upsample", "x", scales=[1.0, 1.0, 2.0, 3.0]), (1, 2, 3, 4)),
    "Upsample-9": Form(9, node("Upsample", "x,k"), (1, 2, 3, 4), {"k": np.asarray([1, 1, 2, 2], np.float32)}),
    "Resize-10": Form(10, node("Resize", "x,k", mode="linear"), (1, 2, 3, 4),
                      {"k": np.asarray([1, 1, 2, 2], np.float32)}),
    "Dropout-7": Form(7, node("Dropout", "x", ratio=0.5)),
    "Dropout-10 with a mask": Form(10, node("Dropout", "x", "y,mask")),
    "Dropout-12 with a ratio": Form(12, node("Dropout", "x,r"), constants={"r": np.asarray(0.5, np.float32)}),
    "BatchNormalization-7": Form(7, node("BatchNormalization", "x,s,b,m,v", epsilon=1e-3), constants=STATISTICS),
    "BatchNormalization-9 in training mode": Form(9, node("BatchNormalization", "x,s,b,m,v", "y,m2,v2,ms,vs"),
                                                  constants=STATISTICS, terms=64),
    "BatchNormalization-15 in training mode": Form(
        15, node("BatchNormalization", "x,s,b,m,v", "y,m2,v2", training_mode=1), constants=STATISTICS, terms=64),
    "Slice-1": Form(7, node("Slice", "x", starts=[0, -3], ends=[1, 2 ** 40], axes=[1, 2])),
    "Slice-1 without axes": Form(7, node("Slice", "x", starts=[1, 1], ends=[2, 3])),
    "Slice-10 without axes": Form(10, node("Slice", "x,s,e"), constants={"s": ints(0, 1), "e": ints(2, 3)}),
    "Slice-13 with steps but no axes": Form(13, node("Slice", "x,s,e,,t"), constants={
        "s": ints(-1, 0, 3), "e": ints(-9, 3, 0), "t": ints(-1, 2, -1)}),
    "Pad-2": Form(7, node("Pad", "x", pads=[0, 1, 0, 0, 0, 2], value=1.5)),
    "Pad-11 reflecting": Form(11, node("Pad", "x,p", mode="reflect"), constants={"p": ints(0, 0, 2, 0, 1, 1)}),
    "Pad-18 with axes": Form(18, node("Pad", "x,p,,a"), constants={"p": ints(1, 2), "a": ints(-1)}),
    "Clip-6": Form(7, node("Clip", "x", min=-0.5, max=0.5)),
    "Clip-6 without bounds": Form(7, node("Clip", "x")),
    "Clip-13 from above": Form(13, node("Clip", "x,,h"), constants={"h": np.asarray(0.25, np.float32)}),
    "Squeeze-1": Form(7, node("Squeeze", "x", axes=[0, -1]), (1, 3, 1)),
    "Squeeze-11 of all ones": Form(11, node("Squeeze", "x"), (1, 3, 1)),
    "Unsqueeze-1": Form(7, node("Unsqueeze", "x", axes=[0, 4])),
    "Unsqueeze-13, negative": Form(13, node("Unsqueeze", "x,a"), constants={"a": ints(-1, 0)}),
    "Split-2": Form(7, node("Split", "x", "y,z", axis=2, split=[1, 3])),
    "Split-2 in equal parts": Form(7, node("Split", "x", "y,z", axis=-1)),
    "Split-18, not in equal parts": Form(18, node("Split", "x", "y,z", axis=1, num_outputs=2)),
    "ReduceSum-1": Form(7, node("ReduceSum", "x", axes=[1], keepdims=0)),
    "ReduceSum-13 over nothing": Form(13, node("ReduceSum", "x,a", noop_with_empty_axes=1), constants={"a": ints()}),
    "ReduceMean-18, negative": Form(18, node("ReduceMean", "x,a"), constants={"a": ints(-1, -2)}, terms=24),
    "ReduceL2-1 over all": Form(7, node("ReduceL2", "x", keepdims=0), terms=48),
    "TopK-1": Form(7, node("TopK", "x", "y,i", k=2, axis=1)),
    "TopK-11, the smallest": Form(11, node("TopK", "x,k", "y,i", largest=0), constants={"k": ints(3)}),
    "Softmax-1 over all that follows": Form(7, node("Softmax", "x")),
    "Softmax-11, negative": Form(11, node("Softmax", "x", axis=-2)),
    "Softmax-13": Form(13, node("Softmax", "x")),
    "LogSoftmax-1": Form(7, node("LogSoftmax", "x", axis=2)),
    "Hardmax-1": Form(7, node("Hardmax", "x")),
    "Gemm-7": Form(7, node("Gemm", "x,w,c", transB=1, alpha=0.5, beta=2.0), (2, 3), {"w": noise(4, 3), "c": noise(4)}),
    "Gemm-11 without C": Form(11, node("Gemm", "x,w"), (2, 3), {"w": noise(3, 4)}),
    "Flatten-9, all": Form(9, node("Flatten", "x", axis=0)),
    "Flatten-11, negative": Form(11, node("Flatten", "x", axis=-1)),
    "Reshape-5 with 0 and -1": Form(7, node("Reshape", "x,s"), constants={"s": ints(0, -1, 2)}),
    "Reshape-14 with zeros allowed": Form(14, node("Reshape", "x,s", allowzero=1), (0, 3), {"s": ints(3, 0, 2)},
                                          exact=np.zeros((3, 0, 2), np.float32)),
    "DepthToSpace-1": Form(7, node("DepthToSpace", "x", blocksize=2), (1, 8, 2, 3)),
    "DepthToSpace-11, columns first": Form(11, node("DepthToSpace", "x", blocksize=2, mode="CRD"), (1, 8, 2, 3)),
    "Scatter-9": Form(9, node("Scatter", "x,i,u", axis=1), (2, 3),
                      {"i": np.asarray([[0, 2], [1, 0]]), "u": noise(2, 2, seed=4)}),
    "PRelu-7 with a scalar": Form(7, node("PRelu", "x,s"), constants={"s": np.asarray([0.5], np.float32)}),
    "Cast-6": Form(7, node("Cast", "x", to=TensorProto.INT32)),
    "MaxPool-1": Form(7, node("MaxPool", "x", kernel_shape=[2], auto_pad="SAME_LOWER"), (1, 2, 5)),
    "MaxPool-8 without its indices": Form(8, node("MaxPool", "x", "y,i", kernel_shape=[2]), (1, 2, 5)),
    "AveragePool-7": Form(7, node("AveragePool", "x", kernel_shape=[2], pads=[1, 1]), (1, 2, 5)),
    "ArgMax-1": Form(7, node("ArgMax", "x", keepdims=0)),
    "ArgMin-12, the last": Form(12, node("ArgMin", "x", axis=-1, select_last_index=1)),
    "OneHot-9": Form(9, node("OneHot", "i,d,v"), (2, 3), {"i": ints(0, 2), "d": np.asarray(3), "v": noise(2)}),
    "Sum-6 of one": Form(7, node("Sum", "x")),
    "Max-8 of three": Form(8, node("Max", "x,c,d"), constants={"c": noise(4), "d": noise(3, 1)}),
    "Mean-8": Form(8, node("Mean", "x,c"), constants={"c": noise(4)}),
    "ConvTranspose-1 to a size": Form(7, node("ConvTranspose", "x,w", strides=[2], output_shape=[10]), (1, 2, 5),
                                      {"w": noise(2, 3, 3)}),
    "InstanceNormalization-6": Form(7, node("InstanceNormalization", "x,s,b"),
                                    constants={k: STATISTICS[k] for k in "sb"}, terms=64),
    "GroupNormalization-18, by groups": Form(
        18, node("GroupNormalization", "x,s,b", num_groups=1), constants={"s": noise(1), "b": noise(1, seed=1)},
        terms=200),
    "LRN-1": Form(7, node("LRN", "x", size=3), (1, 5, 2, 3), terms=32),
    "Expand-8": Form(8, node("Expand", "x,s"), (2, 1, 4), {"s": ints(2, 3, 1)}),
    "Where-9": Form(9, node("Where", "c,x,k"), constants={"c": noise(2, 3, 4) > 0, "k": noise(4)}),
    "Trilu-14, lower": Form(14, node("Trilu", "x,k", upper=0), constants={"k": np.asarray(-1)}),
    "ConstantOfShape-9, empty": Form(9, node("ConstantOfShape", "s"), constants={"s": ints(2, 0)}),
    "Gather-1 with a scalar": Form(7, node("Gather", "x,i", axis=1), constants={"i": np.asarray(-1)}),
    "Gather-1 of nothing": Form(7, node("Gather", "x,i"), constants={"i": ints()},
                                exact=np.zeros((0, 3, 4), np.float32)),
    "Concat-4, negative": Form(7, node("Concat", "x,x", axis=-1)),
    "Concat with an empty part": Form(13, node("Concat", "e,x", axis=0),
                                      constants={"e": np.zeros((0, 3, 4), np.float32)}),
    "Shape-15 of a part": Form(15, node("Shape", "x", start=-2)),
    "CumSum-11 backwards, exclusive": Form(11, node("CumSum", "x,a", reverse=1, exclusive=1),
                                           constants={"a": np.asarray(-1)}),
    "Identity-1": Form(7, node("Identity", "x")),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_operator_sets(name: str) -> None:
    form = FORMS[name]
    proto = model([form.node], {"x": form.shape}, form.node.output[0], form.constants, opset=form.opset)
    proto.ir_version = 8
    feeds = {"x": noise(*form.shape, seed=9)}
    if form.exact is not None:
        assert np.array_equal(computed(import_onnx(proto), feeds)[0], form.exact)
        return
    agrees(proto, feeds, terms=form.terms)


@pytest.mark.parametrize("opset", [6, 3, 1])
def test_older_operator_sets_are_lifted(opset: int) -> None:
    proto = model([node("Relu", "x", "r"), node("Reshape", "r", shape=[4, 3]) if opset < 5 else
                   node("Reshape", "r,s")], {"x": [3, 4]}, "y", {} if opset < 5 else {"s": ints(4, 3)}, opset=opset)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [4, 3]))
    proto.ir_version = 3
    for name in [t.name for t in proto.graph.initializer]:
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, [2]))
    got = computed(import_onnx(proto), {"x": noise(3, 4)})[0]
    assert np.array_equal(got, np.maximum(noise(3, 4), 0).reshape(4, 3))


@pytest.mark.parametrize("version", range(7, onnx.defs.onnx_opset_version() + 1))
def test_every_operator_set_is_read(version: int) -> None:
    proto = model([node("Conv", "x,w", "c", pads=[1, 1]), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "p"),
                   node("Flatten", "p", "f"), node("MatMul", "f,k", "m"), node("Softmax", "m", axis=1)],
                  {"x": ["n", 2, 6]}, "y", {"w": noise(3, 2, 3), "k": noise(3, 4)}, opset=version)
    imported = import_onnx(proto)
    got = computed(imported, {"x": noise(2, 2, 6)})[0]
    assert got.shape == (2, 4) and np.allclose(got.sum(1), 1)


# Weights: they come as initializers, as inputs too, through Identity, or from nodes.

def weighted(*before: onnx.NodeProto, **initializers: np.ndarray) -> onnx.ModelProto:
    return model([*before, node("Conv", "x,w", "y", pads=[1, 1])], {"x": [1, 2, 5]}, "y", initializers)


W = noise(3, 2, 3)
WEIGHTS = {
    "initializer": weighted(w=W),
    "chain of Identity": weighted(node("Identity", "w0", "w1"), node("Identity", "w1", "w2"),
                                  node("Identity", "w2", "w"), w0=W),
    "Constant": weighted(node("Constant", "", "w", value=numpy_helper.from_array(W))),
    "Constant of floats": weighted(node("Constant", "", "v", value_floats=W.reshape(-1).tolist()),
                                   node("Constant", "", "s", value_ints=[3, 2, 3]), node("Reshape", "v,s", "w")),
    "computed": weighted(node("Mul", "w0,two", "w1"), node("Transpose", "w1", "w", perm=[1, 0, 2]),
                         w0=np.ascontiguousarray(W.transpose(1, 0, 2)) / 2, two=np.asarray(2, np.float32)),
    "half precision": weighted(node("Cast", "w0", "w", to=FLOAT), w0=W.astype(np.float16)),
    "dequantized": weighted(node("DequantizeLinear", "q,s", "w"), q=np.round(W * 20).astype(np.int8),
                            s=np.asarray(0.05, np.float32)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_constants_wherever_they_come_from(name: str) -> None:
    proto = WEIGHTS[name]
    imported = agrees(proto, {"x": noise(1, 2, 5)}, terms=8)
    (convolution,) = [b for b in op_bindings(imported.mod["main"]) if b.var.name == "y"]
    assert isinstance(convolution.value.args[1], Constant)


def test_initializers_that_are_also_inputs_are_weights() -> None:
    """As up to IR version 3 every initializer had to be."""
    proto = weighted(w=W)
    proto.graph.input.append(helper.make_tensor_value_info("w", FLOAT, W.shape))
    proto.ir_version = 3
    imported = import_onnx(proto, [noise(1, 2, 5)])
    assert [s.name for s in imported.inputs] == ["x"]
    np.testing.assert_allclose(computed(imported, {"x": noise(1, 2, 5)})[0],
                               expected(WEIGHTS["initializer"], {"x": noise(1, 2, 5)})[0], atol=1e-6)


def test_a_weight_of_a_subgraph_hides_none_outside() -> None:
    inner = helper.make_graph([node("Add", "x,c", "z")], "b", [], [onnx.ValueInfoProto(name="z")],
                              [numpy_helper.from_array(noise(3, seed=1), "c")])
    other = helper.make_graph([node("Add", "x,d", "z")], "b", [], [onnx.ValueInfoProto(name="z")])
    for flag in (True, False):
        proto = model([node("If", "f", "y", then_branch=inner, else_branch=other)], {"x": [3]}, "y",
                      {"f": np.asarray(flag), "d": noise(3, seed=2)})
        agrees(proto, {"x": noise(3)})


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Max"])
def test_scalars(op: str) -> None:
    proto = model([node("ReduceSum", "x", "s", keepdims=0), node(op, "s,c", "t"), node("Unsqueeze", "t,a")],
                  {"x": [2, 3]}, "y", {"c": np.asarray(0.5, np.float32), "a": ints(0)})
    agrees(proto, {"x": noise(2, 3)}, terms=6)


def test_scalar_inputs_and_results() -> None:
    proto = model([node("Exp", "x", "e"), node("Mul", "e,x")], {"x": []})
    agrees(proto, {"x": np.asarray(0.3, np.float32)}, terms=2)


@pytest.mark.parametrize(("nodes", "shape"), [
    ([node("Relu", "x")], (0, 3)),
    ([node("Concat", "x,x", "c", axis=0), node("Transpose", "c")], (0, 3)),
    ([node("ReduceSum", "x,a")], (0, 3)),
    ([node("MatMul", "x,w")], (0, 3)),
    ([node("MeanVarianceNormalization", "x")], (3, 3, 0, 1)),
    ([node("MeanVarianceNormalization", "x")], (0, 3, 4, 4)),
])
def test_empty_inputs(nodes: list[onnx.NodeProto], shape: tuple[int, ...]) -> None:
    constants = {"a": ints(0), "w": noise(3, 2)}
    used = {n for x in nodes for n in x.input}
    proto = model(nodes, {"x": shape}, "y", {k: v for k, v in constants.items() if k in used})
    got = computed(import_onnx(proto), {"x": np.zeros(shape, np.float32)})[0]
    assert np.array_equal(got, expected(proto, {"x": np.zeros(shape, np.float32)})[0])
    assert np.array_equal(narrowcast.compile(proto, num_threads=1)(np.zeros(shape, np.float32)), got)


def test_outputs_that_nothing_reads_are_not_computed() -> None:
    proto = model([node("TopK", "x,k", "y,i"), node("Split", "x", "p,q", axis=1, num_outputs=2), node("Neg", "p", "z")],
                  {"x": [2, 4]}, "y,z", {"k": ints(2)})
    agrees(proto, {"x": noise(2, 4)})


def test_names_are_those_of_the_nodes() -> None:
    proto = model([node("Neg", "x", "t", name="first"), node("Abs", "t", name="")], {"x": [3]})
    assert names(import_onnx(proto)) == ["first", "y"]


def test_an_index_out_of_range_is_found_at_import() -> None:
    """It would crash the process when it is folded without a check."""
    with pytest.raises(ImportModelError, match="out of range"):
        import_onnx(model([node("Gather", "x,i")], {"x": [3]}, "y", {"i": np.asarray(3)}))


def test_a_missing_input_is_named() -> None:
    with pytest.raises(ImportModelError, match="nothing produces"):
        import_onnx(model([node("Add", "x,absent")], {"x": [3]}))


def test_duplicate_names_of_outputs_and_inputs() -> None:
    """A model may hand an input on, twice."""
    proto = model([node("Identity", "x", "y"), node("Identity", "x", "z")], {"x": ["n"]}, "y,z")
    imported = agrees(proto, {"x": noise(3)}, {"x": noise(1)})
    assert imported.outputs == ("y", "z") and not set(operations(imported)) - {"item"}
