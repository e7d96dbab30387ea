"""RecomposeLayerNorm, RecomposeRMSNorm, RecomposeSoftmax."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tvm import relax

from narrowcast.ir import Expr, constant_value, op_bindings
from narrowcast.passes import RecomposeLayerNorm, RecomposeRMSNorm, RecomposeSoftmax

from .graphs import EPS, Net, apply_checked, assert_unchanged, const, names_of, ops_of, weights

op = relax.op
EPSILON = 1e-5


def _mean(net: Net, x: Expr, axes: Sequence[int]) -> relax.Var:
    return net(op.mean(x, list(axes), keepdims=True))


def _square(net: Net, x: Expr, form: str) -> relax.Var:
    return net({"power": lambda: op.power(x, const(2.0)), "square": lambda: op.square(x),
                "product": lambda: op.multiply(x, x)}[form]())


def _over_root(net: Net, x: Expr, variance: Expr, form: str) -> relax.Var:
    shifted = net(op.add(variance, const(EPSILON)))
    if form == "sqrt":
        return net(op.divide(x, net(op.sqrt(shifted))), "norm")
    if form == "rsqrt":
        return net(op.multiply(x, net(op.rsqrt(shifted))), "norm")
    if form == "reciprocal":
        return net(op.multiply(x, net(op.divide(const(1.0), net(op.sqrt(shifted))))), "norm")
    return net(op.divide(x, net(op.power(shifted, const(0.5)))), "norm")


def _layer_norm(net: Net, x: Expr, axes: Sequence[int] = (-1,), square: str = "power", root: str = "sqrt") -> relax.Var:
    centred = net(op.subtract(x, _mean(net, x, axes)))
    return _over_root(net, centred, _mean(net, _square(net, centred, square), axes), root)


@pytest.mark.parametrize("square", ["power", "square", "product"])
@pytest.mark.parametrize("root", ["sqrt", "rsqrt", "reciprocal", "power"])
def test_layer_norm_in_its_forms(square: str, root: str) -> None:
    net = Net((2, 5, 16))
    gamma, beta = weights(16, seed=1), weights(16, seed=2)
    y = net(op.multiply(_layer_norm(net, net.x, square=square, root=root), const(gamma)), "gamma")
    after = apply_checked(RecomposeLayerNorm(), net.module(net(op.add(y, const(beta)), "beta")))
    assert ops_of(after) == ["layer_norm"]
    assert names_of(after) == ["beta"]
    call = op_bindings(after["main"])[0].value
    assert abs(float(call.attrs.epsilon) - EPSILON) <= EPS * EPSILON
    assert (constant_value(call.args[1]) == gamma).all()
    assert (constant_value(call.args[2]) == beta).all()
    assert_unchanged(RecomposeLayerNorm(), after)


def test_layer_norm_without_affine_map_and_over_two_axes() -> None:
    net = Net((2, 5, 16))
    after = apply_checked(RecomposeLayerNorm(), net.module(_layer_norm(net, net.x, axes=(1, 2))))
    assert ops_of(after) == ["layer_norm"]


def test_layer_norm_by_variance() -> None:
    net = Net((2, 16))
    centred = net(op.subtract(net.x, _mean(net, net.x, [1])))
    variance = net(op.variance(net.x, [1], keepdims=True))
    after = apply_checked(RecomposeLayerNorm(), net.module(_over_root(net, centred, variance, "sqrt")))
    assert ops_of(after) == ["layer_norm"]


def test_layer_norm_over_a_leading_axis_stays() -> None:
    net = Net((2, 5, 16))
    assert_unchanged(RecomposeLayerNorm(), net.module(_layer_norm(net, net.x, axes=(1,))))


def test_variance_of_another_value_stays() -> None:
    net = Net((2, 16), (2, 16))
    centred = net(op.subtract(net.x, _mean(net, net.x, [1])))
    other = net(op.subtract(net.inputs[1], _mean(net, net.inputs[1], [1])))
    variance = _mean(net, net(op.square(other)), [1])
    assert_unchanged(RecomposeLayerNorm(), net.module(_over_root(net, centred, variance, "sqrt")))


def test_affine_map_of_a_shared_norm_stays_apart() -> None:
    net = Net((2, 16))
    norm = _layer_norm(net, net.x)
    after = apply_checked(RecomposeLayerNorm(), net.module(norm, net(op.multiply(norm, const(weights(16))), "gamma")))
    assert ops_of(after) == ["layer_norm", "multiply"]


@pytest.mark.parametrize("root", ["sqrt", "rsqrt"])
def test_rms_norm(root: str) -> None:
    net = Net((2, 5, 16))
    norm = _over_root(net, net.x, _mean(net, _square(net, net.x, "power"), [-1]), root)
    after = apply_checked(RecomposeRMSNorm(), net.module(net(op.multiply(const(weights(16)), norm), "gamma")))
    assert ops_of(after) == ["rms_norm"]
    assert_unchanged(RecomposeRMSNorm(), after)


def test_rms_of_another_value_stays() -> None:
    net = Net((2, 16), (2, 16))
    norm = _over_root(net, net.x, _mean(net, _square(net, net.inputs[1], "power"), [-1]), "sqrt")
    assert_unchanged(RecomposeRMSNorm(), net.module(norm))


def _softmax(net: Net, x: Expr, maximum: int | None, total: int) -> relax.Var:
    if maximum is not None:
        x = net(op.subtract(x, net(op.max(x, [maximum], keepdims=True))))
    e = net(op.exp(x))
    return net(op.divide(e, net(op.sum(e, [total], keepdims=True))), "softmax")


@pytest.mark.parametrize(("maximum", "total"), [(1, 1), (-1, 2), (None, 2)])
def test_softmax(maximum: int | None, total: int) -> None:
    net = Net((2, 5, 16))
    after = apply_checked(RecomposeSoftmax(), net.module(_softmax(net, net.x, maximum, total)))
    assert ops_of(after) == ["softmax"]
    assert_unchanged(RecomposeSoftmax(), after)


def test_sum_of_other_exponentials_stays() -> None:
    net = Net((2, 16), (2, 16))
    e, other = net(op.exp(net.x)), net(op.exp(net.inputs[1]))
    assert_unchanged(RecomposeSoftmax(), net.module(net(op.divide(e, net(op.sum(other, [1], keepdims=True))))))
