"""Recognition of activations that exporters write out in elementary operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import tvm
from tvm import relax

from ..ir import Constant, Expr, dtype_of, same_dims
from ..operators import custom
from .graph import Graph, Replacement, is_close, replace_matches, same, scalar


@dataclass(frozen=True)
class RecomposeGelu:
    """Recognize GELU, exact or by tanh (Hendrycks and Gimpel, Gaussian Error Linear Units).

    Before::

        a = x / sqrt(2); b = relax.erf(a); c = b + 1; d = x * c; y = d * 0.5

    After::

        y = relax.nn.gelu(x)

    Requires: the normal form. The factors may stand in any order and place: ``0.5 x (1 + erf(x / √2))`` and
    ``0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))``, the cube as a power or as products.
    Ensures: one ``relax.nn.gelu`` or ``relax.nn.gelu_tanh`` under the name of the form's last op.
    Does not fire when: a constant is another one than the form's, to float32's rounding, or ``x`` is not one tensor.
    """

    name: str = "RecomposeGelu"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, lambda graph, binding: _gelu(graph, binding.var))


@dataclass(frozen=True)
class RecomposeSilu:
    """Recognize SiLU, also called swish (Ramachandran et al., Searching for Activation Functions).

    Before::

        a = relax.sigmoid(x); y = x * a

    After::

        y = relax.nn.silu(x)

    Requires: the normal form.
    Ensures: one ``relax.nn.silu`` under the product's name.
    Does not fire when: the sigmoid is of another value than its co-factor (a gate).
    """

    name: str = "RecomposeSilu"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, lambda graph, binding: _silu(graph, binding.var))


@dataclass(frozen=True)
class RecomposeHardActivations:
    """Recognize hard-sigmoid and hard-swish (Howard et al., Searching for MobileNetV3).

    Before::

        a = x + 3; b = relax.clip(a, 0, 6); c = b / 6; y = x * c

    After::

        y = narrowcast.hard_swish(x)

    Requires: the normal form. The clip may follow the division: ``clip(x / 6 + 0.5, 0, 1)``; the division by 6 may
    be a multiplication, and may follow the product with ``x``.
    Ensures: one ``narrowcast.hard_sigmoid`` or ``narrowcast.hard_swish`` under the name of the form's last op.
    Does not fire when: slope, offset or limits are others (0.2 x + 0.5, ONNX's default, stays written out).
    """

    name: str = "RecomposeHardActivations"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, lambda graph, binding: _hard(graph, binding.var))


def _unary(x: Expr, root: Expr, op: Callable[[Expr], Expr]) -> Replacement | None:
    if isinstance(x, Constant) or not same_dims(x, root) or dtype_of(root) != "float32":
        return None
    return Replacement((x,), lambda emit, value: op(value))


def factors_of(graph: Graph, root: Expr, depth: int = 4) -> tuple[list[Expr], float]:
    """The factors of a product tree and the product of its scalar constants."""
    if depth == 0:
        return [root], 1.0
    rest, scale = graph.scaled(root)
    call = graph.call(rest, "relax.multiply")
    if not same(rest, root):
        factors, inner = factors_of(graph, rest, depth - 1)
        return factors, scale * inner
    if call is None:
        return [root], 1.0
    left, left_scale = factors_of(graph, call.args[0], depth - 1)
    right, right_scale = factors_of(graph, call.args[1], depth - 1)
    return [*left, *right], left_scale * right_scale


def _gelu(graph: Graph, root: relax.Var) -> Replacement | None:
    if graph.call(root, "relax.multiply", "relax.divide") is None:
        return None
    factors, scale = factors_of(graph, root)
    if len(factors) != 2:
        return None
    for x, gate in (factors, reversed(factors)):
        shifted = graph.with_scalar(gate, "relax.add")
        if shifted is None:
            continue
        inner, inner_scale = graph.scaled(shifted[0])
        # scale · x · (inner_scale · f + offset), which is 0.5 · x · (1 + f)
        if not (is_close(scale * inner_scale, 0.5) and is_close(scale * shifted[1], 0.5)):
            continue
        if _is_erf_gate(graph, inner, x):
            return _unary(x, root, relax.op.nn.gelu)
        if _is_tanh_gate(graph, inner, x):
            return _unary(x, root, relax.op.nn.gelu_tanh)
    return None


def _is_erf_gate(graph: Graph, expr: Expr, x: Expr) -> bool:
    call = graph.call(expr, "relax.erf")
    if call is None:
        return False
    source, scale = graph.scaled(call.args[0])
    return same(source, x) and is_close(scale, math.sqrt(0.5))


def _is_tanh_gate(graph: Graph, expr: Expr, x: Expr) -> bool:
    call = graph.call(expr, "relax.tanh")
    if call is None:
        return False
    factors, scale = factors_of(graph, call.args[0])
    if len(factors) == 1:
        return _is_cubic(graph, factors[0], x, 1.0) and is_close(scale, math.sqrt(2.0 / math.pi))
    if len(factors) != 2 or not any(same(f, x) for f in factors):
        return False
    rest = factors[1] if same(factors[0], x) else factors[0]
    # x · (1 + 0.044715 x²)
    shifted = graph.with_scalar(rest, "relax.add")
    return (shifted is not None and is_close(shifted[1], 1.0) and is_close(scale, math.sqrt(2.0 / math.pi))
            and _is_power(graph, shifted[0], x, 2, 0.044715))


def _is_cubic(graph: Graph, expr: Expr, x: Expr, scale: float) -> bool:
    call = graph.call(expr, "relax.add")
    if call is None:
        return False
    return any(same(linear, x) and _is_power(graph, cube, x, 3, 0.044715)
               for linear, cube in (call.args, reversed(call.args)))


def _is_power(graph: Graph, expr: Expr, x: Expr, exponent: int, scale: float) -> bool:
    """Whether ``expr`` is ``scale · x ** exponent``, as powers, squares and products."""
    factors, found = factors_of(graph, expr)
    total = 0
    for factor in factors:
        degree = _degree(graph, factor, x)
        if degree is None:
            return False
        total += degree
    return total == exponent and is_close(found, scale)


def _degree(graph: Graph, factor: Expr, x: Expr) -> int | None:
    if same(factor, x):
        return 1
    square = graph.call(factor, "relax.square")
    if square is not None:
        return 2 if same(square.args[0], x) else None
    power = graph.call(factor, "relax.power")
    value = scalar(power.args[1]) if power is not None and same(power.args[0], x) else None
    return int(value) if value is not None and value in (2.0, 3.0) else None


def _silu(graph: Graph, root: relax.Var) -> Replacement | None:
    call = graph.call(root, "relax.multiply")
    for x, gate in _orders(call):
        sigmoid = graph.call(gate, "relax.sigmoid")
        if sigmoid is not None and same(sigmoid.args[0], x):
            return _unary(x, root, relax.op.nn.silu)
    return None


def _orders(call: relax.Call | None) -> Iterable[tuple[Expr, Expr]]:
    return () if call is None else ((call.args[0], call.args[1]), (call.args[1], call.args[0]))


def _hard(graph: Graph, root: relax.Var) -> Replacement | None:
    # The root's own readers may complete the form; then they are roots too, and the root's value is unused.
    x = _hard_sigmoid_source(graph, root)
    if x is not None:
        return _unary(x, root, custom.hard_sigmoid)
    if graph.call(root, "relax.multiply", "relax.divide") is None:
        return None
    factors, scale = factors_of(graph, root)
    if len(factors) != 2:
        return None
    for source, gate in (factors, reversed(factors)):
        written_out = is_close(scale, 1.0 / 6.0) and _is_relu6(graph, gate, source)
        named = graph.call(gate, "narrowcast.hard_sigmoid")
        of_named = named is not None and same(named.args[0], source)
        of_form = (gate_source := _hard_sigmoid_source(graph, gate)) is not None and same(gate_source, source)
        if written_out or (is_close(scale, 1.0) and (of_named or of_form)):
            return _unary(source, root, custom.hard_swish)
    return None


def _is_relu6(graph: Graph, expr: Expr, x: Expr) -> bool:
    """Whether ``expr`` is ``clip(x + 3, 0, 6)``."""
    clipped = _clipped(graph, expr, 0.0, 6.0)
    shifted = graph.with_scalar(clipped, "relax.add") if clipped is not None else None
    return shifted is not None and same(shifted[0], x) and is_close(shifted[1], 3.0)


def _clipped(graph: Graph, expr: Expr, low: float, high: float) -> Expr | None:
    call = graph.call(expr, "relax.clip")
    if call is not None and float(call.args[1].value) == low and float(call.args[2].value) == high:
        return call.args[0]
    if low == 0.0 and (call := graph.call(expr, "relax.nn.relu6")) is not None and high == 6.0:
        return call.args[0]
    upper = graph.with_scalar(expr, "relax.minimum")
    rectified = graph.call(upper[0], "relax.nn.relu") if upper is not None and is_close(upper[1], high) else None
    return rectified.args[0] if rectified is not None and low == 0.0 else None


def _hard_sigmoid_source(graph: Graph, expr: Expr) -> Expr | None:
    """``x`` where ``expr`` is ``clip(x + 3, 0, 6) / 6`` or ``clip(x / 6 + 0.5, 0, 1)``."""
    relu6, scale = graph.scaled(expr)
    clipped = _clipped(graph, relu6, 0.0, 6.0) if is_close(scale, 1.0 / 6.0) else None
    shifted = graph.with_scalar(clipped, "relax.add") if clipped is not None else None
    if shifted is not None and is_close(shifted[1], 3.0):
        return shifted[0]
    clipped = _clipped(graph, expr, 0.0, 1.0)
    shifted = graph.with_scalar(clipped, "relax.add") if clipped is not None else None
    if shifted is None or not is_close(shifted[1], 0.5):
        return None
    source, slope = graph.scaled(shifted[0])
    return source if is_close(slope, 1.0 / 6.0) else None


