"""Movement kernels against NumPy and PyTorch, on every storage: what is stored moves unchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.movement import build_movement
from narrowcast.backends.target import Target
from narrowcast.errors import UnsupportedOperatorError
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, execute, group_of, stored

U8 = Storage("uint8", QParams(0.05, 120))
STORAGES = [FLOAT32, BFLOAT16, U8]
Op = Callable[..., relax.Expr]
op, nn = relax.op, relax.op.nn


def run(shapes: list[tuple[int, ...]], ops: list[Op], storage: Storage,
        target: Target = NATIVE) -> tuple[list[np.ndarray], np.ndarray]:
    """A chain of operators; the first reads all inputs. Returns the inputs as stored, and the output."""
    def body(b: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        var = b.emit(ops[0](*p), "layer")
        for i, step in enumerate(ops[1:]):
            var = b.emit(step(var), f"step{i}")
        return var

    group = group_of("movement", shapes, body)
    rng = np.random.default_rng(0)
    arrays = [stored((rng.standard_normal(s) * 2).astype(np.float32), storage) for s in shapes]
    request = KernelRequest(group, Precision.FP32, (storage,) * len(shapes), (storage,))
    return arrays, execute(build_movement, request, arrays, target)[0]


CASES: dict[str, tuple[list[tuple[int, ...]], list[Op], Callable[..., np.ndarray]]] = {
    "reshape": ([(3, 50, 70)], [lambda x: op.reshape(x, (150, 70))], lambda x: x.reshape(150, 70)),
    "long reshape": ([(40, 1003)], [lambda x: op.flatten(x)], lambda x: x.reshape(-1)),
    "transpose": ([(3, 40, 70)], [lambda x: op.permute_dims(x, [2, 0, 1])], lambda x: x.transpose(2, 0, 1)),
    "swap rows": ([(2, 9, 4, 33)], [lambda x: op.permute_dims(x, [0, 2, 1, 3])], lambda x: x.transpose(0, 2, 1, 3)),
    "slice": ([(3, 5, 70)], [lambda x: op.strided_slice(x, [1, 2], [1, 3], [5, 66], [2, 1])],
              lambda x: x[:, 1:5:2, 3:66]),
    "slice by 3": ([(3, 50)], [lambda x: op.strided_slice(x, [1], [-48], [100], [3])], lambda x: x[:, 2:50:3]),
    "concat": ([(3, 5, 7), (3, 2, 7)], [lambda x, y: op.concat([x, y], 1)], lambda x, y: np.concatenate([x, y], 1)),
    "concat last": ([(3, 5), (3, 90)], [lambda x, y: op.concat([x, y], -1)], lambda x, y: np.concatenate([x, y], 1)),
    "concat twice": ([(3, 5)], [lambda x: op.concat([x, x], 1)], lambda x: np.concatenate([x, x], 1)),
    "stack": ([(3, 5), (3, 5)], [lambda x, y: op.stack([x, y], 1)], lambda x, y: np.stack([x, y], 1)),
    "broadcast rows": ([(3, 1, 70)], [lambda x: op.broadcast_to(x, (3, 4, 70))], lambda x: np.tile(x, (1, 4, 1))),
    "broadcast last": ([(3, 7, 1)], [lambda x: op.broadcast_to(x, (3, 7, 99))], lambda x: np.tile(x, (1, 1, 99))),
    "tile": ([(3, 7)], [lambda x: op.tile(x, (2, 3))], lambda x: np.tile(x, (2, 3))),
    "repeat": ([(3, 7)], [lambda x: op.repeat(x, 3, 0)], lambda x: np.repeat(x, 3, 0)),
    "flip": ([(3, 7)], [lambda x: op.flip(x, 1)], lambda x: x[:, ::-1]),
    "pad": ([(1, 6, 7, 5)], [lambda x: nn.pad(x, (0, 0, 1, 2, 3, 0, 0, 0))],
            lambda x: np.pad(x, ((0, 0), (1, 2), (3, 0), (0, 0)))),
    "chain": ([(3, 50, 7)], [lambda x: op.permute_dims(x, [0, 2, 1]), lambda x: op.reshape(x, (3, 350)),
                             lambda x: op.expand_dims(x, 0)], lambda x: x.transpose(0, 2, 1).reshape(1, 3, 350)),
    "transpose back": ([(3, 5, 7)], [lambda x: op.permute_dims(x, [2, 1, 0]), lambda x: op.permute_dims(x, [2, 1, 0])],
                       lambda x: x),
    "slice, reshape, transpose": (
        [(4, 6, 8)], [lambda x: op.strided_slice(x, [1], [0], [5]), lambda x: op.reshape(x, (20, 8)),
                      lambda x: op.permute_dims(x)], lambda x: x[:, :5].reshape(20, 8).T),
}


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
@pytest.mark.parametrize("name", CASES)
def test_operators(name: str, storage: Storage) -> None:
    shapes, ops, reference = CASES[name]
    inputs, actual = run(shapes, ops, storage)
    np.testing.assert_array_equal(actual, reference(*inputs))


@pytest.mark.isa("avx2")
@pytest.mark.parametrize("name", ["transpose", "slice", "concat last", "pad", "broadcast last"])
def test_on_avx2(name: str) -> None:
    shapes, ops, reference = CASES[name]
    inputs, actual = run(shapes, ops, U8, Target("haswell", 2))
    np.testing.assert_array_equal(actual, reference(*inputs))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4).flatmap(
    lambda s: st.tuples(st.just(tuple(s)), st.permutations(range(len(s))))))
def test_any_transpose(case: tuple[tuple[int, ...], list[int]]) -> None:
    shape, axes = case
    inputs, actual = run([shape], [lambda x: op.permute_dims(x, axes)], FLOAT32)
    np.testing.assert_array_equal(actual, inputs[0].transpose(axes))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)), st.permutations(range(3)), st.sampled_from(["concat", "stack", "pad", "tile"]),
       st.booleans())
def test_a_copy_is_written_in_the_order_that_follows(axes: list[int], last: list[int], name: str, flat: bool) -> None:
    """Joins, then a transpose, a reshape and another transpose: the joins write where the elements end up."""
    joins: dict[str, tuple[Op, Callable[..., np.ndarray]]] = {
        "concat": (lambda x, y: op.concat([x, y], 1), lambda x, y: np.concatenate([x, y], 1)),
        "stack": (lambda x, y: op.stack([x, y], 1), lambda x, y: np.stack([x, y], 1)),
        "pad": (lambda x, y: nn.pad(x, (0, 0, 1, 2, 0, 3, 0, 0)),
                lambda x, y: np.pad(x, ((0, 0), (1, 2), (0, 3), (0, 0)))),
        "tile": (lambda x, y: op.tile(x, (1, 2, 1, 3)), lambda x, y: np.tile(x, (1, 2, 1, 3))),
    }
    emit, reference = joins[name]
    shape = (2, 3, 5, 4) if name != "stack" else (2, 5, 4)
    joined = reference(np.zeros(shape), np.zeros(shape)).transpose(axes)
    merged = (joined.shape[0] * joined.shape[1], *joined.shape[2:]) if flat else (*joined.shape[:2], -1)
    inputs, actual = run([shape, shape], [emit, lambda x: op.permute_dims(x, axes), lambda x: op.reshape(x, merged),
                                          lambda x: op.permute_dims(x, last)], FLOAT32)
    np.testing.assert_array_equal(actual, reference(*inputs).transpose(axes).reshape(merged).transpose(last))


def max_pool(x: np.ndarray, *args: object, **options: object) -> np.ndarray:
    y = torch.nn.functional.max_pool2d(torch.tensor(x).permute(0, 3, 1, 2), *args, **options)  # type: ignore[arg-type]
    return y.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("target", [NATIVE, pytest.param(Target("haswell", 2), marks=pytest.mark.isa("avx2"))])
@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
def test_max_pool_and_what_follows(storage: Storage, target: Target) -> None:
    inputs, actual = run([(2, 13, 12, 70)], [lambda x: nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), layout="NHWC"),
                                             lambda x: op.reshape(x, (2, -1))], storage, target)
    np.testing.assert_array_equal(actual, max_pool(inputs[0], 3, 2, 1).reshape(2, -1))


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.dtype)
def test_max_pool_with_dilation_and_ceil_mode(storage: Storage) -> None:
    inputs, actual = run([(2, 13, 12, 7)], [lambda x: nn.max_pool2d(
        x, (3, 2), (2, 2), (1, 1), (1, 2), ceil_mode=True, layout="NHWC")], storage)
    np.testing.assert_array_equal(actual, max_pool(inputs[0], (3, 2), 2, 1, (1, 2), ceil_mode=True))


def test_padding_never_wins_a_max_pool() -> None:
    x = np.full((1, 2, 2, 3), -5.0, np.float32)
    group = group_of("movement", [x.shape], lambda b, p: b.emit(
        nn.max_pool2d(p[0], (3, 3), (1, 1), (1, 1), layout="NHWC"), "layer"))
    for storage in STORAGES:
        request = KernelRequest(group, Precision.FP32, (storage,), (storage,))
        np.testing.assert_array_equal(execute(build_movement, request, [x])[0], x)


def test_an_operator_that_computes_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"layer: .*only move.*\n.*relax\.tan"):
        run([(2, 2)], [op.tan], FLOAT32)
