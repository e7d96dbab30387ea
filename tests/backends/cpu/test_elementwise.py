"""Elementwise kernels, and with them the epilogue: operators, broadcasting, storages, tails, threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.elementwise import build_elementwise
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Target
from narrowcast.errors import UnsupportedOperatorError
from narrowcast.operators.custom import fake_quantize, hard_sigmoid, hard_swish
from narrowcast.operators.quantization import Grid, sum_factors
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, execute, group_of, stored

U8 = Storage("uint8", QParams(0.05, 120))
TARGETS = [NATIVE, pytest.param(Target("haswell", 2), marks=pytest.mark.isa("avx2"))]
EPS = float(np.finfo(np.float32).eps)


def unary(op: Callable[[relax.Var], relax.Expr], shape: tuple[int, ...] = (3, 37)) -> ir.Group:
    return group_of("elementwise", [shape], lambda b, p: b.emit(op(p[0]), "layer"))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(np.float32)


def request(group: ir.Group, *outputs: Storage, inputs: tuple[Storage, ...] | None = None) -> KernelRequest:
    inputs = inputs or (FLOAT32,) * len(group.inputs)
    return KernelRequest(group, Precision.FP32, inputs, outputs or (FLOAT32,))


def selu(x: np.ndarray) -> np.ndarray:
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))


nn = relax.op.nn
OPERATORS: dict[str, tuple[Callable[[relax.Var], relax.Expr], Callable[[np.ndarray], np.ndarray]]] = {
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "clip": (lambda x: relax.op.clip(x, 0, 6), lambda x: np.clip(x, 0, 6)),
    "leakyrelu": (lambda x: nn.leakyrelu(x, 0.1), lambda x: np.where(x < 0, 0.1 * x, x)),
    "prelu": (lambda x: nn.prelu(x, relax.const(np.array([0.1, 0.2, 0.3], np.float32)), 0),
              lambda x: np.where(x < 0, np.array([[0.1], [0.2], [0.3]]) * x, x)),
    "sigmoid": (relax.op.sigmoid, special.expit),
    "tanh": (relax.op.tanh, np.tanh),
    "silu": (nn.silu, lambda x: x * special.expit(x)),
    "gelu": (nn.gelu, lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2)))),
    "gelu_tanh": (nn.gelu_tanh, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))),
    "erf": (relax.op.erf, special.erf),
    "exp": (relax.op.exp, np.exp),
    "log": (relax.op.log, np.log),
    "sqrt": (relax.op.sqrt, np.sqrt),
    "rsqrt": (relax.op.rsqrt, lambda x: 1 / np.sqrt(x)),
    "abs": (relax.op.abs, np.abs),
    "negative": (relax.op.negative, np.negative),
    "square": (relax.op.square, np.square),
    "sign": (relax.op.sign, np.sign),
    "sin": (relax.op.sin, np.sin),
    "cos": (relax.op.cos, np.cos),
    "tan": (relax.op.tan, np.tan),
    "asin": (relax.op.asin, np.arcsin),
    "acos": (relax.op.acos, np.arccos),
    "atan": (relax.op.atan, np.arctan),
    "sinh": (relax.op.sinh, np.sinh),
    "cosh": (relax.op.cosh, np.cosh),
    "asinh": (relax.op.asinh, np.arcsinh),
    "acosh": (relax.op.acosh, np.arccosh),
    "atanh": (relax.op.atanh, np.arctanh),
    "floor": (relax.op.floor, np.floor),
    "ceil": (relax.op.ceil, np.ceil),
    "round": (relax.op.round, np.rint),
    "trunc": (relax.op.trunc, np.trunc),
    "softplus": (lambda x: nn.softplus(x, 2.0, 20.0), lambda x: np.logaddexp(0, 2 * x) / 2),
    "selu": (nn.selu, selu),
    "hard_swish": (hard_swish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "hard_sigmoid": (hard_sigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    "power": (lambda x: relax.op.power(x, relax.const(3.0, "float32")), lambda x: x ** 3),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    op, reference = OPERATORS[name]
    x = random(3, 37)
    x[0, :4] = [0.5, 1.5, -0.5, 0.0]
    x = np.abs(x) if name in ("log", "sqrt", "rsqrt") else x
    actual, = execute(build_elementwise, request(unary(op)), [x])
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = reference(x.astype(np.float64))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    # a few roundings of values up to |x| and |f(x)|
    bound = 8 * EPS * (np.abs(expected) + np.minimum(np.abs(x), 1))
    assert np.all(np.abs(actual[finite] - expected[finite]) <= bound[finite])


@pytest.mark.parametrize("target", TARGETS)
def test_operands_of_every_storage_and_every_broadcast(target: Target) -> None:
    """A tree: a value that is used twice, last-axis, first-axis and general operands, constants."""
    vector, scalar = random(1, 37, seed=5), np.float32(0.25)

    def body(b: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        s = b.emit(relax.op.add(p[0], p[1]), "layer")
        t = b.emit(relax.op.multiply(s, relax.const(vector)), "scale")
        u = b.emit(relax.op.maximum(t, p[2]), "max")
        w = b.emit(relax.op.subtract(u, s), "sub")
        return b.emit(relax.op.divide(w, relax.const(scalar)), "div")

    shapes = [(4, 5, 3, 37), (4, 1, 3, 37), (5, 1, 1)]
    storages = (BFLOAT16, U8, FLOAT32)
    arrays = [random(*s, seed=i) for i, s in enumerate(shapes)]
    actual = execute(build_elementwise, request(group_of("elementwise", shapes, body), inputs=storages), arrays, target)
    x, y, z = (stored(a, s).astype(np.float64) for a, s in zip(arrays, storages, strict=True))
    expected = (np.maximum((x + y) * vector, z) - (x + y)) / scalar
    assert np.max(np.abs(actual[0] - expected)) <= 8 * EPS * np.max(np.abs(expected))


@pytest.mark.parametrize("target", TARGETS)
def test_several_outputs_are_conversions_of_one_value(target: Target) -> None:
    group = unary(relax.op.negative, (7, 19))
    x = random(7, 19) * 3
    x[0, :3] = [np.inf, -np.inf, 1e30]
    full, half, quantized = execute(build_elementwise, request(group, FLOAT32, BFLOAT16, U8), [x], target)
    np.testing.assert_array_equal(full, -x)
    np.testing.assert_array_equal(half, stored(-x, BFLOAT16))
    np.testing.assert_array_equal(quantized, stored(-x, U8))


@pytest.mark.parametrize("storage", [FLOAT32, BFLOAT16])
def test_nan_passes(storage: Storage) -> None:
    x = np.array([[np.nan, 1.0, -1.0]], np.float32)
    for op in (nn.relu, nn.gelu, lambda v: relax.op.clip(v, 0, 6), lambda v: relax.op.maximum(v, v)):
        actual, = execute(build_elementwise, request(unary(op, (1, 3)), storage), [x])
        assert np.isnan(actual[0, 0]) and not np.isnan(actual[0, 1:]).any()


@pytest.mark.parametrize("shape", [(), (1,), (5,), (100003,), (3, 20011), (40000, 1), (2, 1, 3)])
def test_shapes_and_threads(shape: tuple[int, ...]) -> None:
    """Serial and parallel, with and without tails."""
    x = np.asarray(random(*shape), np.float32)
    actual, = execute(build_elementwise, request(unary(nn.relu, shape)), [x])
    np.testing.assert_array_equal(actual, np.maximum(x, 0))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_any_broadcast(dims: list[tuple[int, bool, bool]]) -> None:
    full = tuple(d for d, _, _ in dims)
    left = tuple(1 if keep else d for d, keep, _ in dims)
    right = tuple(1 if keep else d for d, _, keep in dims)
    shapes = [full, left, right]
    group = group_of("elementwise", shapes, lambda b, p: b.emit(
        relax.op.subtract(b.emit(relax.op.add(p[0], p[1]), "sum"), p[2]), "layer"))
    x, y, z = (random(*s, seed=i) for i, s in enumerate(shapes))
    actual, = execute(build_elementwise, request(group), [x, y, z])
    np.testing.assert_array_equal(actual, (x + y) - z)


def test_comparisons_choose() -> None:
    group = group_of("elementwise", [(3, 21)], lambda b, p: b.emit(
        relax.op.where(b.emit(relax.op.less(p[0], relax.const(np.float32(0.5))), "c"), p[0],
                       relax.const(np.float32(7.0))), "layer"))
    x = random(3, 21)
    actual, = execute(build_elementwise, request(group), [x])
    np.testing.assert_array_equal(actual, np.where(x < 0.5, x, 7.0))


def test_an_operator_without_vector_code_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"layer: no vector code.*\n.*relax\.isnan"):
        execute(build_elementwise, request(unary(relax.op.isnan)), [random(3, 37)])


GRIDS = {"uint8": Grid(0.05, 120, 0, 255), "int8": Grid(0.03, -100, -128, 127), "seven bits": Grid(0.05, 0, 0, 127),
         "int16": Grid(1e-3, 40, -2**15, 2**15 - 1)}


def on_grid(x: np.ndarray, grid: Grid) -> np.ndarray:
    steps = np.rint(x / np.float32(grid.scale)) + grid.zero_point
    return (np.clip(steps, grid.low, grid.high) - grid.zero_point) * np.float32(grid.scale)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_values_are_rounded_to_a_grid(grid: Grid, target: Target) -> None:
    x = np.concatenate([random(111), [0.0, 1e9, -1e9]]).astype(np.float32).reshape(3, 38)
    group = unary(lambda v: fake_quantize(v, **asdict(grid)), (3, 38))
    (rounded,) = execute(build_elementwise, request(group), [x], target)
    np.testing.assert_array_equal(rounded, on_grid(x, grid))
    if grid.qparams is not None:
        both = request(group, FLOAT32, Storage("uint8", grid.qparams))
        for found in execute(build_elementwise, both, [x], target):
            np.testing.assert_allclose(found, rounded, rtol=EPS)
        alone = request(group, Storage("uint8", grid.qparams), inputs=(Storage("uint8", grid.qparams),))
        (found,) = execute(build_elementwise, alone, [x], target)
        np.testing.assert_allclose(found, rounded, rtol=EPS)


def test_a_rounding_before_the_one_that_is_stored() -> None:
    def body(b: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        inner = b.emit(fake_quantize(b.emit(nn.gelu(p[0]), "layer"), **asdict(GRIDS["int8"])), "inner")
        return b.emit(fake_quantize(inner, **asdict(GRIDS["uint8"])), "outer")

    x, storage = random(3, 37), Storage("uint8", GRIDS["uint8"].qparams)
    (found,) = execute(build_elementwise, request(group_of("elementwise", [(3, 37)], body), storage), [x])
    gelu = (0.5 * x * (1 + special.erf(x / np.sqrt(2)))).astype(np.float32)
    expected = on_grid(on_grid(gelu, GRIDS["int8"]), GRIDS["uint8"])
    assert (np.abs(found - expected) > 1e-6).sum() <= 1 and np.abs(found - expected).max() <= 0.051


@pytest.mark.parametrize("outputs", [("uint8",), ("float32",), ("float32", "uint8")], ids=str)
def test_sums_of_tensors_on_grids_are_computed_from_their_levels(outputs: tuple[str, ...]) -> None:
    grid, a, b = GRIDS["int8"], QParams(0.02, 31), QParams(0.047, 0)

    def body(builder: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        return builder.emit(fake_quantize(builder.emit(relax.op.add(p[0], p[1]), "layer"), **asdict(grid)), "round")

    group = group_of("elementwise", [(256, 256)] * 2, body)
    levels = np.meshgrid(np.arange(256), np.arange(256))
    x, y = ((q - p.zero_point) * np.float32(p.scale) for q, p in zip(levels, (a, b), strict=True))
    storages = tuple(Storage(d, grid.qparams if d == "uint8" else None) for d in outputs)
    found = execute(build_elementwise, request(group, *storages, inputs=(Storage("uint8", a), Storage("uint8", b))),
                    [x.astype(np.float32), y.astype(np.float32)])
    first, second, fixed = sum_factors(a, b, grid)
    inner = (levels[1] * second + fixed).astype(np.float32).astype(np.float64)
    expected = np.clip(np.rint((levels[0] * first + inner).astype(np.float32)), 0, 255) + grid.low
    for values in found:
        np.testing.assert_array_equal(np.rint(values / grid.scale) + grid.zero_point, expected)
