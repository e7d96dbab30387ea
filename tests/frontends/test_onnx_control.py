"""If, Loop, Scan and sequences of the ONNX frontend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from narrowcast.dims import dim_text
from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends.limits import MAX_UNROLLED
from narrowcast.frontends.onnx import import_onnx
from narrowcast.ir import dims_of, outputs_of

from .bindings import names, operations
from .onnx_models import agrees, computed, graph, ints, model, node, noise

TRUE = np.asarray(True)


def branch(*nodes: onnx.NodeProto, results: str = "z") -> onnx.GraphProto:
    return graph(nodes, {}, results)


def choice(condition: str, yes: onnx.GraphProto, no: onnx.GraphProto, results: str = "y") -> onnx.NodeProto:
    return node("If", condition, results, then_branch=yes, else_branch=no)


RELU_OR_NEG = choice("flag", branch(node("Relu", "x", "z")), branch(node("Neg", "x", "z")))


@pytest.mark.parametrize(("flag", "op"), [(True, "relax.nn.relu"), (False, "relax.negative")])
def test_a_constant_condition_takes_its_branch(flag: bool, op: str) -> None:
    imported = agrees(model([RELU_OR_NEG], {"x": [3]}, "y", {"flag": np.asarray(flag)}), {"x": noise(3)})
    assert operations(imported) == [op]


def test_a_condition_that_only_running_tells_selects() -> None:
    proto = model([RELU_OR_NEG], {"x": ["n"], "flag": ("bool", [])})
    imported = agrees(proto, {"x": noise(3), "flag": np.asarray(True)}, {"x": noise(5), "flag": np.asarray(False)})
    assert operations(imported) == ["relax.nn.relu", "relax.negative", "relax.where"]


def test_a_condition_of_one_element() -> None:
    proto = model([node("ReduceMax", "x", "m", keepdims=1), node("Greater", "m,zero", "flag"), RELU_OR_NEG],
                  {"x": [3]}, "y", {"zero": np.zeros(1, np.float32)})
    agrees(proto, {"x": noise(3)}, {"x": -np.abs(noise(3))})


def test_a_condition_on_extents_that_is_provable() -> None:
    """``rank``, a fixed extent and that a batch is never empty are known."""
    nodes = [node("Shape", "x", "s"), node("Gather", "s,zero", "n"), node("Greater", "n,zero", "flag"), RELU_OR_NEG]
    imported = agrees(model(nodes, {"x": ["n", 2]}, "y", {"zero": np.asarray(0)}), {"x": noise(3, 2)})
    assert operations(imported) == ["relax.nn.relu"]


def test_a_condition_on_extents_that_is_open() -> None:
    """It is computed where the branches give the same type, and refused with advice where they do not."""
    shape = [node("Shape", "x", "s"), node("Gather", "s,zero", "n"), node("Equal", "n,one", "flag")]
    constants = {"zero": np.asarray(0), "one": np.asarray(1)}
    proto = model([*shape, RELU_OR_NEG], {"x": ["n", 2]}, "y", constants)
    agrees(proto, {"x": noise(1, 2)}, {"x": noise(3, 2)})
    squeezed = choice("flag", branch(node("Squeeze", "x,axis", "z")), branch(node("Identity", "x", "z")))
    proto = model([*shape, squeezed], {"x": ["n", 2]}, "y", {**constants, "axis": ints(0)})
    with pytest.raises(UnsupportedOperatorError, match=r"between tensors of different types by.*n == 1") as caught:
        import_onnx(proto)
    assert "dims=" in str(caught.value)
    for extent in (1, 3):
        agrees(proto, {"x": noise(extent, 2)}, dims={"n": extent})


def test_branches_see_values_around_them_and_nest() -> None:
    inner = choice("other", branch(node("Add", "x,t", "w"), results="w"), branch(node("Sub", "x,t", "w"), results="w"),
                   "z")
    nodes = [node("Exp", "x", "t"), choice("flag", branch(inner), branch(node("Mul", "t,t", "z")))]
    proto = model(nodes, {"x": [4], "flag": ("bool", []), "other": ("bool", [])})
    agrees(proto, *({"x": noise(4), "flag": np.asarray(a), "other": np.asarray(b)}
                    for a in (True, False) for b in (True, False)), terms=4)


def test_branches_that_differ_in_type_are_refused_with_the_layer() -> None:
    proto = model([choice("flag", branch(node("Identity", "x", "z")), branch(node("Shape", "x", "z")))],
                  {"x": [3], "flag": ("bool", [])})
    with pytest.raises(UnsupportedOperatorError, match=r"If \(1 node: y\).*different types"):
        import_onnx(proto)


def test_equal_constants_of_both_branches_need_no_condition() -> None:
    same = [branch(node("Constant", "", "z", value_ints=[2, 3])) for _ in range(2)]
    proto = model([choice("flag", *same, "s"), node("Reshape", "x,s")], {"x": [6], "flag": ("bool", [])})
    agrees(proto, {"x": noise(6), "flag": np.asarray(False)})


def loop(nodes: Sequence[onnx.NodeProto], states: int, outputs: str, initial: str, results: str,
         **initializers: np.ndarray) -> onnx.NodeProto:
    """A Loop whose body reads i, c, a, b … and gives ``outputs``, the condition first."""
    body = helper.make_graph(
        list(nodes), "body", [helper.make_tensor_value_info("i", TensorProto.INT64, []),
                              helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                              *(onnx.ValueInfoProto(name=n) for n in "ab"[:states])],
        [onnx.ValueInfoProto(name=n) for n in outputs.split(",")],
        [onnx.numpy_helper.from_array(v, n) for n, v in initializers.items()])
    return node("Loop", initial, results, body=body)


ADD_X = [node("Identity", "c", "goes"), node("Add", "a,x", "out"), node("Mul", "out,out", "seen")]


def test_a_loop_of_known_length_is_unrolled() -> None:
    proto = model([loop(ADD_X, 1, "goes,out,seen", "trips,true,zero", "y,all")], {"x": ["n"], "zero": ["n"]}, "y,all",
                  {"trips": np.asarray(3), "true": TRUE})
    imported = agrees(proto, {"x": noise(2), "zero": noise(2)}, {"x": noise(5), "zero": noise(5)}, terms=4)
    assert operations(imported).count("relax.add") == 3
    assert [d if isinstance(d, int) else dim_text(d) for d in dims_of(outputs_of(imported.mod["main"])[1])] == [3, "n"]
    assert {"out", "out.1", "out.2"} <= set(names(imported))


def test_a_loop_may_count_and_end_by_a_known_condition() -> None:
    body = [node("Add", "a,one", "out"), node("Less", "out,limit", "goes")]
    proto = model([loop(body, 1, "goes,out", ",true,start", "n"), node("Cast", "n", "f", to=TensorProto.FLOAT),
                   node("Mul", "x,f")], {"x": [3]}, "y",
                  {"true": TRUE, "start": np.asarray(0), "one": np.asarray(1), "limit": np.asarray(4)})
    imported = agrees(proto, {"x": noise(3)})
    assert operations(imported) == ["relax.multiply"]


def test_a_loop_whose_end_only_running_tells_keeps_its_state() -> None:
    body = [node("Add", "a,x", "out"), node("ReduceSum", "out", "sum", keepdims=0), node("Less", "sum,limit", "goes")]
    proto = model([loop(body, 1, "goes,out", "trips,true,zero", "y")], {"x": [2], "zero": [2], "limit": []}, "y",
                  {"trips": np.asarray(5), "true": TRUE})
    feeds = [{"x": np.ones(2, np.float32), "zero": np.zeros(2, np.float32), "limit": np.asarray(v, np.float32)}
             for v in (-1, 3, 7, 100)]
    imported = agrees(proto, *feeds, terms=4)
    assert [float(computed(imported, f)[0][0]) for f in feeds] == [1, 2, 4, 5]


def test_a_loop_that_may_not_start() -> None:
    proto = model([loop(ADD_X[:2], 1, "goes,out", "trips,go,zero", "y")], {"x": [2], "zero": [2], "go": ("bool", [])},
                  "y", {"trips": np.asarray(2)})
    agrees(proto, *({"x": noise(2), "zero": noise(2, seed=1), "go": np.asarray(v)} for v in (True, False)))


def test_a_loop_without_iterations() -> None:
    proto = model([loop(ADD_X[:2], 1, "goes,out", "trips,true,zero", "y")], {"x": [2], "zero": [2]}, "y",
                  {"trips": np.asarray(0), "true": TRUE})
    agrees(proto, {"x": noise(2), "zero": noise(2, seed=1)})


def test_a_loop_of_unknown_length_on_sequences_is_refused_with_the_layer() -> None:
    body = [node("SequenceInsert", "a,x", "out"), node("Identity", "c", "goes")]
    nodes = [node("SequenceEmpty", "", "s"), loop(body, 1, "goes,out", "n,true,s", "t"),
             node("ConcatFromSequence", "t", axis=0)]
    with pytest.raises(UnsupportedOperatorError, match=r"Loop \(1 node: t\).*number of iterations.*on sequences"):
        import_onnx(model(nodes, {"x": [2], "n": ("int64", [])}, "y", {"true": TRUE}))


def test_loops_that_are_too_long_are_refused() -> None:
    proto = model([loop(ADD_X[:2], 1, "goes,out", "trips,true,zero", "y")], {"x": [2], "zero": [2]}, "y",
                  {"trips": np.asarray(2 ** 40), "true": TRUE})
    with pytest.raises(UnsupportedOperatorError, match=f"more than {MAX_UNROLLED} nodes"):
        import_onnx(proto)


def scan(nodes: Sequence[onnx.NodeProto], inputs: str, outputs: str, initial: str, results: str,
         **attributes: object) -> onnx.NodeProto:
    body = helper.make_graph(list(nodes), "body", [onnx.ValueInfoProto(name=n) for n in inputs.split(",")],
                             [onnx.ValueInfoProto(name=n) for n in outputs.split(",")])
    return node("Scan", initial, results, body=body, num_scan_inputs=1, **attributes)


def typed(proto: onnx.ModelProto, rank: int) -> onnx.ModelProto:
    """The body's inputs and outputs with the types that ONNX Runtime wants."""
    for value in (*proto.graph.node[0].attribute[0].g.input, *proto.graph.node[0].attribute[0].g.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [None] * rank))
    return proto


