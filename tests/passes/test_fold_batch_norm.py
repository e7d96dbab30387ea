"""FoldBatchNorm."""

from __future__ import annotations

import pytest
from tvm import relax

from narrowcast.ir import Expr
from narrowcast.passes import FoldBatchNorm

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, names_of, ops_of, weights

op = relax.op
SCALE, SHIFT, BIAS = weights(4, 1, 1, seed=1), weights(4, 1, 1, seed=2), weights(4, 1, 1, seed=3)


def test_scale_and_shift_go_into_weights_and_bias() -> None:
    weight = weights(4, 3, 3, 3)
    before, expected = Net((1, 3, 6, 6)), Net((1, 3, 6, 6))
    y = before(op.nn.conv2d(before.x, const(weight), padding=1), "conv")
    y = before(op.add(y, const(BIAS)), "bias")
    y = before(op.multiply(y, const(SCALE)), "scale")
    before = before.module(before(op.add(y, const(SHIFT)), "bn"))
    y = expected(op.nn.conv2d(expected.x, const(weight * SCALE[:, None]), padding=1), "conv")
    expected = expected.module(expected(op.add(y, const(BIAS * SCALE + SHIFT)), "bn"))
    after = apply_checked(FoldBatchNorm(), before)
    assert_equal(after, expected)
    assert_unchanged(FoldBatchNorm(), after)


FORMS = {
    "conv1d": ((1, 3, 8), lambda x: op.nn.conv1d(x, const(weights(4, 3, 3)))),
    "grouped conv2d": ((1, 6, 5, 5), lambda x: op.nn.conv2d(x, const(weights(4, 3, 3, 3)), groups=2)),
    "depthwise conv2d": ((1, 4, 5, 5), lambda x: op.nn.conv2d(x, const(weights(4, 1, 3, 3)), groups=4)),
    "conv3d": ((1, 2, 4, 4, 4), lambda x: op.nn.conv3d(x, const(weights(4, 2, 2, 2, 2)))),
    "conv1d_transpose": ((1, 3, 5), lambda x: op.nn.conv1d_transpose(x, const(weights(3, 4, 3)))),
    "conv2d_transpose": ((1, 3, 5, 5), lambda x: op.nn.conv2d_transpose(x, const(weights(3, 4, 2, 2)), strides=(2, 2))),
    "grouped conv2d_transpose": (
        (1, 6, 5, 5), lambda x: op.nn.conv2d_transpose(x, const(weights(6, 2, 2, 2)), groups=2)),
}


@pytest.mark.parametrize(("shape", "make"), FORMS.values(), ids=FORMS)
def test_every_convolution_takes_the_scale_of_its_outputs(shape: tuple[int, ...], make: object) -> None:
    net = Net(shape)
    y = net(make(net.x), "conv")  # type: ignore[operator]
    trailing = (1,) * (len(shape) - 2)
    y = net(op.multiply(y, const(SCALE.reshape(4, *trailing))), "scale")
    after = apply_checked(FoldBatchNorm(), net.module(net(op.add(y, const(SHIFT.reshape(4, *trailing))), "shift")))
    assert len(ops_of(after)) == 2
    assert names_of(after) == ["conv", "shift"]


@pytest.mark.parametrize(("shape", "make"), FORMS.values(), ids=FORMS)
def test_every_convolution_takes_the_scale_of_its_inputs(shape: tuple[int, ...], make: object) -> None:
    net = Net(shape)
    factor = weights(1, shape[1], *(1,) * (len(shape) - 2), seed=5)
    y = net(op.multiply(net.x, const(factor)), "scale")
    after = apply_checked(FoldBatchNorm(), net.module(net(make(y), "conv")))  # type: ignore[operator]
    assert names_of(after) == ["conv"]


@pytest.mark.parametrize("groups", [1, 3])
def test_shift_before_a_convolution_without_padding_becomes_its_bias(groups: int) -> None:
    net = Net((1, 3, 6, 6))
    y = net(op.subtract(net.x, const(weights(3, 1, 1))), "mean")
    y = net(op.divide(y, const([[[2.0]], [[4.0]], [[0.5]]])), "deviation")
    y = net(op.nn.conv2d(y, const(weights(6, 3 // groups, 3, 3)), groups=groups), "conv")
    after = apply_checked(FoldBatchNorm(), net.module(y))
    assert names_of(after) == ["conv", "conv.1"]


def test_shift_through_padding_is_refused() -> None:
    net = Net((1, 3, 6, 6))
    y = net(op.add(net.x, const(weights(3, 1, 1))), "mean")
    mod = net.module(net(op.nn.conv2d(y, const(weights(4, 3, 3, 3)), padding=1), "conv"))
    assert_unchanged(FoldBatchNorm(), mod)
    assert FoldBatchNorm().refusals(mod) == [("conv", "a shift of the input would pass through the padding")]


def test_linear_layer_takes_the_scale_of_both_sides() -> None:
    net = Net((2, 5, 8))
    y = net(op.multiply(net.x, const(weights(8))), "before")
    y = net(op.add(y, const(weights(8, seed=1))), "shift")
    y = net(op.matmul(y, const(weights(8, 4))), "fc")
    y = net(op.multiply(y, const(0.125)), "after")
    after = apply_checked(FoldBatchNorm(), net.module(y))
    assert ops_of(after) == ["matmul", "add"]


def test_another_reader_of_the_convolution_is_refused() -> None:
    net = Net((1, 3, 6, 6))
    conv = net(op.nn.conv2d(net.x, const(weights(4, 3, 3, 3))), "conv")
    scaled = net(op.multiply(conv, const(SCALE)), "scale")
    mod = net.module(net(op.add(scaled, conv), "sum"))
    assert_unchanged(FoldBatchNorm(), mod)
    assert FoldBatchNorm().refusals(mod) == [("scale", "the value of conv has another reader")]


def _plain_bias(x: Expr) -> Expr:
    return op.add(x, const(SHIFT))


def _per_pixel(x: Expr) -> Expr:
    return op.multiply(x, const(weights(4, 4)))


@pytest.mark.parametrize("step", [_plain_bias, _per_pixel])
def test_bias_alone_and_other_constants_stay(step: object) -> None:
    net = Net((1, 3, 6, 6))
    conv = net(op.nn.conv2d(net.x, const(weights(4, 3, 3, 3))), "conv")
    assert_unchanged(FoldBatchNorm(), net.module(net(step(conv), "y")))  # type: ignore[operator]


def test_negated_difference_is_a_scale() -> None:
    net = Net((1, 3, 4, 4))
    conv = net(op.nn.conv2d(net.x, const(weights(4, 3, 1, 1))), "conv")
    after = apply_checked(FoldBatchNorm(), net.module(net(op.subtract(const(SHIFT), conv), "y")))
    assert ops_of(after) == ["conv2d", "add"]
