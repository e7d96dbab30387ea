"""DecomposeTransposedConvolutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast.ir import op_bindings, shape_of
from narrowcast.operators.reference import run
from narrowcast.passes import DecomposeTransposedConvolutions

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, names_of, ops_of, weights

op = relax.op
STEP = DecomposeTransposedConvolutions()
_OPERATORS = {1: op.nn.conv1d_transpose, 2: op.nn.conv2d_transpose, 3: op.nn.conv3d_transpose}


def _up(x: relax.Var, weight: np.ndarray, **attributes: object) -> relax.Call:
    """A transposed convolution with weights [I, *taps, O]."""
    rank = weight.ndim - 2
    spatial = "DHW"[-rank:]
    return _OPERATORS[rank](x, const(weight), data_layout=f"N{spatial}C", kernel_layout=f"I{spatial}O", **attributes)


def _kernels(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """The shapes of the convolutions' weights."""
    return [shape_of(b.value.args[1]) for b in op_bindings(mod["main"]) if "conv" in str(b.value.op)]


def test_upsampling_with_bias_and_activation() -> None:
    weight, bias = weights(3, 2, 2, 5), weights(5)
    before, expected = Net((2, 4, 6, 3)), Net((2, 4, 6, 3))
    y = before(op.add(before(_up(before.x, weight, strides=(2, 2)), "up"), const(bias)), "bias")
    before = before.module(before(op.nn.relu(y), "relu"))
    phases = weight.transpose(1, 2, 3, 0).reshape(20, 1, 1, 3)
    y = expected(op.nn.conv2d(expected.x, const(phases), data_layout="NHWC", kernel_layout="OHWI"), "up")
    y = expected(op.nn.relu(expected(op.add(y, const(np.tile(bias, 4))), "bias")), "relu")
    y = expected(op.reshape(y, (2, 4, 6, 2, 2, 5)), "relu.split")
    y = expected(op.permute_dims(y, [0, 1, 3, 2, 4, 5]), "relu.turned")
    expected = expected.module(expected(op.reshape(y, (2, 8, 12, 5)), "relu.interleaved"))
    after = apply_checked(STEP, before)
    assert_equal(after, expected)
    assert_unchanged(STEP, after)


@pytest.mark.parametrize(("taps", "attributes", "window", "crops"), [
    (2, {"strides": (2,)}, 1, False),
    (4, {"strides": (2,), "padding": (1,)}, 2, True),
    (3, {"strides": (2,), "padding": (1,), "output_padding": (1,)}, 2, False),
    (16, {"strides": (8,), "padding": (4,)}, 2, True),
    (1, {"strides": (3,)}, 1, True),
    (5, {"padding": (2,)}, 5, False),
    (3, {"dilation": (4,), "padding": (2,)}, 3, False),
    (3, {"strides": (2,), "dilation": (2,)}, 3, True),
    (2, {"padding": (3, 0)}, 4, False),
    (2, {"strides": (2,), "padding": (0, 3)}, 2, True),
], ids=str)
def test_windows_are_short(taps: int, attributes: dict[str, tuple[int, ...]], window: int, crops: bool) -> None:
    net = Net((2, 9, 3))
    after = apply_checked(STEP, net.module(net(_up(net.x, weights(3, taps, 4), **attributes))))
    assert [shape[1] for shape in _kernels(after)] == [window]
    assert ("strided_slice" in ops_of(after)) is crops


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_transposed_convolution(data: st.DataObject) -> None:
    rank, groups = data.draw(st.integers(1, 3), "rank"), data.draw(st.integers(1, 3), "groups")

    def per_axis(low: int, high: int, axes: int = rank) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(axes))

    strides, taps, dilation, padding = per_axis(1, 3), per_axis(1, 4), per_axis(1, 3), per_axis(0, 3, 2 * rank)
    further = tuple(data.draw(st.integers(0, s - 1)) for s in strides)
    size = per_axis(3, 5)
    result = [(n - 1) * s + (k - 1) * d + 1 - b - a + o for n, s, k, d, b, a, o in
              zip(size, strides, taps, dilation, padding[:rank], padding[rank:], further, strict=True)]
    if min(result) < 1:
        return
    channels, outputs = groups * data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    net = Net((data.draw(st.integers(1, 2)), *size, channels))
    y = net(_up(net.x, weights(channels, *taps, outputs), strides=strides, dilation=dilation, padding=padding,
                output_padding=further, groups=groups))
    after = apply_checked(STEP, net.module(net(op.nn.silu(net(op.multiply(y, const(weights(groups * outputs))))))),
                          terms=512)
    assert not any("transpose" in name for name in ops_of(after))


def test_depthwise_stays_depthwise() -> None:
    net = Net((1, 5, 6, 8))
    y = net(_up(net.x, weights(8, 4, 4, 1), strides=(2, 2), padding=(1, 1), groups=8), "up")
    after = apply_checked(STEP, net.module(net(op.nn.relu(y), "relu")))
    assert _kernels(after) == [(8, 2, 2, 1)] * 4
    assert ops_of(after)[:3] == ["conv2d", "relu", "conv2d"]
    assert names_of(after)[:4] == ["up", "relu", "up.1", "relu.1"]


def test_symbolic_batch_and_size() -> None:
    batch, height = tvm.tirx.Var("batch", "int64"), tvm.tirx.Var("height", "int64")
    net = Net((batch, height, 5, 3))
    mod = net.module(net(_up(net.x, weights(3, 4, 3, 4), strides=(2, 2), padding=(1, 1))))
    after = STEP(mod)
    assert ops_of(after) == ["conv2d", "reshape", "permute_dims", "reshape", "strided_slice"]
    x = torch.randn(2, 6, 5, 3, generator=torch.Generator().manual_seed(0))
    (expected,), (found,) = run(mod, [x]), run(after, [x])
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)
    tvm.ir.assert_structural_equal(after["main"].ret_ty, mod["main"].ret_ty)


def test_a_residual_is_added_behind() -> None:
    net = Net((1, 3, 4, 2), (1, 6, 8, 5))
    y = net(op.nn.relu(net(_up(net.x, weights(2, 2, 2, 5), strides=(2, 2)))))
    after = apply_checked(STEP, net.module(net(op.nn.relu(net(op.add(y, net.inputs[1]))))))
    assert ops_of(after) == ["conv2d", "relu", "reshape", "permute_dims", "reshape", "add", "relu"]


def test_an_operator_behind_another_reader_stays_behind() -> None:
    net = Net((1, 3, 4, 2))
    y = net(_up(net.x, weights(2, 2, 2, 5), strides=(2, 2)))
    after = apply_checked(STEP, net.module(net(op.nn.relu(y)), net(op.exp(y))))
    assert ops_of(after) == ["conv2d", "reshape", "permute_dims", "reshape", "relu", "exp"]


def test_weights_of_run_time_stay() -> None:
    net = Net((1, 3, 6, 6), (3, 4, 2, 2))
    assert_unchanged(STEP, net.module(net(op.nn.conv2d_transpose(*net.inputs, strides=(2, 2)))))
