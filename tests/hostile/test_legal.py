"""Models that look hostile and are legal, and inputs that are: right values where the operator defines them, and never
a crash."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowcast as nc

from .building import call, floats, function, graph_of, image, ints, model, node, real, with_functions
from .limits import bounded

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
NAN, INF = float("nan"), float("inf")
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], np.ndarray]] = {}


def legal(expected: np.ndarray) -> Callable[[Callable[[], onnx.ModelProto]], Callable[[], onnx.ModelProto]]:
    def enter(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
        MODELS[make.__name__] = make, expected
        return make
    return enter


@legal(X)
def output_that_is_the_input() -> onnx.ModelProto:
    return helper.make_model(graph_of([], [2, 3], ["x"]), opset_imports=[helper.make_opsetid("", 20)])


@legal(floats(4))
def output_that_is_a_weight() -> onnx.ModelProto:
    return model(y=floats(4))


@legal(np.maximum(X, 0))
def output_named_twice() -> onnx.ModelProto:
    result = model(node("Relu", "x"))
    result.graph.output.append(result.graph.output[0])
    return result


@legal(X + 200)
def nodes_in_reverse() -> onnx.ModelProto:
    nodes = [node("Add", f"v{i}" if i else "x", f"v{i + 1}") for i in range(200)]
    for added in nodes:
        added.input.append("one")
    return model(node("Identity", "v200"), *reversed(nodes), one=np.float32(1))


@legal(X * 400)
def sum_of_four_hundred() -> onnx.ModelProto:
    return model(node("Sum", ",".join(["x"] * 400)))


@legal(np.concatenate([X] * 300, axis=1))
def joined_three_hundred_times() -> onnx.ModelProto:
    return model(node("Concat", ",".join(["x"] * 300), axis=1))


@legal(np.full((2, 3), NAN, np.float32))
def weights_that_are_no_numbers() -> onnx.ModelProto:
    return model(node("Add", "x,w"), w=real(NAN, NAN, NAN))


@legal(np.full((2, 3), INF, np.float32))
def infinite_weights() -> onnx.ModelProto:
    return model(node("Add", "x,w"), w=real(INF, INF, INF))


@legal(np.full((2, 3), NAN, np.float32))
def negative_variance() -> onnx.ModelProto:
    return model(node("BatchNormalization", "x,a,a,a,v"), a=floats(3), v=-floats(3))


@legal(np.full((2, 3), 1, np.float32))
def bounds_the_wrong_way_round() -> onnx.ModelProto:
    return model(node("Clip", "x,low,high"), low=np.float32(5), high=np.float32(1))


@legal(np.zeros((0, 3), np.float32))
def slice_of_nothing() -> onnx.ModelProto:
    return model(node("Slice", "x,a,b"), a=ints(2 ** 62), b=ints(2 ** 63 - 1))


@legal(X[::-1])
def slice_backwards_from_infinity() -> onnx.ModelProto:
    return model(node("Slice", "x,a,b,c,d"), a=ints(2 ** 63 - 1), b=ints(-2 ** 63), c=ints(0), d=ints(-1))


@legal(X[:, 1:2])
def padding_that_cuts() -> onnx.ModelProto:
    return model(node("Pad", "x,p"), p=ints(0, -1, 0, -1))


@legal(X[[1, 1]])
def negative_indices() -> onnx.ModelProto:
    return model(node("Gather", "x,i"), i=ints(-1, 1))


@legal(np.maximum(X, 0))
def branch_that_is_never_taken() -> onnx.ModelProto:
    """The other branch has no such operator."""
    graphs = {name: helper.make_graph([node(op, "x", "z")], name, [], [onnx.ValueInfoProto(name="z")])
              for name, op in (("then_branch", "Relu"), ("else_branch", "Frobnicate"))}
    return model(node("If", "c", "y", **graphs), c=np.asarray(True))


@legal(X)
def loop_that_never_runs() -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["v"], ["w"])], "body",
        [helper.make_tensor_value_info(n, k, []) for n, k in (("i", TensorProto.INT64), ("go", TensorProto.BOOL))]
        + [helper.make_tensor_value_info("v", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []),
         helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 3])])
    return model(node("Loop", "m,,x", "y", body=body), m=ints(-2 ** 63))


@legal(X * 2)
def weight_that_is_an_input_too() -> onnx.ModelProto:
    result = model(node("Mul", "x,w"), w=np.float32(2))
    result.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, []))
    return result


@legal(X + 1)
def names_of_later_bindings() -> onnx.ModelProto:
    """One name three times, and the names that would tell them apart."""
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="n"), helper.make_node("Neg", ["a"], ["b"], name="n.1"),
             helper.make_node("Add", ["b", "one"], ["y"], name="n")]
    return model(*nodes, one=np.float32(1))


@legal(np.zeros((2, 3), np.float32))
def quantities_too_small_to_be_normal() -> onnx.ModelProto:
    return model(node("Mul", "x,w", "a"), node("Mul", "a,w"), w=real(1e-38, 1e-38, 1e-38))


@pytest.mark.parametrize("name", MODELS)
def test_values(name: str) -> None:
    make, expected = MODELS[name]
    with bounded():
        program = nc.compile(make(), num_threads=1)
        found = program(X) if program.inputs else program()
    for result in found if isinstance(found, (list, tuple)) else [found]:
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)


def test_thirty_functions_deep() -> None:
    functions = [function(f"f{i}", [call(f"f{i + 1}", "a", "b")]) for i in range(29)]
    functions.append(function("f29", [helper.make_node("Neg", ["a"], ["b"])]))
    program = nc.compile(with_functions([call("f0", "x", "y")], functions), num_threads=1)
    np.testing.assert_array_equal(program(real(1, 2)), -real(1, 2))


# Inputs --------------------------------------------------------------------------------------------------------------

LOWEST, HIGHEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def two_inputs(op: str, kind: int, shape: list[int], **attributes: object) -> nc.Program:
    result = model(node(op, "x,z", **attributes), shape=shape, kind=kind)
    result.graph.input.append(helper.make_tensor_value_info("z", kind, shape))
    return nc.compile(result, num_threads=1)


def test_integers_without_a_quotient() -> None:
    """By 0 is left undefined by ONNX; here a number is itself. The least one by -1 wraps around."""
    a, b = np.int32([7, -7, LOWEST, HIGHEST, LOWEST, 0]), np.int32([0, 0, -1, -1, 0, 0])
    np.testing.assert_array_equal(two_inputs("Div", TensorProto.INT32, [6])(a, b), [7, -7, LOWEST, -HIGHEST, LOWEST, 0])
    np.testing.assert_array_equal(two_inputs("Mod", TensorProto.INT32, [6])(a, b), [0] * 6)


def test_shifts_beyond_the_width() -> None:
    program = two_inputs("BitShift", TensorProto.UINT8, [4], direction="LEFT")
    assert program(np.uint8([1, 1, 255, 1]), np.uint8([1, 7, 4, 200]))[:3].tolist() == [2, 128, 240]


def test_indices_far_outside() -> None:
    result = model(node("Gather", "w,x"), shape=[5], kind=TensorProto.INT64, w=np.arange(8, dtype=np.float32))
    found = nc.compile(result, num_threads=1)(ints(3, -1, 2 ** 62, -2 ** 63, 10 ** 12))
    assert found[:2].tolist() == [3, 7] and np.isin(found, np.arange(8)).all()


def test_places_far_outside_and_nowhere() -> None:
    """GridSample reads zeros around the image, and some pixel or none where the place is no number."""
    result = image(node("GridSample", "x,g"), channels=1, size=4)
    result.graph.input.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [1, 1, 5, 2]))
    program = nc.compile(result, num_threads=1)
    grid = np.float32([[0, 0], [1e30, 0], [INF, -INF], [NAN, NAN], [-3e9, 3e9]]).reshape(1, 1, 5, 2)
    found = program(np.ones((1, 1, 4, 4), np.float32), grid)
    assert found.shape == (1, 1, 1, 5) and found[0, 0, 0, 0] == 1 and found[0, 0, 0, 1] == 0


def test_order_of_what_has_none() -> None:
    """Half of the elements are no numbers; sorting takes them without reading beyond the ends."""
    result = model(node("TopK", "x,k", "y,i"), shape=[20_000], k=ints(20_000))
    result.graph.output.append(onnx.ValueInfoProto(name="i"))
    x = np.random.default_rng(0).standard_normal(20_000, dtype=np.float32)
    x[::2] = NAN
    _, index = nc.compile(result, num_threads=1)(x)
    assert sorted(index.tolist()) == list(range(20_000))


def test_numbers_that_no_integer_is() -> None:
    result = model(node("Cast", "x", to=TensorProto.INT32), shape=[5])
    assert nc.compile(result, num_threads=1)(real(2.9, NAN, INF, -INF, 1e30))[0] == 2


def test_activations_of_extremes() -> None:
    nodes = [node(op, "x", op.lower()) for op in ("Sigmoid", "Tanh", "Softplus", "Erf", "Gelu", "Mish", "Exp")]
    result = model(*nodes, shape=[6])
    del result.graph.output[:]
    result.graph.output.extend(onnx.ValueInfoProto(name=n.output[0]) for n in nodes)
    found = nc.compile(result, num_threads=1)(real(INF, -INF, NAN, 3e38, -3e38, 1e-45))
    assert [f[[0, 3]].tolist() for f in found[:4]] == [[1, 1], [1, 1], [INF, np.float32(3e38)], [1, 1]]
    assert [f[[1, 4]].tolist() for f in found[:4]] == [[0, 0], [-1, -1], [0, 0], [-1, -1]]
    assert all(np.isnan(f[2]) for f in found)


def test_initializers_of_every_width_are_read_as_they_are() -> None:
    """Three elements of four bits are two bytes; the last half byte is not read."""
    result = model(node("DequantizeLinear", "q,s", "d"), node("Add", "x,d"), opset=21, s=np.float32(1))
    result.graph.initializer.append(TensorProto(name="q", dims=[3], data_type=TensorProto.INT4, raw_data=b"\xf1\xf7"))
    assert numpy_helper.to_array(result.graph.initializer[1]).astype(int).tolist() == [1, -1, 7]
    np.testing.assert_array_equal(nc.compile(result, num_threads=1)(X), X + real(1, -1, 7))


def test_keys_and_values_that_are_known() -> None:
    """Found by fuzzing: they are results of attention too, whether somebody reads them or not."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, n, 8), dtype=np.float32) for n in (4, 6, 6))
    result = model(node("Attention", "x,k,v", "y,,z"), shape=(2, 3, 4, 8), opset=23, k=k, v=v)
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(8)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = weights / weights.sum(axis=-1, keepdims=True) @ v
    np.testing.assert_allclose(nc.compile(result, num_threads=1)(q), expected, atol=1e-5)
    result.graph.output.append(onnx.ValueInfoProto(name="z"))
    np.testing.assert_array_equal(nc.compile(result, num_threads=1)(q)[1], v)


@pytest.mark.parametrize("shape", [("n", 0), (0, "n"), (0, 3), ("n", 0, 3)])
@pytest.mark.parametrize("op", ["Neg", "Add", "Softmax", "MatMul", "Transpose"])
def test_tensors_without_elements(op: str, shape: tuple[int | str, ...]) -> None:
    """Found by fuzzing: kernels divided by such extents. A product over nothing is 0."""
    x = np.zeros([d if isinstance(d, int) else 3 for d in shape], np.float32)
    other = {"Add": floats(1), "MatMul": floats(x.shape[-1], 2)}.get(op)
    result = model(node(op, "x" if other is None else "x,w"), shape=shape, **({} if other is None else {"w": other}))
    expected = {"MatMul": lambda: x @ other, "Transpose": lambda: x.T}.get(op, lambda: x)()
    found = nc.compile(result, num_threads=1)(x)
    assert found.shape == expected.shape and not found.any()