@pytest.mark.parametrize("attributes", [
    {}, {"scan_input_axes": [1]}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]},
    {"scan_output_axes": [1]}, {"scan_input_axes": [-1], "scan_output_axes": [-1]},
])
def test_a_scan_is_unrolled(attributes: dict[str, object]) -> None:
    body = [node("Add", "s,e", "t"), node("Mul", "t,e", "o")]
    proto = typed(model([scan(body, "s,e", "t,o", "first,x", "last,y", **attributes)], {"first": [3], "x": [3, 3]},
                        "last,y"), 1)
    agrees(proto, {"first": noise(3), "x": noise(3, 3, seed=1)}, terms=6)


def test_a_scan_over_a_symbolic_axis_is_a_loop() -> None:
    proto = typed(model([scan([node("Add", "s,e", "t"), node("Neg", "t", "o")], "s,e", "t,o", "first,x", "last,y")],
                        {"first": [3], "x": ["steps", 3]}, "last,y"), 1)
    imported = agrees(proto, {"first": noise(3), "x": noise(4, 3)}, {"first": noise(3), "x": noise(1, 3)}, terms=4)
    assert "narrowcast.loop" in operations(imported)
    agrees(proto, {"first": noise(3), "x": noise(4, 3)}, dims={"steps": 4}, terms=4)


