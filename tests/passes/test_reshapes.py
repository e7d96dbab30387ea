"""The reshapes that Simplify moves."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast.passes import Simplify
from narrowcast.passes.reshapes import _pieces

from .graphs import Net, apply_checked, assert_unchanged, const, names_of, ops_of, weights

op = relax.op


def test_reshapes_around_a_linear_layer_vanish() -> None:
    net = Net((2, 3, 8))
    rows = net(op.reshape(net.x, (6, 8)), "rows")
    y = net(op.add(net(op.matmul(rows, const(weights(8, 5))), "fc"), const(weights(5))), "bias")
    after = Simplify()(apply_checked(Simplify(), net.module(net(op.reshape(y, (2, 3, 5)), "back"))))
    assert ops_of(after) == ["matmul", "add"]
    assert names_of(after) == ["fc", "bias"]


def test_reshapes_around_a_shared_linear_layer_stay() -> None:
    net = Net((2, 3, 8))
    y = net(op.matmul(net(op.reshape(net.x, (6, 8))), const(weights(8, 5))), "fc")
    assert_unchanged(Simplify(), net.module(net(op.reshape(y, (2, 3, 5))), y))


def test_reshape_that_splits_the_last_dimension_stays_behind_a_linear_layer() -> None:
    net = Net((2, 3, 8))
    y = net(op.matmul(net(op.reshape(net.x, (6, 8))), const(weights(8, 6))), "fc")
    assert_unchanged(Simplify(), net.module(net(op.reshape(y, (6, 2, 3)))))


def test_heads_that_were_merged_before_a_permutation_are_split_there() -> None:
    """[S, B, E] → [S, B·H, D] → [B·H, S, D] → [B, H, S, D] is a reshape and a permutation."""
    net = Net((5, 2, 12))
    y = net(op.permute_dims(net(op.reshape(net.x, (5, 6, 4))), [1, 0, 2]))
    after = apply_checked(Simplify(), net.module(net(op.reshape(y, (2, 3, 5, 4)))))
    after = apply_checked(Simplify(), after)
    assert ops_of(after) == ["reshape", "permute_dims"]


def test_reshape_that_merges_behind_a_permutation_stays() -> None:
    net = Net((5, 2, 12))
    y = net(op.permute_dims(net(op.reshape(net.x, (5, 6, 4))), [1, 0, 2]))
    assert_unchanged(Simplify(), net.module(net(op.reshape(y, (30, 4)))))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3), min_size=1, max_size=3), st.randoms())
def test_splits_before_a_permutation_are_right(splits: list[list[int]], random: object) -> None:
    source = tuple(int(np.prod(s)) for s in splits)
    pieces = _pieces(source, tuple(d for s in splits for d in s))
    assert pieces is not None
    assert [i for piece in pieces for i in piece] == list(range(sum(len(s) for s in splits)))
    order = list(range(len(source)))
    random.shuffle(order)  # type: ignore[attr-defined]
    net = Net((int(np.prod(source)),))
    inverse = [order.index(a) for a in range(len(order))]
    inner = net(op.reshape(net.x, [source[inverse[i]] for i in range(len(source))]))
    y = net(op.permute_dims(inner, order))
    apply_checked(Simplify(), net.module(net(op.reshape(y, [d for s in splits for d in s]))))
