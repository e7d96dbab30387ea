"""Recognition of softmax and normalizations that exporters write out in elementary operators."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from ..dims import product_of
from ..ir import Constant, Expr, constant, constant_value, dims_of, dtype_of, op_name, same_dims
from .graph import Graph, Replacement, is_close, replace_matches, same, scalar

# Products with and sums of constants that may follow a normalization and belong to it.
_STEPS = 4


@dataclass(frozen=True)
class RecomposeLayerNorm:
    """Recognize layer normalization (Ba, Kiros and Hinton), and merge an affine map that follows one.

    Before::

        m = relax.mean(x, axis=[-1], keepdims=True); d = x - m; s = relax.square(d)
        v = relax.mean(s, axis=[-1], keepdims=True); r = relax.sqrt(v + eps); n = d / r; g = n * gamma; y = g + beta

    After::

        y = relax.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=eps)

    Requires: the normal form. The variance may be ``relax.variance``, its square a power or a product, the division
    a product with ``rsqrt``; gamma and beta may be missing.
    Ensures: one ``relax.nn.layer_norm`` with constant gamma and beta under the name of the form's last op.
    Does not fire when: the axes are not the trailing ones, or gamma and beta do not have their shape; an affine map
    stays apart where the normalized value has another reader.
    """

    name: str = "RecomposeLayerNorm"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, lambda graph, binding: _replacement(graph, binding, "relax.nn.layer_norm"))


@dataclass(frozen=True)
class RecomposeRMSNorm:
    """Recognize root mean square normalization (Zhang and Sennrich).

    Before::

        s = relax.square(x); m = relax.mean(s, axis=[-1], keepdims=True); r = relax.rsqrt(m + eps)
        n = x * r; y = n * gamma

    After::

        y = relax.nn.rms_norm(x, gamma, axes=[-1], epsilon=eps)

    Requires, Ensures, Does not fire when: as ``RecomposeLayerNorm``, without beta.
    """

    name: str = "RecomposeRMSNorm"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, lambda graph, binding: _replacement(graph, binding, "relax.nn.rms_norm"))


@dataclass(frozen=True)
class RecomposeSoftmax:
    """Recognize softmax.

    Before::

        m = relax.max(x, axis=[-1], keepdims=True); e = relax.exp(x - m)
        s = relax.sum(e, axis=[-1], keepdims=True); y = e / s

    After::

        y = relax.nn.softmax(x, axis=-1)

    Requires: the normal form. The subtraction of the maximum may be missing.
    Ensures: one ``relax.nn.softmax`` under the division's name.
    Does not fire when: maximum and sum run over different axes, or over several.
    """

    name: str = "RecomposeSoftmax"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, lambda graph, binding: _softmax(graph, binding.var))


@dataclass(frozen=True)
class _Norm:
    """``gamma * normalized(x) + beta`` over the trailing ``rank`` axes; ``kind`` is the operator's name."""

    kind: str
    x: Expr
    gamma: np.ndarray
    beta: np.ndarray
    epsilon: float

    @property
    def axes(self) -> list[int]:
        return list(range(-self.gamma.ndim, 0))

    def call(self, x: Expr) -> relax.Call:
        gamma = constant(self.gamma.astype(np.float32))
        if self.kind == "relax.nn.rms_norm":
            return relax.op.nn.rms_norm(x, gamma, axes=self.axes, epsilon=self.epsilon)
        beta = constant(self.beta.astype(np.float32))
        return relax.op.nn.layer_norm(x, gamma, beta, axes=self.axes, epsilon=self.epsilon)


def _replacement(graph: Graph, binding: relax.VarBinding, kind: str) -> Replacement | None:
    if op_name(binding.value) not in ("relax.multiply", "relax.divide", "relax.add"):
        return None
    norm = _norm(graph, binding.var, kind)
    if norm is None or isinstance(norm.x, Constant) or dtype_of(binding.var) != "float32":
        return None
    return Replacement((norm.x,), lambda emit, x: norm.call(x))


