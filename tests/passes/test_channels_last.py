"""ToChannelsLast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast.ir import Expr, op_bindings, op_name
from narrowcast.passes import Simplify, ToChannelsLast
from narrowcast.passes.layouts import moves_nothing
from narrowcast.passes.relayout import reshaped_layout, with_runs_together

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, ops_of, weights

op = relax.op


def _conv(net: Net, x: Expr, outputs: int, kernel: int = 3, name: str = "conv", **attrs: int) -> relax.Var:
    inputs = int(x.ty.shape[1]) // int(attrs.get("groups", 1))
    weight = const(weights(outputs, inputs, kernel, kernel) / (kernel * np.sqrt(inputs)))
    return net(op.nn.conv2d(x, weight, padding=kernel // 2, **attrs), name)


def _layouts_of(mod: tvm.IRModule) -> list[str]:
    calls = [b.value for b in op_bindings(mod["main"])]
    return [str(getattr(c.attrs, "data_layout", None) or c.attrs.layout) for c in calls
            if c.attrs is not None and (hasattr(c.attrs, "data_layout") or hasattr(c.attrs, "layout"))]


def test_convolution_with_bias() -> None:
    weight, bias = weights(4, 3, 3, 3), weights(4, 1, 1)
    before, expected = Net((1, 3, 6, 6)), Net((1, 3, 6, 6))
    y = before(op.nn.conv2d(before.x, const(weight), strides=2, padding=1), "conv")
    before = before.module(before(op.add(y, const(bias)), "bias"))
    t = expected(op.permute_dims(expected.x, [0, 2, 3, 1]), "in0.layout")
    y = expected(op.nn.conv2d(t, const(weight.transpose(0, 2, 3, 1)), strides=2, padding=1, data_layout="NHWC",
                              kernel_layout="OHWI"), "conv")
    y = expected(op.add(y, const(bias.reshape(4))), "bias")
    expected = expected.module(expected(op.permute_dims(y, [0, 3, 1, 2]), "bias.layout"))
    after = apply_checked(ToChannelsLast(), before)
    assert_equal(after, expected)
    assert_unchanged(ToChannelsLast(), after)


def test_network_of_blocks_has_one_permutation() -> None:
    """Inverted residual with squeeze and excitation, pools, concatenation, pad, slice; classifier on the mean."""
    net = Net((2, 3, 12, 12))
    x = net(op.nn.relu(net(op.add(_conv(net, net.x, 8, strides=2), const(weights(8, 1, 1))))))
    y = net(op.nn.silu(_conv(net, x, 16, kernel=1)))
    y = net(op.nn.silu(_conv(net, y, 16, groups=16)))
    s = net(op.mean(y, [2, 3], keepdims=True))
    s = net(op.sigmoid(_conv(net, net(op.nn.relu(_conv(net, s, 4, kernel=1))), 16, kernel=1)))
    y = net(op.add(_conv(net, net(op.multiply(y, s)), 8, kernel=1), x))
    y = net(op.concat([y, net(op.nn.max_pool2d(y, [3, 3], [1, 1], [1, 1, 1, 1])), x], axis=1))
    y = net(op.nn.pad(y, [0, 0, 0, 0, 1, 1, 1, 1]))
    y = net(op.strided_slice(y, [1, 3], [2, 0], [22, 8]))
    y = net(op.nn.avg_pool2d(_conv(net, y, 8), [2, 2], [2, 2]))
    y = net(op.nn.softmax(net(op.image.resize2d(y, (6, 6))), axis=1))
    y = net(op.matmul(net(op.mean(y, [2, 3])), const(weights(8, 5))))
    after = apply_checked(ToChannelsLast(), net.module(y), terms=512)
    assert ops_of(after).count("permute_dims") == 1
    assert ops_of(after)[0] == "permute_dims"
    assert set(_layouts_of(after)) == {"NHWC"}
    assert_unchanged(ToChannelsLast(), after)


def test_one_dimensional_network() -> None:
    net = Net((2, 3, 16))
    y = net(op.nn.conv1d(net.x, const(weights(4, 3, 3)), padding=1))
    y = net(op.nn.max_pool1d(net(op.add(y, const(weights(4, 1)))), [2], [2]))
    y = net(op.nn.conv1d(y, const(weights(4, 1, 3)), groups=4))
    after = apply_checked(ToChannelsLast(), net.module(net(op.mean(net(op.nn.adaptive_avg_pool1d(y, [1])), [2]))))
    assert ops_of(after) == ["permute_dims", "conv1d", "add", "max_pool1d", "conv1d", "adaptive_avg_pool1d", "mean"]
    assert set(_layouts_of(after)) == {"NWC"}


@pytest.mark.parametrize("shape", [(2, 1, 6, 6), (2, 3, 1, 1)])
def test_permutation_that_moves_nothing_is_a_reshape(shape: tuple[int, ...]) -> None:
    net = Net(shape)
    kernel = 3 if shape[2] > 1 else 1
    after = apply_checked(ToChannelsLast(), net.module(net(op.mean(_conv(net, net.x, 4, kernel), [2, 3]))))
    assert ops_of(after) == ["reshape", "conv2d", "mean"]


def test_flattened_map_permutes_the_rows_of_the_matrix() -> None:
    net = Net((2, 3, 4, 4))
    y = net(op.reshape(_conv(net, net.x, 5), (2, 80)), "flatten")
    after = apply_checked(ToChannelsLast(), net.module(net(op.matmul(y, const(weights(80, 7))), "fc")), terms=512)
    assert ops_of(after) == ["permute_dims", "conv2d", "reshape", "matmul"]


def test_channel_shuffle_is_one_permutation() -> None:
    net = Net((2, 3, 4, 4))
    y = net(op.reshape(_conv(net, net.x, 6), (2, 2, 3, 4, 4)))
    y = net(op.reshape(net(op.permute_dims(y, [0, 2, 1, 3, 4]), "shuffle"), (2, 6, 4, 4)))
    after = apply_checked(ToChannelsLast(), net.module(net(op.mean(_conv(net, y, 2), [2, 3]))), terms=512)
    assert ops_of(after) == ["permute_dims", "conv2d", "reshape", "permute_dims", "reshape", "conv2d", "mean"]


def test_flattened_map_with_another_reader_is_permuted() -> None:
    net = Net((2, 3, 4, 4))
    y = net(op.reshape(_conv(net, net.x, 5), (2, 80)), "flatten")
    mod = net.module(net(op.matmul(y, const(weights(80, 7)))), net(op.exp(y)))
    after = apply_checked(ToChannelsLast(), mod, terms=512)
    assert ops_of(after) == ["permute_dims", "conv2d", "permute_dims", "reshape", "matmul", "exp"]


def test_permutations_of_the_network_cancel() -> None:
    """The block of ConvNeXt: depthwise convolution, then norm and linear layers on the last axis."""
    net = Net((1, 8, 6, 6))
    y = net(op.permute_dims(_conv(net, net.x, 8, groups=8), [0, 2, 3, 1]), "to_last")
    y = net(op.nn.layer_norm(y, const(weights(8)), const(weights(8, seed=1)), axes=[-1]))
    y = net(op.matmul(net(op.nn.gelu(net(op.matmul(y, const(weights(8, 16) / 4))))), const(weights(16, 8) / 4)))
    y = net(op.add(net(op.permute_dims(y, [0, 3, 1, 2]), "to_first"), net.x))
    after = apply_checked(ToChannelsLast(), net.module(net(op.mean(_conv(net, y, 4), [2, 3]))), terms=512)
    assert ops_of(after).count("permute_dims") == 1


def test_user_layout_stays_for_operators_without_another() -> None:
    net = Net((1, 4, 6, 6), (4, 3, 2, 2))
    y = net(op.nn.conv2d_transpose(*net.inputs, strides=(2, 2)))
    y = net(op.nn.instance_norm(y, const(weights(3)), const(weights(3)), axes=[2, 3], channel_axis=1))
    assert_unchanged(ToChannelsLast(), net.module(y))


def test_three_dimensional_network() -> None:
    net = Net((2, 3, 6, 7, 8))
    y = net(op.nn.conv3d(net.x, const(weights(4, 3, 3, 3, 3)), padding=1))
    y = net(op.nn.max_pool3d(net(op.add(y, const(weights(4, 1, 1, 1)))), [2, 2, 2], [2, 2, 2]))
    y = net(op.nn.conv3d(y, const(weights(4, 1, 1, 3, 3)), groups=4, padding=(0, 1, 1)))
    y = net(op.nn.avg_pool3d(y, [3, 1, 2], [1, 1, 2]))
    after = apply_checked(ToChannelsLast(), net.module(net(op.mean(net(op.nn.adaptive_avg_pool3d(y, [1, 1, 1])), [2]))),
                          terms=256)
    assert ops_of(after) == ["permute_dims", "conv3d", "add", "max_pool3d", "conv3d", "avg_pool3d",
                             "adaptive_avg_pool3d", "mean", "reshape"]
    assert set(_layouts_of(after)) == {"NDHWC"}


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolution(rank: int) -> None:
    make = {1: op.nn.conv1d_transpose, 2: op.nn.conv2d_transpose, 3: op.nn.conv3d_transpose}[rank]
    net = Net((2, 4, 3, 4, 5)[:rank + 2])
    y = net(make(net.x, const(weights(4, 3, *(3, 2, 4)[:rank])), strides=[2] * rank, padding=[1] * rank,
                 output_padding=[1] * rank, dilation=[2] * rank, groups=2), "up")
    after = apply_checked(ToChannelsLast(), net.module(y))
    (call,) = (b.value for b in op_bindings(after["main"]) if b.var.name == "up")
    spatial = "DHW"[-rank:]
    assert (str(call.attrs.data_layout), str(call.attrs.kernel_layout)) == (f"N{spatial}C", f"I{spatial}O")


def test_runtime_weight_stays() -> None:
    net = Net((1, 4, 6, 6), (3, 4, 3, 3))
    assert_unchanged(ToChannelsLast(), net.module(net(op.nn.conv2d(*net.inputs))))


ELEMENTWISE: dict[str, tuple[tuple[int, ...], Callable[[Expr, Expr], Expr]]] = {
    "same shape": ((2, 4, 5, 6), op.add),
    "per channel": ((4, 1, 1), op.multiply),
    "row": ((6,), op.subtract),
    "scalar": ((), op.add),
    "map of one channel": ((2, 1, 5, 6), op.multiply),
    "left": ((5, 6), lambda x, c: op.subtract(c, x)),
}


@pytest.mark.parametrize("runtime", [False, True])
@pytest.mark.parametrize(("shape", "make"), ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_elementwise_operands_follow(shape: tuple[int, ...], make: Callable[[Expr, Expr], Expr], runtime: bool) -> None:
    net = Net((2, 3, 5, 6), shape)
    conv = _conv(net, net.x, 4)
    y = net(make(conv, net.inputs[1] if runtime else const(weights(*shape))))
    after = apply_checked(ToChannelsLast(), net.module(_conv(net, y, 2)), terms=512)
    between = ops_of(after)[ops_of(after).index("conv2d") + 1:-2]
    assert between.count("permute_dims") <= (1 if runtime else 0)


def test_reductions_follow() -> None:
    for axes, keepdims in (([1], True), ([1], False), ([2], False), ([-1, 2], True), ([0, 3], False), (None, False)):
        net = Net((2, 3, 5, 6))
        y = net(op.max(_conv(net, net.x, 4), axes, keepdims))
        after = apply_checked(ToChannelsLast(), net.module(y), terms=256)
        assert op_name(op_bindings(after["main"])[2].value) == "relax.max"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_reshaped_layout_is_right(data: st.DataObject) -> None:
    source = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), "source"))
    axes = tuple(data.draw(st.permutations(range(len(source))), "axes"))
    split = data.draw(st.integers(0, len(source)), "split")
    result = (*source[:split], int(np.prod(source[split:])))
    if data.draw(st.booleans(), "units"):
        result = tuple(d for d in source if d != 1)
    array = np.arange(np.prod(source)).reshape(source)
    layout = reshaped_layout(source, axes, result)
    if layout is None:
        assert not moves_nothing(source, axes, tuple(range(len(source))))
        axes = with_runs_together(source, axes, result)
        layout = reshaped_layout(source, axes, result)
    assert layout is not None
    stored = array.transpose(axes).reshape([result[a] for a in layout])
    np.testing.assert_array_equal(stored, array.reshape(result).transpose(layout))


def test_extents_that_are_not_known_to_agree_are_one_run() -> None:
    """Windows put together: 4 · (width // 4) is not known to be the width, so no axis may move before the reshape."""
    batch, width = tvm.tirx.Var("batch", "int64"), tvm.tirx.Var("width", "int64")
    windows = (batch, width // 4, 2, 4, 8)
    assert reshaped_layout(windows, (0, 2, 1, 3, 4), (batch, 2, width, 8)) is None
    assert reshaped_layout(windows, (0, 4, 1, 2, 3), (batch, 2 * (width // 4), 4, 8)) == (0, 3, 1, 2)


def test_simplify_after_it_leaves_no_reshape_of_a_reshape() -> None:
    net = Net((2, 1, 1, 8))
    y = net(op.reshape(net.x, (2, 1, 8, 1)))
    mod = net.module(net(op.mean(_conv(net, y, 2), [2, 3])))
    after = apply_checked(Simplify(), apply_checked(ToChannelsLast(), mod))
    assert ops_of(after) == ["reshape", "conv2d", "mean"]
