"""The elementwise operators of the normal form as vector code: one table from operator to emitter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.script.ir_builder import tirx as T

from ...errors import UnsupportedOperatorError
from ...ir import Constant, constant_value, op_name
from ...operators.quantization import Grid
from . import vector_math as vm
from . import vector_math_inverse as inverse
from .vector_math import Vector, splat

Emitter = Callable[[relax.Call, Sequence[Vector]], Vector]


def scalar_of(expr: tvm.ir.Expr) -> float | None:
    """The value of a constant with one element, or of an immediate; None for anything else."""
    if isinstance(expr, Constant):
        array = constant_value(expr)
        return float(array.reshape(-1)[0]) if array.size == 1 else None
    if isinstance(expr, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return float(expr.value)
    return None


def tensor_operands(call: relax.Call) -> tuple[tvm.ir.Expr, ...]:
    """The arguments of an elementwise call that are tensors (clip's bounds and power's exponent are not)."""
    name = op_name(call)
    if name == "relax.clip" or (name == "relax.power" and scalar_of(call.args[1]) is not None):
        return (call.args[0],)
    return tuple(call.args)


def is_elementwise(call: tvm.ir.Expr) -> bool:
    """Whether the kernels can apply this operator element by element."""
    return op_name(call) in EMITTERS


def is_polynomial(call: relax.Call) -> bool:
    """Whether the operator is computed by a polynomial, in many steps of which each waits for the one before."""
    return op_name(call) in _POLYNOMIALS


def emit_op(call: relax.Call, operands: Sequence[Vector], layer: str) -> Vector:
    """The operator applied to vectors, one per entry of ``tensor_operands``.

    Raises UnsupportedOperatorError for an operator that is not elementwise.
    """
    if not is_elementwise(call):
        raise UnsupportedOperatorError("no vector code for this operator", layer=layer, found=op_name(call))
    return EMITTERS[op_name(call) or ""](call, operands)


def _constant(value: float, like: Vector) -> Vector:
    return splat(float(value), vm.lanes_of(like))


def _unary(function: Callable[[Vector], Vector]) -> Emitter:
    return lambda call, operands: function(operands[0])


def _binary(function: Callable[[Vector, Vector], Vector]) -> Emitter:
    return lambda call, operands: function(operands[0], operands[1])


def _clip(call: relax.Call, operands: Sequence[Vector]) -> Vector:
    low, high = scalar_of(call.args[1]), scalar_of(call.args[2])
    x = operands[0]
    if low is not None and low > float("-inf"):
        x = vm.bound(vm.larger(x, low))
    if high is not None and high < float("inf"):
        x = vm.smaller(x, high)
    return x


def _relu6(x: Vector) -> Vector:
    return vm.smaller(vm.bound(vm.larger(x, 0.0)), 6.0)


def _leaky_relu(call: relax.Call, operands: Sequence[Vector]) -> Vector:
    x = operands[0]
    return T.Select(x < _constant(0.0, x), x * _constant(call.attrs.alpha, x), x)


def _prelu(x: Vector, slope: Vector) -> Vector:
    return T.Select(x < _constant(0.0, x), x * slope, x)


def _softplus(call: relax.Call, operands: Sequence[Vector]) -> Vector:
    x, beta, threshold = operands[0], float(call.attrs.beta), float(call.attrs.threshold)
    scaled = vm.bound(x if beta == 1.0 else x * _constant(beta, x))
    curved = vm.softplus(scaled)
    curved = curved if beta == 1.0 else curved * _constant(1.0 / beta, x)
    return T.Select(_constant(threshold, x) < scaled, x, curved)


def _selu(x: Vector) -> Vector:
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    below = (vm.exp(x) - _constant(1.0, x)) * _constant(scale * alpha, x)
    return T.Select(x < _constant(0.0, x), below, x * _constant(scale, x))


def _hard_sigmoid(x: Vector) -> Vector:
    shifted = vm.bound(vm.larger(vm.bound(x + _constant(3.0, x)), 0.0))
    return vm.smaller(shifted, 6.0) * _constant(1.0 / 6.0, x)


def _power(call: relax.Call, operands: Sequence[Vector]) -> Vector:
    exponent = scalar_of(call.args[1])
    return vm.power(operands[0], exponent) if exponent is not None else vm.power_of(*operands)


def _sign(x: Vector) -> Vector:
    one = vm.intrinsic("llvm.copysign", _constant(1.0, x), x)
    zero = _constant(0.0, x)
    return T.Select(x < zero, one, T.Select(zero < x, one, x))


def _maximum(a: Vector, b: Vector) -> Vector:
    """The larger one, NaN where either is: a comparison with NaN is false, so both orders are asked."""
    return T.Select(a < b, b, T.Select(b <= a, a, a + b))


def _minimum(a: Vector, b: Vector) -> Vector:
    return T.Select(b < a, b, T.Select(a <= b, a, a + b))


def _fake_quantize(call: relax.Call, operands: Sequence[Vector]) -> Vector:
    """Everything as floats: the levels without the zero point are integers that float32 holds exactly."""
    grid, scale = Grid.of(call), _constant(call.attrs.scale, operands[0])
    steps = vm.bound(operands[0] / scale)
    return clamped(steps, float(grid.low - grid.zero_point), float(grid.high - grid.zero_point)) * scale


def clamped(steps: Vector, low: float, high: float) -> Vector:
    """The next integers, none below ``low`` or above ``high``."""
    rounded = vm.bound(vm.intrinsic("llvm.roundeven", steps))
    return vm.smaller(vm.bound(vm.larger(rounded, low)), high)


def _rounded(name: str) -> Emitter:
    return _unary(lambda x: vm.intrinsic(name, x))


def _where(call: relax.Call, operands: Sequence[Vector]) -> Vector:
    """The condition is a mask."""
    return T.Select(operands[0], operands[1], operands[2])


_POLYNOMIALS = frozenset({
    "relax.exp", "relax.log", "relax.sinh", "relax.cosh", "relax.tanh", "relax.erf", "relax.sigmoid",
    "relax.nn.softplus", "relax.nn.selu", "relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.silu"})

EMITTERS: dict[str, Emitter] = {
    "relax.add": _binary(lambda a, b: a + b),
    "relax.subtract": _binary(lambda a, b: a - b),
    "relax.multiply": _binary(lambda a, b: a * b),
    "relax.divide": _binary(lambda a, b: a / b),
    "relax.maximum": _binary(_maximum),
    "relax.minimum": _binary(_minimum),
    "relax.power": _power,
    "relax.negative": _unary(lambda x: x * _constant(-1.0, x)),
    "relax.abs": _rounded("llvm.fabs"),
    "relax.floor": _rounded("llvm.floor"),
    "relax.ceil": _rounded("llvm.ceil"),
    "relax.round": _rounded("llvm.roundeven"),
    "relax.trunc": _rounded("llvm.trunc"),
    "relax.sign": _unary(_sign),
    "relax.square": _unary(lambda x: x * x),
    "relax.sqrt": _unary(vm.sqrt),
    "relax.rsqrt": _unary(lambda x: _constant(1.0, x) / vm.sqrt(x)),
    "relax.exp": _unary(vm.exp),
    "relax.log": _unary(vm.log),
    "relax.sin": _unary(vm.sin),
    "relax.cos": _unary(vm.cos),
    "relax.tan": _unary(vm.tan),
    "relax.asin": _unary(inverse.asin),
    "relax.acos": _unary(inverse.acos),
    "relax.atan": _unary(inverse.atan),
    "relax.sinh": _unary(vm.sinh),
    "relax.cosh": _unary(vm.cosh),
    "relax.tanh": _unary(vm.tanh),
    "relax.asinh": _unary(inverse.asinh),
    "relax.acosh": _unary(inverse.acosh),
    "relax.atanh": _unary(inverse.atanh),
    "relax.erf": _unary(vm.erf),
    "relax.sigmoid": _unary(vm.sigmoid),
    "relax.clip": _clip,
    "relax.where": _where,
    "relax.equal": _binary(lambda a, b: a == b),
    "relax.not_equal": _binary(lambda a, b: a != b),
    "relax.less": _binary(lambda a, b: a < b),
    "relax.less_equal": _binary(lambda a, b: a <= b),
    "relax.greater": _binary(lambda a, b: b < a),
    "relax.greater_equal": _binary(lambda a, b: b <= a),
    "relax.nn.relu": _unary(lambda x: vm.larger(x, 0.0)),
    "relax.nn.relu6": _unary(_relu6),
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.prelu": _binary(_prelu),
    "relax.nn.softplus": _softplus,
    "relax.nn.selu": _unary(_selu),
    "relax.nn.gelu": _unary(vm.gelu),
    "relax.nn.gelu_tanh": _unary(vm.gelu_tanh),
    "relax.nn.silu": _unary(vm.silu),
    "narrowcast.fake_quantize": _fake_quantize,
    "narrowcast.hard_sigmoid": _unary(_hard_sigmoid),
    "narrowcast.hard_swish": _unary(lambda x: x * _hard_sigmoid(x)),
}