def _norm(graph: Graph, expr: Expr, kind: str, steps: int = _STEPS) -> _Norm | None:
    """The normalization that ``expr`` is, behind at most so many products with and sums of constants."""
    named = graph.call(expr, kind)
    if named is not None:
        return _named(named, kind)
    core = _layer_core(graph, expr) if kind == "relax.nn.layer_norm" else _rms_core(graph, expr)
    return core if core is not None or steps == 0 else _affine(graph, expr, kind, steps)


def _named(call: relax.Call, kind: str) -> _Norm | None:
    axes = sorted(int(a) % len(dims_of(call)) for a in call.attrs.axes)
    trailing = axes == list(range(len(dims_of(call)) - len(axes), len(dims_of(call))))
    if not trailing or not all(isinstance(a, Constant) for a in call.args[1:]):
        return None
    gamma = constant_value(call.args[1]).astype(np.float64)
    beta = constant_value(call.args[2]).astype(np.float64) if len(call.args) > 2 else np.zeros_like(gamma)
    return _Norm(kind, call.args[0], gamma, beta, float(call.attrs.epsilon))


def _affine(graph: Graph, expr: Expr, kind: str, steps: int) -> _Norm | None:
    operators = ("relax.multiply", "relax.add") if kind == "relax.nn.layer_norm" else ("relax.multiply",)
    call = graph.call(expr, *operators)
    if call is None:
        return None
    for inner, factor in (call.args, reversed(call.args)):
        if not isinstance(factor, Constant) or not isinstance(inner, relax.Var) or graph.only_reader(inner) is None:
            continue
        norm = _norm(graph, inner, kind, steps - 1)
        value = constant_value(factor).astype(np.float64)
        if norm is None or not same_dims(inner, expr):
            continue
        shape = norm.gamma.shape
        extra = max(value.ndim - len(shape), 0)
        if any(d != 1 for d in value.shape[:extra]):
            continue
        value = np.broadcast_to(value.reshape(value.shape[extra:]), shape)
        if op_name(call) == "relax.multiply":
            return replace(norm, gamma=norm.gamma * value, beta=norm.beta * value)
        return replace(norm, beta=norm.beta + value)
    return None


def _over_deviation(graph: Graph, expr: Expr) -> tuple[Expr, Expr, float] | None:
    """``(d, v, eps)`` where ``expr`` is ``d / sqrt(v + eps)`` in one of its forms."""
    call = graph.call(expr, "relax.divide", "relax.multiply")
    if call is None:
        return None
    orders = [tuple(call.args)] if op_name(call) == "relax.divide" else [tuple(call.args), tuple(reversed(call.args))]
    for numerator, other in orders:
        radicand = _root_of(graph, other, inverse=op_name(call) == "relax.multiply")
        shifted = graph.with_scalar(radicand, "relax.add") if radicand is not None else None
        if shifted is not None and shifted[1] > 0.0:
            return numerator, shifted[0], shifted[1]
    return None


def _root_of(graph: Graph, expr: Expr, *, inverse: bool) -> Expr | None:
    """``r`` where ``expr`` is ``sqrt(r)``, or ``1 / sqrt(r)`` if ``inverse``."""
    call = graph.call(expr, "relax.rsqrt" if inverse else "relax.sqrt")
    if call is not None:
        return call.args[0]
    power = graph.call(expr, "relax.power")
    if power is not None and is_close(scalar(power.args[1]), -0.5 if inverse else 0.5):
        return power.args[0]
    quotient = graph.call(expr, "relax.divide") if inverse else None
    if quotient is not None and is_close(scalar(quotient.args[0]), 1.0):
        return _root_of(graph, quotient.args[1], inverse=False)
    return None


def _reduction(graph: Graph, expr: Expr, op: str) -> tuple[Expr, tuple[int, ...]] | None:
    """``(x, axes)`` of a reduction that keeps its dimensions; the axes are non-negative."""
    call = graph.call(expr, op)
    if call is None or not bool(call.attrs.keepdims):
        return None
    rank = len(dims_of(call.args[0]))
    axes = range(rank) if call.attrs.axis is None else [int(a) % rank for a in call.attrs.axis]
    return call.args[0], tuple(sorted(axes))