def test_a_batched_scan_of_opset_8() -> None:
    body = [node("Add", "s,e", "t"), node("Identity", "t", "o")]
    proto = model([scan(body, "s,e", "t,o", ",first,x", "last,y")], {"first": [2, 3], "x": [2, 4, 3]}, "last,y",
                  opset=8)
    x, first = noise(2, 4, 3), noise(2, 3, seed=1)
    last, y = computed(import_onnx(proto), {"first": first, "x": x})
    np.testing.assert_allclose(y, first[:, None] + x.cumsum(1), atol=1e-6)
    np.testing.assert_allclose(last, first + x.sum(1), atol=1e-6)


def test_a_body_that_contradicts_its_node() -> None:
    proto = model([scan([node("Neg", "s", "t")], "s", "t", "first,x", "last")], {"first": [3], "x": [3, 3]}, "last")
    with pytest.raises(ImportModelError, match="not as many inputs"):
        import_onnx(proto)


def test_sequences_are_taken_apart_again() -> None:
    nodes = [node("SequenceConstruct", "a,b", "s"), node("SequenceInsert", "s,c,front", "t"),
             node("SequenceErase", "t,last", "u"), node("SequenceAt", "u,front", "p"),
             node("ConcatFromSequence", "t", "q", axis=0), node("ConcatFromSequence", "u", "r", axis=1, new_axis=1),
             node("SequenceLength", "t", "n"), node("Cast", "n", "f", to=TensorProto.FLOAT), node("Mul", "p,f", "y")]
    proto = model(nodes, {n: ["n", 2] for n in "abc"}, "y,q,r", {"front": np.asarray(0), "last": np.asarray(-1)})
    feeds = {n: noise(3, 2, seed=i) for i, n in enumerate("abc")}
    agrees(proto, feeds, {n: v[:1] for n, v in feeds.items()})


@pytest.mark.parametrize(("parts", "keep"), [(None, 1), (None, 0), (np.asarray(2), 1), (ints(1, 4), 1)])
def test_tensors_become_sequences(parts: np.ndarray | None, keep: int) -> None:
    nodes = [node("SplitToSequence", "x" + ",p" * (parts is not None), "s", axis=1, keepdims=keep),
             node("SequenceAt", "s,place")]
    proto = model(nodes, {"x": [2, 5]}, "y", {"place": np.asarray(1), **({} if parts is None else {"p": parts})})
    agrees(proto, {"x": noise(2, 5)})


def test_sequences_grow_in_loops() -> None:
    body = [node("SequenceInsert", "a,x", "out"), node("Identity", "c", "goes")]
    nodes = [node("SequenceEmpty", "", "s"), loop(body, 1, "goes,out", "trips,true,s", "t"),
             node("ConcatFromSequence", "t", axis=0)]
    proto = model(nodes, {"x": ["n"]}, "y", {"trips": np.asarray(3), "true": TRUE})
    assert np.array_equal(computed(import_onnx(proto), {"x": noise(2)})[0], np.tile(noise(2), 3))


def test_optional_values() -> None:
    nodes = [node("Optional", "x", "o"), node("OptionalHasElement", "o", "h"), node("OptionalGetElement", "o", "v"),
             choice("h", branch(node("Relu", "v", "z")), branch(node("Neg", "v", "z")))]
    imported = import_onnx(model(nodes, {"x": [3]}))
    assert operations(imported) == ["relax.nn.relu"]


def test_a_sequence_as_a_result_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="a sequence"):
        import_onnx(model([node("SequenceConstruct", "x,x")], {"x": [3]}))
