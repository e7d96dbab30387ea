"""Simplify's rules for fake_quantize, and what the fusion groups make of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tvm import relax

from narrowcast import ir
from narrowcast.ir import Expr
from narrowcast.operators import fake_quantize
from narrowcast.passes import FuseGroups, Simplify

from .graphs import Net, apply_checked, assert_unchanged, const, names_of, weights

op, nn = relax.op, relax.op.nn


def rounded(x: Expr, scale: float = 0.05, zero_point: int = 120, low: int = 0, high: int = 255) -> Expr:
    return fake_quantize(x, scale=scale, zero_point=zero_point, low=low, high=high)


def positive(x: Expr) -> Expr:
    return rounded(x, zero_point=0)


def test_equal_roundings_in_a_row_are_one() -> None:
    net = Net((2, 4))
    mod = net.module(net(rounded(net(rounded(net.x), "first")), "second"))
    assert names_of(apply_checked(Simplify(), mod)) == ["first"]


@pytest.mark.parametrize("other", [lambda x: rounded(x, 0.06), lambda x: rounded(x, zero_point=119),
                                   lambda x: rounded(x, high=127)], ids=["scale", "zero point", "range"])
def test_different_roundings_stay(other: Callable[[Expr], Expr]) -> None:
    net = Net((2, 4))
    assert_unchanged(Simplify(), net.module(net(other(net(rounded(net.x), "first")), "second")))


CLAMPS = {
    "relu": (nn.relu, positive), "relu6 below its bound": (lambda x: op.clip(x, 0, 6), lambda x: rounded(x, 0.02, 0)),
    "relu6 at its bound": (lambda x: op.clip(x, 0, 6), lambda x: rounded(x, 6 / 255, 0)),
    "relu of int8": (nn.relu, lambda x: rounded(x, 0.05, -128, -128, 127)),
    "hard tanh": (lambda x: op.clip(x, -7, 7), rounded),
}


@pytest.mark.parametrize(("clamp", "rounding"), CLAMPS.values(), ids=CLAMPS)
def test_a_clamp_that_the_range_implies_goes(clamp: Callable[[Expr], Expr], rounding: Callable[[Expr], Expr]) -> None:
    net = Net((2, 400))
    mod = net.module(net(rounding(net(clamp(net.x), "clamp")), "round"))
    assert names_of(apply_checked(Simplify(), mod)) == ["round"]


def test_a_clamp_stays_where_the_range_goes_beyond_it() -> None:
    net = Net((2, 400))
    assert_unchanged(Simplify(), net.module(net(rounded(net(nn.relu(net.x), "clamp")), "round")))
    net = Net((2, 400))
    clamp = net(op.clip(net.x, 0, 6), "clamp")
    assert_unchanged(Simplify(), net.module(net(positive(clamp), "round")))


def test_a_clamp_stays_where_it_has_another_reader() -> None:
    net = Net((2, 400))
    clamp = net(nn.relu(net.x), "clamp")
    assert_unchanged(Simplify(), net.module(net(positive(clamp), "round"), net(op.exp(clamp), "exp")))


def test_a_relu_of_a_rounding_to_positive_values_goes() -> None:
    net = Net((2, 4))
    assert names_of(apply_checked(Simplify(), net.module(net(nn.relu(net(positive(net.x), "round")), "relu")))) == \
        ["round"]


MOVEMENTS = {
    "reshape": lambda x: op.reshape(x, (4, 6, 8)), "permute": lambda x: op.permute_dims(x, [1, 3, 0, 2]),
    "max pool": lambda x: nn.max_pool2d(x, 2, 2), "padded max pool": lambda x: nn.max_pool2d(x, 3, 2, 1),
    "slice": lambda x: op.strided_slice(x, [1], [1], [3]), "pad": lambda x: nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1]),
    "broadcast": lambda x: op.broadcast_to(x, (3, 4, 6, 8)),
}


@pytest.mark.parametrize("move", MOVEMENTS.values(), ids=MOVEMENTS)
def test_a_rounding_moves_to_the_op_that_computes(move: Callable[[Expr], Expr]) -> None:
    net = Net((1, 4, 6, 8))
    mod = net.module(net(rounded(net(move(net(op.exp(net.x), "exp")), "move")), "round"))
    after = apply_checked(Simplify(), mod)
    assert names_of(after)[:2] == ["exp", "round"] and names_of(after)[-1] == "move"
    assert_unchanged(Simplify(), after)


def test_a_rounding_moves_through_a_concatenation() -> None:
    net = Net((2, 4), (2, 3))
    parts = [net(op.exp(net.x), "left"), net(rounded(net(op.tanh(net.inputs[1]), "tanh")), "right")]
    flat = net(op.reshape(net(op.concat(parts, 1), "join"), (14,)), "flat")
    after = apply_checked(Simplify(), net.module(net(rounded(flat), "round")))
    assert names_of(after) == ["left", "tanh", "right", "round", "join", "flat"]


def test_a_rounding_moves_before_what_is_rounded_already() -> None:
    net = Net((2, 4), (2, 3))
    left = net(rounded(net(op.exp(net.x), "exp"), 0.1), "left")
    right = net(rounded(net(op.tanh(net.inputs[1]), "tanh")), "right")
    joined = net(op.concat([left, right], 1), "join")
    after = apply_checked(Simplify(), net.module(net(rounded(joined), "round"), net(op.exp(left), "other")))
    assert names_of(after) == ["exp", "left", "tanh", "right", "round", "join", "other"]


def test_a_rounding_stays_behind_what_another_op_reads() -> None:
    net = Net((2, 4))
    source = net(op.exp(net.x), "exp")
    mod = net.module(net(rounded(net(op.reshape(source, (8,)), "flat")), "round"), net(op.log(source), "log"))
    assert_unchanged(Simplify(), mod)


def test_a_rounding_stays_behind_a_pad_with_something_else() -> None:
    net = Net((2, 4))
    padded = net(nn.pad(net(op.exp(net.x), "exp"), [0, 0, 1, 1], pad_value=0.5), "pad")
    assert_unchanged(Simplify(), net.module(net(rounded(padded), "round")))


def test_roundings_belong_to_the_epilogue_of_their_producer() -> None:
    net = Net((2, 8), (2, 4))
    layer = net(op.matmul(net.x, const(weights(8, 4))), "layer")
    inner = net(rounded(net(op.add(layer, const(weights(4))), "bias")), "inner")
    total = net(op.add(inner, net.inputs[1]), "sum")
    grouped = FuseGroups()(net.module(net(rounded(total, 0.1), "outer")))
    (group,) = ir.groups_of(grouped)
    assert [b.var.name for b in group.bindings] == ["layer", "bias", "inner", "sum", "outer"]


def test_a_rounding_with_several_readers_ends_its_group() -> None:
    net = Net((2, 8))
    hidden = net(rounded(net(op.matmul(net.x, const(weights(8, 8))), "first")), "hidden")
    branch = net(op.matmul(hidden, const(weights(8, 8, seed=1))), "second")
    grouped = FuseGroups()(net.module(net(op.add(branch, hidden), "sum")))
    assert [[b.var.name for b in g.bindings] for g in ir.groups_of(grouped)] == [["first", "hidden"], ["second", "sum"]]
