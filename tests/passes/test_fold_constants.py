"""FoldConstants."""

from __future__ import annotations

import numpy as np
from tvm import relax

from narrowcast import ir
from narrowcast.passes import FoldConstants

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, ops_of, weights


def test_chain_of_constants_becomes_one() -> None:
    value = weights(4, 3)
    before = Net((2, 3))
    w = before(relax.op.permute_dims(const(value)), "w")
    w = before(relax.op.multiply(w, const(2.0)), "w")
    before = before.module(before(relax.op.matmul(before.x, w), "fc"))
    expected = Net((2, 3))
    expected = expected.module(expected(relax.op.matmul(expected.x, const(2.0 * value.T)), "fc"))
    after = apply_checked(FoldConstants(), before)
    assert_equal(after, expected)
    assert_unchanged(FoldConstants(), after)


def test_scalar_stays_a_scalar() -> None:
    net = Net((2, 3))
    c = net(relax.op.sqrt(const(4.0)))
    after = apply_checked(FoldConstants(), net.module(net(relax.op.multiply(net.x, c))))
    (binding,) = ir.op_bindings(after["main"])
    assert ir.shape_of(binding.value.args[1]) == ()
    assert float(ir.constant_value(binding.value.args[1])) == 2.0


def test_huge_broadcast_stays_and_says_why() -> None:
    net = Net((1, 3))
    wide = net(relax.op.broadcast_to(const(np.ones((1, 1))), (70_000, 3)), "wide")
    mod = net.module(net(relax.op.add(net.x, wide), "sum"))
    assert_unchanged(FoldConstants(), mod)
    ((name, reason),) = FoldConstants().refusals(mod)
    assert name == "wide"
    assert "210000 elements" in reason
    assert ops_of(FoldConstants(max_elements=1 << 20)(mod)) == ["add"]


def test_large_constants_fold_where_they_do_not_grow() -> None:
    net = Net((1, 300))
    w = net(relax.op.permute_dims(const(np.ones((300, 300)))), "w")
    after = apply_checked(FoldConstants(max_elements=16), net.module(net(relax.op.matmul(net.x, w))), terms=300)
    assert ops_of(after) == ["matmul"]


def test_tuple_results_are_refused() -> None:
    net = Net((2, 2))
    pair = net(relax.op.split(const(weights(2, 4)), 2, axis=1), "pair")
    item = net(relax.TupleGetItem(pair, 0), "item")
    mod = net.module(net(relax.op.add(net.x, item)))
    assert_unchanged(FoldConstants(), mod)
    assert FoldConstants().refusals(mod) == [("pair", "the result is a tuple")]


def test_what_reads_an_input_stays() -> None:
    net = Net((2, 3))
    mod = net.module(net(relax.op.add(net.x, const([1, 2, 3]))))
    assert_unchanged(FoldConstants(), mod)
    assert FoldConstants().refusals(mod) == []
