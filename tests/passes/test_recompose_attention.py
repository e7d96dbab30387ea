"""RecomposeAttention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.dims import evaluate_dim
from narrowcast.ir import Expr, op_bindings
from narrowcast.operators import reference
from narrowcast.passes import RecomposeAttention, Simplify, ToChannelsLast

from .graphs import EPS, Net, apply_checked, assert_unchanged, const, ops_of, weights

op = relax.op
B, H, S, T, D = 2, 4, 5, 7, 8
Step = Callable[[Net, Expr], Expr]


def _product_form(net: Net, steps: Step | None = None) -> relax.Var:
    """softmax(steps(q kᵀ)) v for inputs q [B, H, S, D], k and v [B, H, T, D]."""
    q, k, v = net.inputs[:3]
    scores = net(op.matmul(q, net(op.permute_dims(k, [0, 1, 3, 2]), "kt")), "scores")
    scores = steps(net, scores) if steps is not None else scores
    return net(op.matmul(net(op.nn.softmax(scores, axis=-1), "softmax"), v), "y")


def _net(*more: tuple[int, ...]) -> Net:
    return Net((B, H, S, D), (B, H, T, D), (B, H, T, D), *more)


def _scale(net: Net, scores: Expr) -> Expr:
    return net(op.multiply(scores, const(0.25)))


def _divide(net: Net, scores: Expr) -> Expr:
    return net(op.divide(scores, const(4.0)))


def _attrs_of(mod: tvm.IRModule, name: str) -> tvm.ir.Attrs:
    return next(b.value.attrs for b in op_bindings(mod["main"]) if str(b.value.op.name).endswith(name))


@pytest.mark.parametrize(("steps", "scale"), [(None, 1.0), (_scale, 0.25), (_divide, 0.25)])
def test_product_form_becomes_attention(steps: Step | None, scale: float) -> None:
    net = _net()
    after = apply_checked(RecomposeAttention(), net.module(_product_form(net, steps)))
    assert [o for o in ops_of(after) if o != "permute_dims"] == ["attention"]
    assert float(_attrs_of(after, "attention").scale) == pytest.approx(scale, rel=EPS)


def test_scales_of_query_and_key_are_taken() -> None:
    net = _net()
    q = net(op.multiply(net.inputs[0], const(0.5)))
    kt = net(op.multiply(net(op.permute_dims(net.inputs[1], [0, 1, 3, 2])), const(0.25)))
    y = net(op.matmul(net(op.nn.softmax(net(op.matmul(q, kt)))), net.inputs[2]))
    after = apply_checked(RecomposeAttention(), net.module(y))
    assert [o for o in ops_of(after) if o != "permute_dims"] == ["attention"]
    assert float(_attrs_of(after, "attention").scale) == 0.125


@pytest.mark.parametrize("shape", [(B, 1, 1, T), (1, 1, S, T), (S, T), (T,), (B, H, S, T), (B, 1, S, 1)])
def test_masks_that_broadcast_become_the_bias(shape: tuple[int, ...]) -> None:
    net = _net(shape)

    def masked(net: Net, scores: Expr) -> Expr:
        return net(op.add(net.inputs[3], _scale(net, scores)))

    after = apply_checked(RecomposeAttention(), net.module(_product_form(net, masked)))
    assert "attention_bias" in ops_of(after)
    assert "softmax" not in ops_of(after)


def test_two_masks_are_added() -> None:
    net = _net((B, 1, 1, T))

    def masked(net: Net, scores: Expr) -> Expr:
        return net(op.add(net(op.add(_scale(net, scores), const(weights(S, T)))), net.inputs[3]))

    after = apply_checked(RecomposeAttention(), net.module(_product_form(net, masked)))
    assert "attention_bias" in ops_of(after)


def test_zero_mask_vanishes() -> None:
    net = _net()

    def masked(net: Net, scores: Expr) -> Expr:
        return net(op.add(scores, const(np.zeros((S, T)))))

    after = apply_checked(RecomposeAttention(), net.module(_product_form(net, masked)))
    assert "attention" in ops_of(after)


def test_zero_bias_of_an_attention_vanishes() -> None:
    net = Net((B, S, H, D), (B, T, H, D), (B, T, H, D))
    y = net(op.nn.attention_bias(*net.inputs, const(np.zeros((1, 1, S, T))), scale=0.5), "y")
    after = apply_checked(RecomposeAttention(), net.module(y))
    assert ops_of(after) == ["attention"]
    assert float(_attrs_of(after, "attention").scale) == 0.5


def _heads(net: Net, x: Expr, axes: list[int], merged: bool) -> Expr:
    length = T if x is not net.inputs[0] else S
    y = net(op.permute_dims(net(op.reshape(x, (B, length, H, D))), axes))
    if not merged:
        return y
    shape = (B * H, length, D) if axes[2] == 1 else (B * H, D, length)
    return net(op.reshape(y, shape))


@pytest.mark.parametrize("merged", [False, True])
def test_permutations_around_attention_cancel(merged: bool) -> None:
    """[B, S, H·D] → heads → product form → [B, S, H·D] is reshape, attention, reshape."""
    net = Net((B, S, H * D), (B, T, H * D), (B, T, H * D))
    q, v = (_heads(net, x, [0, 2, 1, 3], merged) for x in (net.inputs[0], net.inputs[2]))
    kt = _heads(net, net.inputs[1], [0, 2, 3, 1], merged)
    y = net(op.matmul(net(op.nn.softmax(net(op.multiply(net(op.matmul(q, kt)), const(0.3))))), v))
    y = net(op.reshape(y, (B, H, S, D))) if merged else y
    y = net(op.reshape(net(op.permute_dims(y, [0, 2, 1, 3])), (B, S, H * D)))
    after = net.module(y)
    for step in (RecomposeAttention(), Simplify(), ToChannelsLast(), Simplify()):
        after = apply_checked(step, after)
    assert ops_of(after) == ["reshape", "reshape", "reshape", "attention", "reshape"]


def test_three_dimensional_operands_are_one_head() -> None:
    net = Net((B, S, D), (B, T, D), (B, T, D))
    kt = net(op.permute_dims(net.inputs[1], [0, 2, 1]))
    y = net(op.matmul(net(op.nn.softmax(net(op.matmul(net.x, kt)))), net.inputs[2]))
    after = apply_checked(RecomposeAttention(), net.module(y))
    assert "attention" in ops_of(after)


def _refusal(net: Net, *outputs: relax.Var) -> str:
    mod = net.module(*outputs)
    assert_unchanged(RecomposeAttention(), mod)
    ((name, reason),) = RecomposeAttention().refusals(mod)
    assert name == "y"
    return reason


@pytest.mark.parametrize("mask", [None, (S, T), (T,)])
def test_two_dimensional_operands_are_one_head_of_one_sample(mask: tuple[int, ...] | None) -> None:
    net = Net((S, D), (T, D), (T, D), *([] if mask is None else [mask]))
    scores = net(op.matmul(net.inputs[0], net(op.permute_dims(net.inputs[1], [1, 0]), "kt")), "scores")
    if mask is not None:
        scores = net(op.add(scores, net.inputs[3]))
    y = net(op.matmul(net(op.nn.softmax(scores)), net.inputs[2]), "y")
    after = apply_checked(RecomposeAttention(), net.module(y))
    assert ("attention" if mask is None else "attention_bias") in ops_of(after)
    assert "softmax" not in ops_of(after)


def test_five_dimensional_operands_are_refused() -> None:
    net = Net((2, B, H, S, D), (2, B, H, T, D), (2, B, H, T, D))
    scores = net(op.matmul(net.inputs[0], net(op.permute_dims(net.inputs[1], [0, 1, 2, 4, 3]), "kt")), "scores")
    mod = net.module(net(op.matmul(net(op.nn.softmax(scores)), net.inputs[2]), "y"))
    assert_unchanged(RecomposeAttention(), mod)
    assert RecomposeAttention().refusals(mod) == [("y", "query, key or value has not two to four dimensions")]


def test_probabilities_with_another_reader_are_refused() -> None:
    net = _net()
    y = _product_form(net)
    probabilities = next(b.var for b in net.builder._bindings if b.var.name == "softmax")
    assert _refusal(net, y, probabilities) == "the probabilities have another reader"


def test_scores_with_another_reader_are_refused() -> None:
    net = _net()
    y = _product_form(net)
    scores = next(b.var for b in net.builder._bindings if b.var.name == "scores")
    assert "scores have another reader" in _refusal(net, y, scores)


def test_constant_values_are_refused() -> None:
    net = _net()
    scores = net(op.matmul(net.inputs[0], net(op.permute_dims(net.inputs[1], [0, 1, 3, 2]))))
    y = net(op.matmul(net(op.nn.softmax(scores)), const(weights(B, H, T, D))), "y")
    assert _refusal(net, y) == "query, key or value is constant"


def test_softmax_of_something_else_is_refused() -> None:
    net = _net()

    def squared(net: Net, scores: Expr) -> Expr:
        return net(op.square(scores))

    assert "not a scaled matrix product" in _refusal(net, _product_form(net, squared))


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("number", [-np.inf, -1e9])
def test_a_choice_of_a_hiding_number_is_a_mask(hidden: bool, number: float) -> None:
    net = _net()
    below = np.tri(S, T, dtype=bool)
    keep = ir.constant(~below if hidden else below)

    def hide(net: Net, scores: Expr) -> Expr:
        branches = (const(number), scores) if hidden else (scores, const(number))
        return net(op.where(keep, *branches))

    after = apply_checked(RecomposeAttention(), net.module(_product_form(net, lambda n, s: hide(n, _scale(n, s)))))
    assert {"attention_bias", "where"} <= set(ops_of(after)) and "softmax" not in ops_of(after)


def test_a_choice_of_a_number_that_hides_nothing_stays() -> None:
    net = _net()
    keep = ir.constant(np.tri(S, T, dtype=bool))
    mod = net.module(_product_form(net, lambda n, s: n(op.where(keep, s, const(-10.0)))))
    assert_unchanged(RecomposeAttention(), mod)
    assert [reason for _, reason in RecomposeAttention().refusals(mod)] == [
        "the scores are not a scaled matrix product plus a mask"]


@pytest.mark.parametrize("mask", [(1, 1, 1, T), (B, 1, S, T)])
def test_reshapes_between_product_mask_and_softmax_are_looked_through(mask: tuple[int, ...]) -> None:
    """Bloom's form: products of [batch · heads, …], masks of [batch, heads, …]."""
    net = _net(mask)
    q, k, v = (net(op.reshape(x, (B * H, *ir.shape_of(x)[2:]))) for x in net.inputs[:3])
    scores = net(op.matmul(q, net(op.permute_dims(k, [0, 2, 1]))))
    masked = net(op.add(net(op.reshape(scores, (B, H, S, T))), net.inputs[3]))
    probabilities = net(op.reshape(net(op.nn.softmax(masked)), (B * H, S, T)))
    after = apply_checked(RecomposeAttention(), net.module(net(op.matmul(probabilities, v))))
    assert "attention_bias" in ops_of(after) and "softmax" not in ops_of(after)