def _mean(graph: Graph, expr: Expr) -> tuple[Expr, tuple[int, ...]] | None:
    found = _reduction(graph, expr, "relax.mean")
    if found is not None:
        return found
    total, scale = graph.scaled(expr)
    found = _reduction(graph, total, "relax.sum")
    if found is None:
        return None
    count = product_of(dims_of(found[0])[a] for a in found[1])
    return found if isinstance(count, int) and is_close(scale, 1.0 / count) else None


def _squared(graph: Graph, expr: Expr) -> Expr | None:
    """``x`` where ``expr`` is ``x²``."""
    call = graph.call(expr, "relax.square", "relax.power", "relax.multiply")
    if call is None:
        return None
    x = call.args[0]
    if op_name(call) == "relax.power" and scalar(call.args[1]) != 2.0:
        return None
    return x if op_name(call) != "relax.multiply" or same(x, call.args[1]) else None


def _trailing(x: Expr, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The extents of ``axes`` where these are the last ones of ``x``."""
    shape = dims_of(x)
    first = len(shape) - len(axes)
    extents = tuple(d for d in shape[first:] if isinstance(d, int))
    return extents if axes == tuple(range(first, len(shape))) and len(extents) == len(axes) else None


def _layer_core(graph: Graph, expr: Expr) -> _Norm | None:
    form = _over_deviation(graph, expr)
    if form is None:
        return None
    centred, variance, epsilon = form
    difference = graph.call(centred, "relax.subtract")
    mean = _mean(graph, difference.args[1]) if difference is not None else None
    if difference is None or mean is None or not same(mean[0], difference.args[0]):
        return None
    x, axes = mean
    extents = _trailing(x, axes)
    if extents is None or not _is_variance(graph, variance, x, axes):
        return None
    return _Norm("relax.nn.layer_norm", x, np.ones(extents), np.zeros(extents), epsilon)


def _is_variance(graph: Graph, expr: Expr, x: Expr, axes: tuple[int, ...]) -> bool:
    named = _reduction(graph, expr, "relax.variance")
    if named is not None:
        return same(named[0], x) and named[1] == axes
    mean = _mean(graph, expr)
    deviation = _squared(graph, mean[0]) if mean is not None and mean[1] == axes else None
    difference = graph.call(deviation, "relax.subtract") if deviation is not None else None
    centre = _mean(graph, difference.args[1]) if difference is not None else None
    return (difference is not None and centre is not None and same(difference.args[0], x)
            and same(centre[0], x) and centre[1] == axes)


def _rms_core(graph: Graph, expr: Expr) -> _Norm | None:
    form = _over_deviation(graph, expr)
    if form is None:
        return None
    x, square_mean, epsilon = form
    mean = _mean(graph, square_mean)
    source = _squared(graph, mean[0]) if mean is not None else None
    extents = _trailing(x, mean[1]) if mean is not None else None
    if source is None or extents is None or not same(source, x):
        return None
    return _Norm("relax.nn.rms_norm", x, np.ones(extents), np.zeros(extents), epsilon)


def _softmax(graph: Graph, root: relax.Var) -> Replacement | None:
    quotient = graph.call(root, "relax.divide")
    total = _reduction(graph, quotient.args[1], "relax.sum") if quotient is not None else None
    exponential = graph.call(quotient.args[0], "relax.exp") if quotient is not None else None
    if quotient is None or total is None or exponential is None:
        return None
    if not same(total[0], quotient.args[0]) or len(total[1]) != 1:
        return None
    x, axis = exponential.args[0], total[1][0]
    shifted = graph.call(x, "relax.subtract")
    maximum = _reduction(graph, shifted.args[1], "relax.max") if shifted is not None else None
    if shifted is not None and maximum is not None and same(maximum[0], shifted.args[0]) and maximum[1] == (axis,):
        x = shifted.args[0]
    return Replacement((x,), lambda emit, value: relax.op.nn.softmax(value, axis=axis))
