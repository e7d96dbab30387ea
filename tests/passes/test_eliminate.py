"""EliminateDeadCode and EliminateCommonSubexpressions."""

from __future__ import annotations

from tvm import relax

from narrowcast.passes import EliminateCommonSubexpressions, EliminateDeadCode

from .graphs import Net, apply_checked, assert_unchanged, const, names_of


def test_dead_code_goes_and_inputs_stay() -> None:
    net = Net((2, 3), (2, 3))
    used = net(relax.op.nn.relu(net.x), "used")
    net(relax.op.exp(used), "unused")
    after = apply_checked(EliminateDeadCode(), net.module(used))
    assert names_of(after) == ["used"]
    assert [p.name for p in after["main"].params] == ["in0", "in1"]


def test_live_code_stays() -> None:
    net = Net((2, 3))
    first = net(relax.op.nn.relu(net.x), "first")
    second = net(relax.op.exp(first), "second")
    assert_unchanged(EliminateDeadCode(), net.module(first, second))


def test_equal_expressions_are_computed_once_under_the_first_name() -> None:
    net = Net((2, 3))
    first = net(relax.op.add(net.x, const([1, 2, 3])), "first")
    second = net(relax.op.add(net.x, const([1, 2, 3])), "second")
    left, right = net(relax.op.exp(first), "left"), net(relax.op.exp(second), "right")
    after = apply_checked(EliminateCommonSubexpressions(), net.module(net(relax.op.multiply(left, right), "product")))
    assert names_of(after) == ["first", "left", "product"]
    assert_unchanged(EliminateCommonSubexpressions(), after)


def test_other_constants_attributes_or_order_are_other_expressions() -> None:
    net = Net((3, 3))
    values = [net(relax.op.add(net.x, const([1, 2, 3]))), net(relax.op.add(net.x, const([1, 2, 4]))),
              net(relax.op.nn.softmax(net.x, axis=0)), net(relax.op.nn.softmax(net.x, axis=1))]
    values.append(net(relax.op.subtract(values[0], values[1])))
    values.append(net(relax.op.subtract(values[1], values[0])))
    assert_unchanged(EliminateCommonSubexpressions(), net.module(*values))


def test_items_of_one_tuple_are_distinct() -> None:
    net = Net((2, 4))
    pair = net(relax.op.split(net.x, 2, axis=1), "pair")
    items = [net(relax.TupleGetItem(pair, i), f"item{i}") for i in (0, 1, 0)]
    after = apply_checked(EliminateCommonSubexpressions(), net.module(*items))
    assert names_of(after) == ["pair", "item0", "item1"]
