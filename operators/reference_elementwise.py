"""Reference semantics of the elementwise operators, of comparisons, and of creation of constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from tvm import relax

from .quantization import Grid
from .semantics import Semantics, of_tensors, result_dtype, result_types


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.true_divide(a, b) if a.is_floating_point() else _quotient(a, b, "trunc")


def _floor_divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.floor_divide(a, b) if a.is_floating_point() else _quotient(a, b, "floor")


def _quotient(a: torch.Tensor, b: torch.Tensor, rounding: str) -> torch.Tensor:
    """Of integers: by 0 as by 1, and the least one by -1 is itself."""
    found = torch.div(a, _divisor(b), rounding_mode=rounding)
    return torch.where(b == -1, -a, found) if b.dtype.is_signed else found


def _rest(modulo: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A remainder, of integers by 0 as by 1."""
    return lambda a, b: modulo(a, b if b.is_floating_point() else _divisor(b))


def _divisor(b: torch.Tensor) -> torch.Tensor:
    """``b`` with 1 in place of 0 and -1, at which CPUs trap."""
    traps = (b == 0) | (b == -1) if b.dtype.is_signed else b == 0
    return torch.where(traps, torch.ones_like(b), b)


def _clip(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, low, high = args
    return torch.clamp(x, low, high)


def _leakyrelu(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return functional.leaky_relu(args[0], float(call.attrs.alpha))


def _softplus(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return functional.softplus(args[0], float(call.attrs.beta), float(call.attrs.threshold))


def _prelu(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    x, alpha = args
    shape = [1] * x.dim()
    shape[int(call.attrs.axis) % x.dim()] = -1
    return torch.where(x > 0, x, x * alpha.reshape(shape))


def hard_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``clip(x + 3, 0, 6) / 6``."""
    return torch.clamp(x + 3.0, 0.0, 6.0) / 6.0


def hard_swish(x: torch.Tensor) -> torch.Tensor:
    """``x * clip(x + 3, 0, 6) / 6``."""
    return x * torch.clamp(x + 3.0, 0.0, 6.0) / 6.0


class _FakeQuantize(torch.autograd.Function):
    """Rounding to a grid whose gradient is 1 inside of the grid's range and 0 outside (the straight-through
    estimator, Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, grid: Grid) -> torch.Tensor:
        steps = torch.round(x / torch.tensor(grid.scale, dtype=x.dtype))
        inside = steps.clamp(grid.low - grid.zero_point, grid.high - grid.zero_point)
        ctx.save_for_backward(steps == inside)
        return inside * grid.scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None


def _fake_quantize(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return _FakeQuantize.apply(args[0], Grid.of(call))


def _round(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x) if x.is_floating_point() else x


def _astype(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return args[0].to(result_dtype(call))


def _bitcast(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return args[0].contiguous().view(result_types(call)[0])


def _filled(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    """``full`` and ``full_like``: the shape or the example, then the value, a scalar tensor."""
    shape = args[0].shape if isinstance(args[0], torch.Tensor) else args[0]
    return torch.as_tensor(args[1]).to(result_dtype(call)).expand(tuple(shape)).clone()


def _constant(value: int) -> Semantics:
    def create(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
        shape = args[0].shape if isinstance(args[0], torch.Tensor) else args[0]
        return torch.full(tuple(shape), value, dtype=result_dtype(call))

    return create


def _arange(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    return torch.arange(*args, dtype=result_dtype(call))


def _eye(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    if isinstance(args[0], torch.Tensor):
        (rows, columns), offset = args[0].shape, args[1]
    else:
        rows, columns, offset = args
    ones = torch.ones(rows, columns, dtype=result_dtype(call))
    return ones.tril(offset).triu(offset)


def _hamming_window(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    size, periodic, alpha, beta = args
    return torch.hamming_window(size, bool(periodic), alpha, beta, dtype=result_dtype(call))


def _where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition.bool(), a, b)


def _dropout(args: Sequence[Any], call: relax.Call) -> tuple[torch.Tensor, torch.Tensor]:
    return args[0], torch.ones_like(args[0])


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    # arithmetic
    "add": torch.add, "subtract": torch.subtract, "multiply": torch.multiply, "divide": _divide,
    "floor_divide": _floor_divide, "mod": _rest(torch.fmod), "floor_mod": _rest(torch.remainder), "power": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum, "atan2": torch.atan2, "log_add_exp": torch.logaddexp,
    "ewise_fma": lambda a, b, c: a * b + c,
    # unary
    "abs": torch.abs, "negative": torch.neg, "sign": torch.sign, "square": torch.square, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "exp": torch.exp, "log": torch.log, "erf": torch.erf, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "sinh": torch.sinh, "cosh": torch.cosh,
    "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "asinh": torch.asinh, "acosh": torch.acosh,
    "atanh": torch.atanh, "ceil": torch.ceil, "floor": torch.floor, "round": _round, "trunc": torch.trunc,
    "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    # comparison, logic, bits
    "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt,
    "greater_equal": torch.ge, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "logical_not": torch.logical_not, "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor, "bitwise_not": torch.bitwise_not,
    "left_shift": torch.bitwise_left_shift, "right_shift": torch.bitwise_right_shift, "where": _where,
    # activations
    "nn.relu": torch.relu, "nn.silu": functional.silu, "nn.gelu": functional.gelu, "nn.selu": functional.selu,
    "nn.gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}

TABLE: dict[str, Semantics] = {
    **{f"relax.{name}": of_tensors(function) for name, function in _FUNCTIONS.items()},
    "relax.clip": _clip,
    "relax.nn.leakyrelu": _leakyrelu,
    "relax.nn.softplus": _softplus,
    "relax.nn.prelu": _prelu,
    "relax.nn.dropout": _dropout,
    "narrowcast.fake_quantize": _fake_quantize,
    "narrowcast.bitcast": _bitcast,
    "narrowcast.hard_swish": of_tensors(hard_swish),
    "narrowcast.hard_sigmoid": of_tensors(hard_sigmoid),
    "relax.astype": _astype,
    "relax.full": _filled,
    "relax.full_like": _filled,
    "relax.zeros": _constant(0),
    "relax.zeros_like": _constant(0),
    "relax.ones": _constant(1),
    "relax.ones_like": _constant(1),
    "relax.arange": _arange,
    "relax.eye": _eye,
    "relax.eye_like": _eye,
    "relax.hamming_window": _hamming_window,
}
