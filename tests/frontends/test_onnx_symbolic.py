"""Symbolic extents in the ONNX frontend: they stay, what is computed from them is known, and what nothing proves is
required of the inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import narrowcast
from narrowcast.dims import dim_text
from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx
from narrowcast.ir import TensorSpec, dims_of, outputs_of
from narrowcast.operators.reference import run

from .bindings import names, operations
from .onnx_models import agrees, computed, expected, ints, model, node, noise


def shape_of_output(imported: object) -> tuple[int | str, ...]:
    (result,) = outputs_of(imported.mod["main"])  # type: ignore[attr-defined]
    return tuple(d if isinstance(d, int) else dim_text(d) for d in dims_of(result))


def test_inputs_keep_their_symbols() -> None:
    proto = model([node("Add", "a,b")], {"a": ["batch", 3], "b": ["batch", 3]})
    imported = agrees(proto, {"a": noise(2, 3), "b": noise(2, 3, seed=1)}, {"a": noise(5, 3), "b": noise(5, 3)})
    assert imported.inputs == (TensorSpec("a", ("batch", 3), "float32"), TensorSpec("b", ("batch", 3), "float32"))
    assert imported.hints == {"batch": 1} and imported.requirements == ()


def test_dims_fix_extents_by_name() -> None:
    proto = model([node("Relu", "x")], {"x": ["batch", "?", "Dim.1"]})
    imported = import_onnx(proto, dims={"x_1": 4, "Dim.1": 5})
    assert imported.inputs[0].shape == ("batch", 4, 5)
    assert import_onnx(proto, dims={"Dim_1": 5}).inputs[0].shape == ("batch", "x_1", 5)
    with pytest.raises(ImportModelError, match="no such dimension"):
        import_onnx(proto, dims={"width": 4})


def test_examples_give_hints_and_are_checked() -> None:
    proto = model([node("Relu", "x")], {"x": ["batch", 3, "h", "w"]})
    assert import_onnx(proto).hints == {"batch": 1, "h": 224, "w": 224}
    assert import_onnx(proto, [noise(2, 3, 5, 7)]).hints == {"batch": 2, "h": 5, "w": 7}
    with pytest.raises(ImportModelError, match="dimension 1"):
        import_onnx(proto, [noise(2, 4, 5, 7)])
    with pytest.raises(ImportModelError, match="is empty"):
        import_onnx(proto, [noise(2, 3, 0, 7)])


def test_a_scalar_input_may_be_fixed() -> None:
    nodes = [node("Equal", "rate,high", "flag"), node("Cast", "flag", "f", to=TensorProto.FLOAT), node("Mul", "x,f")]
    proto = model(nodes, {"x": [3], "rate": ("int64", [])}, "y", {"high": np.asarray(16)})
    imported = import_onnx(proto, dims={"rate": 16})
    assert import_onnx(proto, [noise(3), np.asarray(16)], {"rate": 16}).inputs == imported.inputs
    assert [s.name for s in imported.inputs] == ["x"]
    assert np.array_equal(computed(imported, {"x": noise(3)})[0], noise(3))


# Chains that compute a shape from the extents of x [b, s, 6] or the image [b, 4, h, w], and reshape with it.
CHAINS = {
    "gathered and joined": ([node("Shape", "x", "s"), node("Gather", "s,zero", "n"), node("Unsqueeze", "n,first", "n1"),
                             node("Concat", "n1,rest", "t", axis=0), node("Reshape", "x,t")], "b", "(b, 3, s * 2)"),
    "sliced": ([node("Shape", "x", "s"), node("Slice", "s,zero1,two1", "front"),
                node("Concat", "front,heads", "t", axis=0), node("Reshape", "x,t")], "b", "(b, s, 2, 3)"),
    "by attributes of Shape": ([node("Shape", "x", "front", start=0, end=2), node("Concat", "front,heads", "t", axis=0),
                                node("Reshape", "x,t")], "b", "(b, s, 2, 3)"),
    "product": ([node("Shape", "x", "s"), node("Slice", "s,zero1,two1", "front"),
                 node("ReduceProd", "front", "n", keepdims=1), node("Concat", "n,last", "t", axis=0),
                 node("Reshape", "x,t")], "b", "(b * s, 6)"),
    "size": ([node("Size", "x", "n"), node("Unsqueeze", "n,first", "t"), node("Reshape", "x,t")], "b", "(b * s * 6,)"),
    "arithmetic": ([node("Shape", "x", "s"), node("Gather", "s,one", "n"), node("Mul", "n,two", "m"),
                    node("Div", "m,two", "k"), node("Sub", "k,one", "l"), node("Add", "l,one", "o"),
                    node("Unsqueeze", "o,first", "o1"), node("Concat", "minus,o1,last", "t", axis=0),
                    node("Reshape", "x,t")], "b", "(b, s, 6)"),
    "constant of shape": ([node("Shape", "x", "s"), node("ConstantOfShape", "s", "o"), node("Add", "x,o")], "b",
                          "(b, s, 6)"),
    "where a shape is open": ([node("Shape", "x", "s"), node("Equal", "wish,minus3", "e"),
                               node("ConstantOfShape", "three", "ones", value=onnx.numpy_helper.from_array(ints(1))),
                               node("Where", "e,ones,wish", "t"), node("Expand", "x,t")], "b", "(b, s, 6)"),
    "by floats": ([node("Shape", "x", "s"), node("Gather", "s,one", "n"), node("Cast", "n", "f", to=TensorProto.FLOAT),
                   node("Div", "f,half", "g"), node("Floor", "g", "k"), node("Cast", "k", "m", to=TensorProto.INT64),
                   node("Unsqueeze", "m,first", "m1"), node("Concat", "minus,m1,three", "t", axis=0),
                   node("Reshape", "x,t")], "b", "(b, s * 2, 3)"),
    "split": ([node("Shape", "x", "s"), node("Split", "s", "p,q,r", num_outputs=3),
               node("Concat", "q,p,r", "t", axis=0), node("Reshape", "x,t")], "b", "(s, b, 6)"),
    "tiled": ([node("Shape", "x", "s"), node("Gather", "s,zero1", "n"), node("Concat", "n,ones2", "t", axis=0),
               node("Tile", "row,t", "z"), node("Mul", "x,z")], "b", "(b, s, 6)"),
    "range": ([node("Shape", "x", "s"), node("Gather", "s,one", "n"), node("Range", "zero,n,one", "r"),
               node("Cast", "r", "f", to=TensorProto.FLOAT), node("Unsqueeze", "f,one1", "c"), node("Add", "x,c")], "b",
              "(b, s, 6)"),
    "smaller of two": ([node("Shape", "x", "s"), node("Gather", "s,one", "n"), node("Min", "n,two", "m"),
                        node("Max", "m,one", "k"), node("Unsqueeze", "k,first", "k1"),
                        node("Slice", "x,zero1,k1,one1")], "b", None),
}
CONSTANTS = {"zero": np.asarray(0), "one": np.asarray(1), "two": np.asarray(2), "first": ints(0), "rest": ints(3, -1),
             "zero1": ints(0), "one1": ints(1), "two1": ints(2), "heads": ints(2, 3), "last": ints(6),
             "minus": ints(-1), "minus3": ints(-1, -1, -1), "wish": ints(-1, -1, 6), "three": ints(3),
             "half": np.asarray(0.5, np.float32), "ones2": ints(1, 1), "row": noise(1, 1, 6, seed=3)}


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_computed_from_shapes_is_known(name: str) -> None:
    nodes, _, shape = CHAINS[name]
    used = {n for x in nodes for n in x.input}
    constants = {n: a for n, a in CONSTANTS.items() if n in used}
    proto = model(nodes, {"x": ["b", "s", 6]}, "y", constants)
    imported = agrees(proto, {"x": noise(2, 4, 6)}, {"x": noise(3, 2, 6)})
    assert len(operations(imported)) <= 4
    if shape is not None:
        assert shape_of_output(imported) == tuple(int(d) if d.isdigit() else d for d in shape[1:-1].replace(
            ",)", ")").strip(",").split(", "))


@pytest.mark.parametrize(("op", "extra"), [("Identity", {}), ("Neg", {}), ("Abs", {}), ("Not", {})])
def test_values_of_shapes_may_be_results(op: str, extra: dict[str, object]) -> None:
    """They are computed when the program runs."""
    first = node("Cast", "s", "t", to=TensorProto.BOOL) if op == "Not" else node("Identity", "s", "t")
    proto = model([node("Shape", "x", "s"), first, node(op, "t")], {"x": ["b", 3, "w"]})
    agrees(proto, {"x": noise(2, 3, 4)}, {"x": noise(1, 3, 7)})


def test_floats_of_shapes_may_be_results() -> None:
    nodes = [node("Shape", "x", "s"), node("Cast", "s", "f", to=TensorProto.FLOAT), node("Div", "f,d")]
    proto = model(nodes, {"x": ["b", 3]}, "y", {"d": np.asarray(8, np.float32)})
    agrees(proto, {"x": noise(2, 3)}, {"x": noise(5, 3)})


def test_a_length_that_becomes_a_factor() -> None:
    nodes = [node("Shape", "x", "s"), node("Gather", "s,one", "n"), node("Cast", "n", "f", to=TensorProto.FLOAT),
             node("ReduceSum", "x,axes", "t"), node("Div", "t,f")]
    proto = model(nodes, {"x": ["b", "s"]}, "y", {"one": np.asarray(1), "axes": ints(1)})
    agrees(proto, {"x": noise(2, 5)}, {"x": noise(3, 9)}, terms=9)


extents, bound = st.integers(1, 7), st.integers(-9, 9)


@settings(max_examples=60, deadline=None)
@given(extents, extents, bound, bound, st.integers(-3, 3).filter(bool))
def test_slices_of_symbolic_axes_are_those_of_numpy(first: int, second: int, start: int, stop: int, step: int) -> None:
    """Where the result is not empty; that is required of the inputs."""
    nodes = [node("Slice", "x,start,stop,axes,step")]
    bounds = {"start": ints(start), "stop": ints(stop), "axes": ints(1), "step": ints(step)}
    proto = model(nodes, {"x": ["b", "s"]}, "y", bounds)
    try:
        imported = import_onnx(proto)
    except ImportModelError:
        assert all(noise(1, n)[:, start:stop:step].size == 0 for n in range(1, 40))
        return
    for extent in (first, second):
        x = noise(2, extent)
        want = x[:, start:stop:step]
        met = all(r.is_met({"b": 2, "s": extent}) for r in imported.requirements)
        assert met == (want.size > 0)
        if met:
            assert np.array_equal(computed(imported, {"x": x})[0], want)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-4, 3), min_size=1, max_size=3), st.integers(4, 8), st.booleans())
def test_picked_elements_of_symbolic_axes(indices: list[int], extent: int, scalar: bool) -> None:
    index = np.asarray(indices[0] if scalar else indices)
    proto = model([node("Gather", "x,i", axis=1)], {"x": ["b", "s", 2]}, "y", {"i": index})
    imported = agrees(proto, {"x": noise(2, extent, 2)})
    least = max(max(i + 1, -i) for i in index.reshape(-1))
    assert all(r.is_met({"b": 1, "s": least}) for r in imported.requirements)
    assert least == 1 or not all(r.is_met({"b": 1, "s": least - 1}) for r in imported.requirements)


def test_extents_that_have_to_be_equal_are_required() -> None:
    """Pyramids add maps that were halved and doubled: that fits where the extent is even."""
    nodes = [node("MaxPool", "x", "p", kernel_shape=[1, 1], strides=[2, 2]),
             node("Resize", "p,,scales", "u", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
             node("Add", "u,x")]
    proto = model(nodes, {"x": ["b", 2, "h", "w"]}, "y", {"scales": np.asarray([1, 1, 2, 2], np.float32)})
    imported = agrees(proto, {"x": noise(1, 2, 6, 4)}, {"x": noise(2, 2, 2, 8)})
    assert shape_of_output(imported) == ("b", 2, "h", "w")

    def fits(h: int, w: int) -> bool:
        return all(r.is_met({"b": 1, "h": h, "w": w}) for r in imported.requirements)

    assert fits(6, 4) and fits(2, 2) and not fits(5, 4) and not fits(6, 3)
    assert {r.layer for r in imported.requirements} == {"y"}


def test_products_of_the_same_factors_are_equal() -> None:
    """Relative positions: [b, s, 2 s - 1] in another order."""
    nodes = [node("Concat", "x,x", "c", axis=1), node("Slice", "c,one,end,one", "d"),
             node("Shape", "x", "s", start=0, end=2), node("Shape", "d", "r", start=1, end=2),
             node("Concat", "r,s", "q", axis=0), node("Transpose", "d", "e", perm=[0, 2, 1]),
             node("MatMul", "x,e", "z"), node("Reshape", "z,q")]
    proto = model(nodes, {"x": ["b", "s", 4]}, "y", {"one": ints(1), "end": ints(2 ** 40)})
    imported = agrees(proto, {"x": noise(2, 3, 4)}, {"x": noise(1, 5, 4)}, terms=16)
    assert shape_of_output(imported) == ("s * 2 + -1", "b", "s") and imported.requirements == ()


def test_symbols_that_have_to_be_equal_become_one() -> None:
    proto = model([node("MatMul", "a,b", "c"), node("Concat", "c,d", axis=1)],
                  {"a": ["m", 4], "b": ["k", 5], "d": ["other", 2]})
    imported = agrees(proto, {"a": noise(3, 4), "b": noise(4, 5), "d": noise(3, 2)}, terms=4)
    assert [s.shape for s in imported.inputs] == [("m", 4), (4, 5), ("m", 2)] and imported.requirements == ()


def test_hints_meet_the_requirements() -> None:
    proto = model([node("Conv", "x,w")], {"x": ["b", 1, "s"]}, "y", {"w": noise(2, 1, 200)})
    imported = import_onnx(proto)
    assert imported.hints["s"] >= 200 and all(r.is_met(imported.hints) for r in imported.requirements)
    assert str(imported.requirements[0]) == "s >= 200"


# Operators whose results follow symbolic extents, at two sizes.
FOLLOWING = {
    "conv": ([node("Conv", "x,w", strides=[2, 2], pads=[1, 1, 1, 1])], {"w": noise(5, 4, 3, 3)}, 36),
    "conv, same": ([node("Conv", "x,w", auto_pad="SAME_UPPER")], {"w": noise(5, 4, 3, 3)}, 36),
    "transposed": ([node("ConvTranspose", "x,w", strides=[2, 2])], {"w": noise(4, 5, 2, 2)}, 16),
    "max pool": ([node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])], {}, 1),
    "max pool, same": ([node("MaxPool", "x", kernel_shape=[2, 2], auto_pad="SAME_UPPER")], {}, 1),
    "average pool": ([node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], {}, 9),
    "global pool": ([node("GlobalAveragePool", "x")], {}, 80),
    "batch norm": ([node("BatchNormalization", "x,g,b,m,v")], {
        "g": noise(4), "b": noise(4, seed=1), "m": noise(4, seed=2), "v": np.abs(noise(4, seed=3)) + 1}, 8),
    "instance norm": ([node("InstanceNormalization", "x,g,b")], {"g": noise(4), "b": noise(4, seed=1)}, 200),
    "reduce": ([node("ReduceMean", "x,axes", keepdims=0)], {"axes": ints(2, 3)}, 80),
    "reduce max": ([node("ReduceMax", "x,axes")], {"axes": ints(-1)}, 1),
    "softmax": ([node("Softmax", "x", axis=-1)], {}, 32),
    "transpose": ([node("Transpose", "x", perm=[0, 2, 3, 1])], {}, 1),
    "flatten": ([node("Flatten", "x", axis=2)], {}, 1),
    "pad": ([node("Pad", "x,w", mode="reflect")], {"w": ints(0, 0, 1, 2, 0, 0, 1, 0)}, 1),
    "crop": ([node("Pad", "x,w")], {"w": ints(0, 0, -1, 0, 0, 0, 0, -2)}, 1),
    "depth to space": ([node("DepthToSpace", "x", blocksize=2)], {}, 1),
    "space to depth": ([node("SpaceToDepth", "x", blocksize=2)], {}, 1),
    "argmax": ([node("ArgMax", "x", axis=3, select_last_index=1)], {}, 1),
    "hardmax": ([node("Hardmax", "x", axis=3)], {}, 1),
    "top k": ([node("TopK", "x,k", "y,i", axis=3)], {"k": ints(2)}, 1),
    "cumulated": ([node("CumSum", "x,a")], {"a": np.asarray(2)}, 20),
    "linear resize": ([node("Resize", "x,,s", mode="linear")], {"s": np.asarray([1, 1, 2, 2], np.float32)}, 16),
    "linear resize of a sequence": ([node("Resize", "x3,,s", "y", mode="linear")],
                                    {"s": np.asarray([1, 1, 3], np.float32)}, 16),
    "split": ([node("Split", "x,p", "y,z", axis=1)], {"p": ints(1, 3)}, 1),
    "halves": ([node("Split", "x", "y,z", axis=2, num_outputs=2)], {}, 1),
    "expand": ([node("Expand", "x,t")], {"t": ints(3, 1, 1, 1, 1)}, 1),
    "tile": ([node("Tile", "x,t")], {"t": ints(1, 2, 1, 3)}, 1),
    "broadcast": ([node("Mul", "x,c")], {"c": noise(4, 1, 1)}, 1),
    "trilu": ([node("Trilu", "x,k")], {"k": np.asarray(1)}, 1),
    "matmul": ([node("Transpose", "x", "t", perm=[0, 1, 3, 2]), node("MatMul", "x,t")], {}, 12),
    "max pool, rounded up": ([node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], {}, 1),
    "average pool, rounded up": ([node("AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0],
                                       ceil_mode=1)], {}, 9),
    "einsum": ([node("Einsum", "x,e", equation="nchw,cd->nhwd")], {"e": noise(4, 3)}, 8),
    "einsum of symbols": ([node("Einsum", "x,x", equation="nchw,mchw->nm")], {}, 400),
    "diagonal": ([node("ReduceSum", "x,a", "s", keepdims=0), node("EyeLike", "s", k=1)], {"a": ints(0, 1)}, 1),
    "group norm": ([node("GroupNormalization", "x,g,b", num_groups=2)], {"g": noise(4), "b": noise(4, seed=1)}, 200),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_results_follow_symbolic_extents(name: str) -> None:
    nodes, constants, terms = FOLLOWING[name]
    opset = 21 if "GroupNormalization" in (n.op_type for n in nodes) else 20
    x, shape = nodes[0].input[0], ["b", 4, "h", "w"]
    proto = model(nodes, {x: shape if x == "x" else shape[:3]}, nodes[-1].output[0], constants, opset=opset)
    sizes = ((1, 4, 6, 4), (2, 4, 8, 10))
    agrees(proto, *({x: noise(*s) if x == "x" else noise(*s[:3])} for s in sizes), terms=4 * terms)


@pytest.mark.parametrize(("nodes", "text"), [
    ([node("Conv", "x,w", auto_pad="SAME_UPPER", strides=[2, 2])], "Conv with the extent .* of the padding"),
    ([node("MaxPool", "x", kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1)], "MaxPool with the extent"),
    ([node("Resize", "x,,s", mode="linear", coordinate_transformation_mode="half_pixel_symmetric")],
     "Resize with the extent"),
    ([node("Squeeze", "x")], "Squeeze with the extent"),
])
def test_forms_that_need_numbers_name_the_extent_and_what_to_do(nodes: list[onnx.NodeProto], text: str) -> None:
    constants = {"w": noise(5, 4, 3, 3), "s": np.asarray([1, 1, 1.5, 1.5], np.float32)}
    used = {n for x in nodes for n in x.input}
    proto = model(nodes, {"x": ["b", 4, "h", "w_"]}, "y", {n: a for n, a in constants.items() if n in used})
    with pytest.raises(UnsupportedOperatorError, match=text) as caught:
        import_onnx(proto)
    assert "dims=" in str(caught.value) and "y" in str(caught.value)
    if nodes[0].op_type != "Squeeze":
        agrees(proto, {"x": noise(1, 4, 7, 9)}, dims={"b": 1, "h": 7, "w_": 9}, terms=200)


def test_indices_that_only_running_tells_stay_inside_of_symbolic_axes() -> None:
    proto = model([node("Gather", "x,i")], {"x": ["n", 2], "i": ("int64", ["k"])})
    imported = agrees(proto, {"x": noise(5, 2), "i": ints(0, -1, 4)}, {"x": noise(3, 2), "i": ints(2, 2)})
    (got,) = run(imported.mod, {"x": torch.from_numpy(noise(3, 2)), "i": torch.tensor([7, -9])})
    assert np.array_equal(got.numpy(), noise(3, 2)[[7 % 3, -9 % 3]])


def test_elements_gathered_and_scattered_along_symbolic_axes() -> None:
    i = np.asarray([[0, 1], [-1, 0]])
    proto = model([node("GatherElements", "x,i", "g", axis=1), node("ScatterElements", "x,i,g", axis=1)],
                  {"x": [2, "s"]}, "y", {"i": i})
    agrees(proto, {"x": noise(2, 3)}, {"x": noise(2, 5)})
    proto = model([node("GatherND", "x,j", "g"), node("ScatterND", "x,j,g")], {"x": ["n", "s"]}, "y",
                  {"j": np.asarray([[0, 1], [-1, 0]])})
    agrees(proto, {"x": noise(3, 4)}, {"x": noise(2, 2)})


def test_extents_that_only_running_tells_cannot_be_required() -> None:
    proto = model([node("NonZero", "x", "n"), node("Cast", "n", "f", to=TensorProto.FLOAT), node("Add", "f,c")],
                  {"x": [9]}, "y", {"c": noise(1, 4)})
    with pytest.raises(UnsupportedOperatorError, match="y: extents that only running tells"):
        import_onnx(proto)


def test_symbols_are_called_as_they_are_printed() -> None:
    proto = model([node("Relu", "x")], {"x": ["Dynamic.0", None]})
    imported = import_onnx(proto)
    assert imported.inputs[0].shape == ("Dynamic_0", "x_1") and set(imported.hints) == {"Dynamic_0", "x_1"}
    assert names(imported) == ["y"]


def test_nameless_dims_are_not_confused_with_named_ones() -> None:
    proto = model([node("Relu", "x")], {"x": ["x_1", None]})
    assert import_onnx(proto).inputs[0].shape == ("x_1", "x_1_")


def test_expected_results_are_those_of_onnx_runtime() -> None:
    """The tests' own reference: a wrong import is noticed."""
    proto = model([node("Mul", "x,c")], {"x": ["n"]}, "y", {"c": np.asarray([2], np.float32)})
    assert np.array_equal(expected(proto, {"x": noise(3)})[0], 2 * noise(3))


