"""Softmax, norms and reductions against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.rows import build_rows
from narrowcast.backends.cpu.scan import Shape, are_neighbours
from narrowcast.backends.target import Target
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, execute, group_of, stored

op, nn = relax.op, relax.op.nn
U8 = Storage("uint8", QParams(0.05, 120))
STORAGES = [FLOAT32, BFLOAT16, U8]
TARGETS = [NATIVE, pytest.param(Target("haswell", 2), marks=pytest.mark.isa("avx2"))]
EPS = float(np.finfo(np.float32).eps)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(np.float32)


def run(kind: str, arrays: Sequence[np.ndarray], make: Callable[..., relax.Expr], storage: Storage = FLOAT32,
        target: Target = NATIVE, output: Storage = FLOAT32) -> tuple[list[torch.Tensor], np.ndarray]:
    """The inputs as stored, in float64, and the output of ``2 * make(inputs)``."""
    def body(b: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        return b.emit(op.multiply(b.emit(make(*p), "layer"), relax.const(np.float32(2))), "double")

    inputs = [stored(a, storage) for a in arrays]
    group = group_of(kind, [a.shape for a in arrays], body)
    request = KernelRequest(group, Precision.FP32, (storage,) * len(inputs), (output,))
    return [torch.tensor(a.astype(np.float64)) for a in inputs], execute(build_rows, request, inputs, target)[0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
@pytest.mark.parametrize(("shape", "axis"), [((3, 5, 77), -1), ((6, 128), -1), ((2, 9, 33), 1), ((2, 5, 3, 4), 1),
                                             ((33,), 0), ((4, 1), 1)])
def test_softmax(shape: tuple[int, ...], axis: int, storage: Storage, target: Target) -> None:
    (x,), actual = run("softmax", [random(*shape)], lambda v: nn.softmax(v, axis), storage, target)
    expected = 2 * functional.softmax(x, axis).numpy()
    # exp: 2 ulp and the rounding of its argument, at most 16; the sum: one rounding per vector and halving
    assert np.max(np.abs(actual - expected) / expected) <= (2 + 16 + 10) * EPS


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
@pytest.mark.parametrize(("shape", "axis"), [((3, 77), -1), ((2, 9, 33), 1)])
def test_log_softmax(shape: tuple[int, ...], axis: int, storage: Storage) -> None:
    (x,), actual = run("softmax", [random(*shape)], lambda v: nn.log_softmax(v, axis), storage)
    np.testing.assert_allclose(actual, 2 * functional.log_softmax(x, axis).numpy(), rtol=0, atol=64 * EPS)


def test_softmax_of_masked_and_large_scores() -> None:
    x = np.array([[1e4, 1e4, -np.inf], [-1e9, 0.0, 1.0], [-np.inf, -np.inf, 3.0]], np.float32)
    (y,), actual = run("softmax", [x], lambda v: nn.softmax(v, -1))
    np.testing.assert_allclose(actual, 2 * functional.softmax(y, -1).numpy(), rtol=1e-6, atol=1e-37)


NORMS = [((3, 5, 77), (77,)), ((4, 384), (384,)), ((2, 5, 3, 7), (5, 3, 7)), ((2, 5, 1), (1,))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
@pytest.mark.parametrize(("shape", "normal"), NORMS)
def test_layer_norm(shape: tuple[int, ...], normal: tuple[int, ...], storage: Storage, target: Target) -> None:
    gamma, beta = random(*normal, seed=1), random(*normal, seed=2)
    axes = list(range(len(shape) - len(normal), len(shape)))
    (x,), actual = run("layer_norm", [random(*shape) + 1], lambda v: nn.layer_norm(
        v, relax.const(gamma), relax.const(beta), axes, 1e-5), storage, target)
    expected = 2 * functional.layer_norm(x, normal, torch.tensor(gamma).double(), torch.tensor(beta).double()).numpy()
    # x - mean loses up to |x|max / sigma of relative precision; sums of n elements
    assert np.max(np.abs(actual - expected)) <= 64 * EPS * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
def test_norms_with_weights_that_are_inputs(storage: Storage) -> None:
    arrays = [random(3, 77), random(77, seed=1), random(77, seed=2)]
    (x, g, b), actual = run("layer_norm", arrays, lambda x, g, b: nn.layer_norm(x, g, b, [-1], 1e-5), storage)
    expected = 2 * functional.layer_norm(x, (77,), g, b).numpy()
    assert np.max(np.abs(actual - expected)) <= 64 * EPS * np.abs(expected).max()


@pytest.mark.parametrize(("shape", "normal"), NORMS)
def test_rms_norm(shape: tuple[int, ...], normal: tuple[int, ...]) -> None:
    gamma = random(*normal, seed=1)
    axes = list(range(len(shape) - len(normal), len(shape)))
    (x,), actual = run("rms_norm", [random(*shape)], lambda v: nn.rms_norm(v, relax.const(gamma), axes, 1e-5))
    expected = 2 * functional.rms_norm(x, normal, torch.tensor(gamma).double(), 1e-5).numpy()
    np.testing.assert_allclose(actual, expected, rtol=32 * EPS)


REDUCE = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax, "min": torch.amin}


def check_reduce(name: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: bool, storage: Storage = FLOAT32,
                 target: Target = NATIVE) -> None:
    (x,), actual = run("reduce", [random(*shape)], lambda v: getattr(op, name)(v, list(axes), keep), storage, target)
    expected = 2 * REDUCE[name](x, axes, keep).numpy()
    assert actual.shape == expected.shape
    n = int(np.prod([shape[a] for a in axes]))
    size = 2 * torch.sum(x.abs(), axes, keep).numpy() / (1 if name == "sum" else n)
    bound = (n + 4) * EPS * size if name in ("sum", "mean") else 0.0 * size
    assert np.all(np.abs(actual - expected) <= bound)


@pytest.mark.parametrize("name", REDUCE)
@pytest.mark.parametrize(("shape", "axes", "keep"), [
    ((3, 5, 77), (2,), False), ((2, 7, 7, 40), (1, 2), True), ((2, 7, 7, 33), (1,), False),
    ((2, 7, 3, 33), (1, 2, 3), False), ((5, 6), (0, 1), False), ((2, 3, 4), (0, 2), True), ((2, 3, 1), (2,), True)])
def test_reduce(name: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> None:
    check_reduce(name, shape, axes, keep)


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
@pytest.mark.parametrize("target", TARGETS)
def test_reduce_of_every_storage(storage: Storage, target: Target) -> None:
    for axes in ((2,), (1,)):
        check_reduce("mean", (3, 5, 37), axes, True, storage, target)


@pytest.mark.parametrize("output", [BFLOAT16, U8], ids=lambda s: s.dtype)
@pytest.mark.parametrize("axis", [1, 2])
def test_reduced_values_are_stored_in_any_storage(axis: int, output: Storage) -> None:
    (x,), actual = run("reduce", [random(3, 5, 37)], lambda v: op.max(v, [axis]), output=output)
    np.testing.assert_array_equal(actual, stored((2 * x.amax(axis)).float().numpy(), output))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4).flatmap(lambda s: st.tuples(
    st.just(tuple(s)), st.sets(st.integers(0, len(s) - 1), min_size=1), st.booleans())))
def test_any_axes(case: tuple[tuple[int, ...], set[int], bool]) -> None:
    shape, axes, keep = case
    check_reduce("sum", shape, tuple(sorted(axes)), keep)


@pytest.mark.parametrize(("shape", "axes"), [((0, 3, 4), (0, 2)), ((3, 0, 4), (1,)), ((2, 5, 0), (2,)), ((0, 5), (0,))])
def test_of_nothing(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """The sum is 0, the mean is not a number."""
    for name in ("sum", "mean"):
        (x,), actual = run("reduce", [random(*shape)], lambda v, name=name: getattr(op, name)(v, list(axes), False))
        np.testing.assert_array_equal(actual, REDUCE[name](x, axes, False).numpy())


def test_nan_is_not_lost_by_a_maximum() -> None:
    x = random(2, 50)
    x[0, 20] = np.nan
    _, actual = run("reduce", [x], lambda v: op.max(v, [1]))
    assert np.isnan(actual[0]) and not np.isnan(actual[1])


def test_on_all_threads() -> None:
    check_reduce("sum", (64, 1000), (1,), False)
    check_reduce("max", (4, 100, 100), (1,), False)


def test_views() -> None:
    assert Shape.of((2, 7, 7, 40), (1, 2)) == Shape(2, 49, 40, 40)
    assert Shape.of((3, 5, 77), (2,)) == Shape(15, 77, 1, 77)
    assert Shape.of((2, 5, 3, 4), (1,)) == Shape(2, 5, 12, 4)
    assert are_neighbours((2, 3, 4), (1, 2)) and not are_neighbours((2, 3, 4), (0, 2))
    assert are_neighbours((2, 1, 4), (0, 2))
