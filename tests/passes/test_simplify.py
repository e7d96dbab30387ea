"""Simplify."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from narrowcast.ir import Expr
from narrowcast.passes import Simplify

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, ops_of, weights

op = relax.op

IDENTITIES = {
    "reshape": lambda x: op.reshape(x, (2, 4, 6)),
    "permute": lambda x: op.permute_dims(x, [0, 1, 2]),
    "astype": lambda x: op.astype(x, "float32"),
    "broadcast": lambda x: op.broadcast_to(x, (2, 4, 6)),
    "add": lambda x: op.add(x, const(np.zeros(6))),
    "add left": lambda x: op.add(const(0.0), x),
    "subtract": lambda x: op.subtract(x, const(0.0)),
    "multiply": lambda x: op.multiply(x, const(np.ones((4, 1)))),
    "divide": lambda x: op.divide(x, const(1.0)),
    "power": lambda x: op.power(x, const(1.0)),
    "slice": lambda x: op.strided_slice(x, [1], [0], [4]),
    "pad": lambda x: op.nn.pad(x, [0] * 6),
    "concat": lambda x: op.concat([x], 1),
    "clip": lambda x: op.clip(x, -float("inf"), float("inf")),
}


@pytest.mark.parametrize("form", IDENTITIES.values(), ids=IDENTITIES)
def test_identities_go(form: Callable[[Expr], Expr]) -> None:
    net = Net((2, 4, 6))
    after = apply_checked(Simplify(), net.module(net(op.exp(net(form(net.x))), "exp")))
    assert ops_of(after) == ["exp"]


NO_IDENTITIES = {
    "reshape": lambda x: op.reshape(x, (4, 2, 6)),
    "permute": lambda x: op.permute_dims(x, [0, 2, 1]),
    "add": lambda x: op.add(x, const([0, 0, 0, 0, 0, 1])),
    "add that broadcasts": lambda x: op.add(x, const(np.zeros((3, 1, 1, 1)))),
    "multiply": lambda x: op.multiply(x, const(0.0)),
    "slice": lambda x: op.strided_slice(x, [1], [0], [4], [2]),
    "pad": lambda x: op.nn.pad(x, [0, 0, 0, 0, 0, 1]),
    "clip": lambda x: op.clip(x, -1.0, float("inf")),
}


@pytest.mark.parametrize("form", NO_IDENTITIES.values(), ids=NO_IDENTITIES)
def test_what_changes_something_stays(form: Callable[[Expr], Expr]) -> None:
    net = Net((2, 4, 6))
    assert_unchanged(Simplify(), net.module(net(form(net.x))))


REWRITES = {
    "reshapes in a row": (lambda x: op.reshape(op.expand_dims(op.reshape(x, (8, 6)), 0), (4, 12)),
                          lambda x: op.reshape(x, (4, 12))),
    "permutations in a row": (lambda x: op.permute_dims(op.permute_dims(x, [1, 2, 0]), [1, 0, 2]),
                              lambda x: op.permute_dims(x, [2, 1, 0])),
    "subtraction": (lambda x: op.subtract(x, const(3.0)), lambda x: op.add(x, const(-3.0))),
    "division": (lambda x: op.divide(x, const(8.0)), lambda x: op.multiply(x, const(0.125))),
    "clip of relu": (lambda x: op.clip(op.nn.relu(x), 0.0, 6.0), lambda x: op.clip(x, 0.0, 6.0)),
    "clip at 0": (lambda x: op.clip(x, 0.0, float("inf")), lambda x: op.nn.relu(x)),
    "maximum with 0": (lambda x: op.maximum(const(0.0), x), lambda x: op.nn.relu(x)),
    "prelu of one slope": (lambda x: op.nn.prelu(x, const([0.25]), 1), lambda x: op.nn.leakyrelu(x, 0.25)),
}


@pytest.mark.parametrize(("before", "expected"), REWRITES.values(), ids=REWRITES)
def test_forms_become_simpler_ones(before: Callable[[Expr], Expr], expected: Callable[[Expr], Expr]) -> None:
    left, right = Net((2, 4, 6)), Net((2, 4, 6))
    after = apply_checked(Simplify(), left.module(_emit(left, before(left.x), "y")))
    assert_equal(after, right.module(_emit(right, expected(right.x), "y")))
    assert_unchanged(Simplify(), after)


def _emit(net: Net, expr: Expr, name: str) -> relax.Var:
    """Bind a nested expression from the inside out; the outermost call gets the name."""
    args = [_emit(net, a, "inner") if isinstance(a, relax.Call) else a for a in expr.args]
    return net(relax.Call(expr.op, args, expr.attrs), name)


def test_split_becomes_slices() -> None:
    net = Net((2, 7, 3))
    parts = net(op.split(net.x, [2, 3], axis=1), "split")
    items = [net(relax.TupleGetItem(parts, i), f"part{i}") for i in range(3)]
    after = apply_checked(Simplify(), net.module(*items))
    assert ops_of(after) == ["strided_slice"] * 3


def test_batch_norm_is_written_out() -> None:
    net = Net((2, 4, 3, 3))
    variance = np.abs(weights(4, seed=3)) + 0.5
    norm = net(op.nn.batch_norm(net.x, const(weights(4)), const(weights(4, seed=1)), const(weights(4, seed=2)),
                                const(variance), axis=1, training=False), "bn")
    after = apply_checked(Simplify(), net.module(net(relax.TupleGetItem(norm, 0), "y")))
    assert ops_of(after) == ["multiply", "add"]


def test_prelu_and_pixel_shuffle_are_written_out() -> None:
    net = Net((1, 8, 2, 3))
    y = net(op.nn.prelu(net.x, const(weights(8)), 1), "prelu")
    after = apply_checked(Simplify(), net.module(net(op.nn.pixel_shuffle(y, 2), "shuffle")))
    assert ops_of(after) == ["minimum", "multiply", "relu", "add", "reshape", "permute_dims", "reshape"]


def test_division_by_zero_stays() -> None:
    net = Net((2, 3))
    mod = net.module(net(op.divide(net.x, const([1.0, 0.0, 2.0]))))
    assert ops_of(Simplify()(mod)) == ["divide"]