def test_a_mask_over_a_split_batch_is_spread() -> None:
    """Swin's form: scores of [images, windows, heads, …] and one mask for every window."""
    net = Net((6, H, S, D), (6, H, S, D), (6, H, S, D), (1, 3, 1, S, S))
    q, k, v, mask = net.inputs
    scores = net(op.matmul(q, net(op.permute_dims(k, [0, 1, 3, 2]))))
    masked = net(op.add(net(op.reshape(scores, (2, 3, H, S, S))), mask))
    probabilities = net(op.nn.softmax(net(op.reshape(masked, (6, H, S, S)))))
    after = apply_checked(RecomposeAttention(), net.module(net(op.matmul(probabilities, v))))
    assert "attention_bias" in ops_of(after) and "softmax" not in ops_of(after)


def test_symbolic_extents() -> None:
    batch, steps = tvm.tirx.Var("batch", "int64"), tvm.tirx.Var("steps", "int64")
    net = Net(*[(batch, H, steps, D)] * 3, (batch, 1, 1, steps))
    q, k, v, mask = net.inputs
    scores = _scale(net, net(op.matmul(q, net(op.permute_dims(k, [0, 1, 3, 2])))))
    before = net.module(net(op.matmul(net(op.nn.softmax(net(op.add(scores, mask)))), v)))
    after = RecomposeAttention()(before)
    assert "attention_bias" in ops_of(after) and "softmax" not in ops_of(after)
    for extents in ({"batch": 2, "steps": 5}, {"batch": 1, "steps": 7}):
        inputs = [torch.randn([evaluate_dim(d, extents) for d in ir.dims_of(p)]) for p in before["main"].params]
        expected, found = (reference.run(mod, inputs)[0] for mod in (before, after))
        torch.testing.assert_close(found, expected, rtol=16 * EPS, atol=16 * EPS * D)