def test_an_extent_that_a_shape_decides_is_known() -> None:
    """A tensor [2, 3, w] in the shape [4, 258, 8] has w = 1376 (found by fuzzing: w was taken for any number)."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])], "known",
        [onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, "w"])],
        [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.helper.make_tensor("shape", TensorProto.INT64, [3], [4, 258, 8])])
    proto = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 21)])
    program = narrowcast.compile(proto, num_threads=1)
    assert program.inputs[0].shape == (2, 3, 1376)
    x = np.random.default_rng(0).standard_normal((2, 3, 1376), dtype=np.float32)
    np.testing.assert_array_equal(program(x), x.reshape(4, 258, 8))


def test_the_batch_of_a_query_is_that_of_its_keys() -> None:
    """An open batch beside a known one is known (found by fuzzing)."""
    sizes = {"q": ["n", 3, 4, 8], "k": [2, 3, 6, 8], "v": ["m", 3, 6, 8]}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Attention", ["q", "k", "v"], ["y"])], "attention",
        [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()],
        [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    proto = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 23)])
    program = narrowcast.compile(proto, num_threads=1)
    assert [i.shape for i in program.inputs] == [(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8)]
    q, k, v = (np.random.default_rng(0).standard_normal(i.shape, dtype=np.float32) for i in program.inputs)
    wanted = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)))
    np.testing.assert_allclose(program(q, k, v), wanted, rtol=1e-5, atol=1e-5)
