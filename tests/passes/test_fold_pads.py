"""FoldPads."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast.passes import FoldPads

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, ops_of, weights

op = relax.op
STEP = FoldPads()


def _conv(x: relax.Var, weight: np.ndarray, **attributes: object) -> relax.Call:
    return op.nn.conv2d(x, const(weight), data_layout="NHWC", kernel_layout="OHWI", **attributes)


def _padded(pad: list[int], **attributes: object) -> tvm.IRModule:
    net = Net((2, 6, 7, 3))
    framed = net(op.nn.pad(net.x, pad, **attributes), "framed")
    return net.module(net(_conv(framed, weights(4, 3, 3, 3), strides=2), "y"))


def test_a_pad_at_one_end_is_the_convolutions() -> None:
    before, expected = Net((2, 6, 7, 3)), Net((2, 6, 7, 3))
    framed = before(op.nn.pad(before.x, [0, 0, 0, 1, 2, 1, 0, 0]), "framed")
    attributes = {"strides": 2, "dilation": (1, 2)}
    module = before.module(before(_conv(framed, weights(4, 3, 3, 3), padding=(1, 0, 0, 1), **attributes), "y"))
    y = _conv(expected.x, weights(4, 3, 3, 3), padding=(1, 2, 1, 2), **attributes)
    after = apply_checked(STEP, module)
    assert_equal(after, expected.module(expected(y, "y")))
    assert_unchanged(STEP, after)


def test_channels_first_and_groups() -> None:
    before, expected = Net((1, 4, 5)), Net((1, 4, 5))
    framed, weight = before(op.nn.pad(before.x, [0, 0, 0, 0, 3, 0]), "causal"), weights(4, 1, 4)
    module = before.module(before(op.nn.conv1d(framed, const(weight), groups=4), "y"))
    after = apply_checked(STEP, module)
    assert_equal(after, expected.module(expected(
        op.nn.conv1d(expected.x, const(weight), padding=(3, 0), groups=4), "y")))


def test_a_pad_that_others_read_stays_for_them() -> None:
    net = Net((1, 6, 6, 3))
    framed = net(op.nn.pad(net.x, [0, 0, 1, 1, 1, 1, 0, 0]), "framed")
    first = net(_conv(framed, weights(4, 3, 3, 3)), "first")
    after = apply_checked(STEP, net.module(first, net(op.nn.relu(framed), "relu")))
    assert sorted(ops_of(after)) == ["conv2d", "pad", "relu"]
    conv = next(b.value for b in after["main"].body.blocks[0].bindings if "conv2d" in str(b.value.op))
    assert [int(p) for p in conv.attrs.padding] == [1, 1, 1, 1] and conv.args[0].same_as(after["main"].params[0])


@pytest.mark.parametrize("module", [
    _padded([0, 0, 1, 1, 1, 1, 0, 0], pad_value=0.5), _padded([0, 0, 1, 1, 1, 1, 0, 0], pad_mode="reflect"),
    _padded([0, 0, -1, 1, 1, 1, 0, 0]), _padded([1, 0, 1, 1, 1, 1, 0, 0]),
], ids=["a value", "reflected", "cropped", "an image more"])
def test_other_pads_stay(module: tvm.IRModule) -> None:
    assert_unchanged(STEP, module)


@pytest.mark.parametrize(("attributes", "folds"), [
    ({}, True), ({"count_include_pad": True, "padding": (1, 1)}, True), ({"padding": (1, 1)}, False),
    ({"ceil_mode": True}, False)], ids=str)
def test_an_average_pool_counts_the_zeros(attributes: dict[str, object], folds: bool) -> None:
    net = Net((1, 6, 7, 3))
    framed = net(op.nn.pad(net.x, [0, 0, 1, 0, 0, 2, 0, 0]), "framed")
    y = op.nn.avg_pool2d(framed, (3, 3), strides=(2, 2), layout="NHWC", **attributes)
    module = net.module(net(y, "y"))
    if folds:
        assert ops_of(apply_checked(STEP, module)) == ["avg_pool2d"]
    else:
        assert_unchanged(STEP, module)


@settings(max_examples=40, deadline=None)
@given(ends=st.tuples(*[st.integers(0, 4)] * 4), own=st.tuples(*[st.integers(0, 2)] * 4),
       taps=st.tuples(st.integers(1, 3), st.integers(1, 3)), stride=st.integers(1, 3), size=st.integers(3, 7))
def test_any_pad(ends: tuple[int, ...], own: tuple[int, ...], taps: tuple[int, int], stride: int, size: int) -> None:
    """``apply_checked`` compares what both compute."""
    net = Net((2, size, size + 1, 2))
    framed = net(op.nn.pad(net.x, [0, 0, *ends, 0, 0]), "framed")
    y = net(_conv(framed, weights(3, *taps, 2), strides=stride, padding=own), "y")
    assert ops_of(apply_checked(STEP, net.module(y))) == ["conv2d"]
