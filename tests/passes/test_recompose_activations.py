"""RecomposeGelu, RecomposeSilu, RecomposeHardActivations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tvm import relax

from narrowcast.ir import Expr
from narrowcast.passes import RecomposeGelu, RecomposeHardActivations, RecomposeSilu
from narrowcast.passes.base import Pass

from .graphs import Net, apply_checked, assert_unchanged, const, names_of, ops_of

op = relax.op
Form = Callable[[Net, Expr], Expr]


def _erf_gelu_of_onnx(net: Net, x: Expr) -> Expr:
    gate = net(op.add(net(op.erf(net(op.divide(x, const(math.sqrt(2)))))), const(1.0)))
    return op.multiply(net(op.multiply(x, gate)), const(0.5))


def _erf_gelu_of_pytorch(net: Net, x: Expr) -> Expr:
    half = net(op.multiply(x, const(0.5)))
    gate = net(op.add(net(op.erf(net(op.multiply(x, const(math.sqrt(0.5)))))), const(1.0)))
    return op.multiply(half, gate)


def _erf_gelu_of_halves(net: Net, x: Expr) -> Expr:
    erf = net(op.erf(net(op.multiply(const(math.sqrt(0.5)), x))))
    gate = net(op.add(const(0.5), net(op.multiply(erf, const(0.5)))))
    return op.multiply(gate, x)


def _tanh_gelu(net: Net, x: Expr, cube: Callable[[Expr], Expr]) -> Expr:
    inner = net(op.add(x, net(op.multiply(cube(x), const(0.044715)))))
    gate = net(op.add(net(op.tanh(net(op.multiply(inner, const(math.sqrt(2 / math.pi)))))), const(1.0)))
    return op.multiply(net(op.multiply(x, const(0.5))), gate)


def _tanh_gelu_by_power(net: Net, x: Expr) -> Expr:
    return _tanh_gelu(net, x, lambda v: net(op.power(v, const(3.0))))


def _tanh_gelu_by_products(net: Net, x: Expr) -> Expr:
    return _tanh_gelu(net, x, lambda v: net(op.multiply(net(op.multiply(v, v)), v)))


def _tanh_gelu_factored(net: Net, x: Expr) -> Expr:
    square = net(op.multiply(net(op.square(x)), const(0.044715)))
    inner = net(op.multiply(x, net(op.add(square, const(1.0)))))
    gate = net(op.add(net(op.tanh(net(op.multiply(inner, const(math.sqrt(2 / math.pi)))))), const(1.0)))
    return op.multiply(net(op.multiply(x, gate)), const(0.5))


def _silu(net: Net, x: Expr) -> Expr:
    return op.multiply(net(op.sigmoid(x)), x)


def _relu6(net: Net, x: Expr) -> Expr:
    return net(op.clip(net(op.add(x, const(3.0))), 0.0, 6.0))


def _hard_sigmoid(net: Net, x: Expr) -> Expr:
    return op.divide(_relu6(net, x), const(6.0))


def _hard_sigmoid_by_slope(net: Net, x: Expr) -> Expr:
    return op.clip(net(op.add(net(op.multiply(x, const(1 / 6))), const(0.5))), 0.0, 1.0)


def _hard_swish(net: Net, x: Expr) -> Expr:
    return op.multiply(x, net(_hard_sigmoid(net, x)))


def _hard_swish_divided_last(net: Net, x: Expr) -> Expr:
    return op.multiply(net(op.multiply(x, _relu6(net, x))), const(1 / 6))


def _hard_swish_by_slope(net: Net, x: Expr) -> Expr:
    return op.multiply(net(_hard_sigmoid_by_slope(net, x)), x)


FORMS: list[tuple[Pass, Form, str]] = [
    (RecomposeGelu(), _erf_gelu_of_onnx, "gelu"),
    (RecomposeGelu(), _erf_gelu_of_pytorch, "gelu"),
    (RecomposeGelu(), _erf_gelu_of_halves, "gelu"),
    (RecomposeGelu(), _tanh_gelu_by_power, "gelu_tanh"),
    (RecomposeGelu(), _tanh_gelu_by_products, "gelu_tanh"),
    (RecomposeGelu(), _tanh_gelu_factored, "gelu_tanh"),
    (RecomposeSilu(), _silu, "silu"),
    (RecomposeHardActivations(), _hard_sigmoid, "hard_sigmoid"),
    (RecomposeHardActivations(), _hard_sigmoid_by_slope, "hard_sigmoid"),
    (RecomposeHardActivations(), _hard_swish, "hard_swish"),
    (RecomposeHardActivations(), _hard_swish_divided_last, "hard_swish"),
    (RecomposeHardActivations(), _hard_swish_by_slope, "hard_swish"),
]


@pytest.mark.parametrize(("step", "form", "operator"), FORMS, ids=[f[1].__name__[1:] for f in FORMS])
def test_written_out_forms_are_recognized(step: Pass, form: Form, operator: str) -> None:
    net = Net((3, 7))
    after = apply_checked(step, net.module(net(form(net, net.x), "act")))
    assert ops_of(after) == [operator]
    assert names_of(after) == ["act"]
    assert_unchanged(step, after)


def _gelu_of_another_constant(net: Net, x: Expr) -> Expr:
    gate = net(op.add(net(op.erf(net(op.divide(x, const(1.5))))), const(1.0)))
    return op.multiply(net(op.multiply(x, gate)), const(0.5))


def _gelu_of_another_half(net: Net, x: Expr) -> Expr:
    gate = net(op.add(net(op.erf(net(op.divide(x, const(math.sqrt(2)))))), const(1.0)))
    return op.multiply(net(op.multiply(x, gate)), const(0.25))


def _onnx_hard_sigmoid(net: Net, x: Expr) -> Expr:
    return op.clip(net(op.add(net(op.multiply(x, const(0.2))), const(0.5))), 0.0, 1.0)


def _relu6_of_another_limit(net: Net, x: Expr) -> Expr:
    return op.divide(net(op.clip(net(op.add(x, const(3.0))), 0.0, 5.0)), const(6.0))


NOT_FORMS: list[tuple[Pass, Form]] = [
    (RecomposeGelu(), _gelu_of_another_constant), (RecomposeGelu(), _gelu_of_another_half),
    (RecomposeHardActivations(), _onnx_hard_sigmoid), (RecomposeHardActivations(), _relu6_of_another_limit),
]


@pytest.mark.parametrize(("step", "form"), NOT_FORMS, ids=[f[1].__name__[1:] for f in NOT_FORMS])
def test_other_constants_stay(step: Pass, form: Form) -> None:
    net = Net((3, 7))
    assert_unchanged(step, net.module(net(form(net, net.x))))


def test_gate_of_another_value_stays() -> None:
    net = Net((3, 7), (3, 7))
    gate = net(op.sigmoid(net.inputs[1]))
    assert_unchanged(RecomposeSilu(), net.module(net(op.multiply(net.x, gate))))


def test_shared_sigmoid_stays_beside_the_silu() -> None:
    net = Net((3, 7))
    gate = net(op.sigmoid(net.x), "gate")
    after = apply_checked(RecomposeSilu(), net.module(net(op.multiply(net.x, gate), "act"), gate))
    assert ops_of(after) == ["sigmoid", "silu"]
