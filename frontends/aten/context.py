"""What the translation of one ATen operator gets to see, and the few things every translation needs.

A *value* during translation is a Relax variable, a torch tensor (a constant known at import), a Python scalar, or
a list or tuple of these. Translations see only calls in which at least one value is a variable: everything else is
computed by PyTorch itself at import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from ...errors import UnsupportedOperatorError
from ...ir import Expr, GraphBuilder, constant, dtype_of, shape_of

Scalar = bool | int | float
Value = Any
Handler = Callable[..., Value]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Unavailable:
    """Stands for a result of an operator that has no translation, and that most models never use."""


UNAVAILABLE = Unavailable()


def relax_dtype(dtype: torch.dtype) -> str:
    """The element type a torch tensor has after import: every floating point type becomes float32."""
    if dtype in _FLOATS:
        return "float32"
    if dtype.is_complex:
        raise UnsupportedOperatorError("complex numbers have no translation", found=str(dtype))
    return str(dtype).removeprefix("torch.")


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A constant's values with the element type it has after import."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in _FLOATS else tensor).contiguous().numpy()


@dataclass(frozen=True)
class Context:
    """The call that is being translated.

    builder : where bindings go.
    name : the layer's name, which the call's main binding gets.
    result : what PyTorch says the call returns (fake tensors; only element types are read, shapes may be symbolic).
    """

    builder: GraphBuilder
    name: str
    result: Any

    @property
    def dtype(self) -> str:
        """The element type of the (first) result."""
        first = self.result[0] if isinstance(self.result, (tuple, list)) else self.result
        return relax_dtype(first.dtype)

    def emit(self, value: Expr, part: str = "") -> relax.Var:
        """Bind ``value`` under the layer's name, or under ``name.part`` for what only prepares the main operation."""
        return self.builder.emit(value, f"{self.name}.{part}" if part else self.name)

    def expr(self, value: Value, dtype: str | None = None) -> Expr:
        """``value`` as a Relax expression; where ``dtype`` is given, with elements of that type."""
        if isinstance(value, torch.Tensor):
            array = to_numpy(value)
            return constant(array if dtype is None else array.astype(dtype))
        if isinstance(value, (bool, int, float)):
            return constant(np.asarray(value, dtype=dtype or _scalar_dtype(value)))
        if dtype is None or dtype_of(value) == dtype:
            return value
        return self.emit(relax.op.astype(value, dtype), "cast")

    def multiplicand(self, value: Value) -> Expr:
        """``value`` for an operator that multiplies it by weights, which needs floating point."""
        if "float" not in (found := str(value.dtype) if isinstance(value, torch.Tensor) else dtype_of(value)):
            raise self.refuse("it multiplies something that is not floating point by weights", found=found,
                              expected="float32", hint="check the types of the example inputs")
        return self.expr(value)

    def refuse(self, reason: str, **details: object) -> UnsupportedOperatorError:
        """The error for a form of the operator that has no translation."""
        return UnsupportedOperatorError(reason, layer=self.name, **details)  # type: ignore[arg-type]

    def array(self, value: Value, what: str) -> np.ndarray:
        """The array of a value that has to be known at import."""
        if not isinstance(value, torch.Tensor):
            raise self.refuse(f"{what} has to be a constant, but it is computed from the model's inputs")
        return to_numpy(value)

    def optional_array(self, value: Value, what: str) -> np.ndarray | None:
        """``array``, and None for None."""
        return None if value is None else self.array(value, what)


def _scalar_dtype(value: Scalar) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else "float32"


def shape(value: Value) -> tuple[int, ...]:
    """The static shape of a variable or a constant."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else shape_of(value)


def rank(value: Value) -> int:
    """The number of dimensions of a variable or a constant."""
    return len(shape(value))


def axis_of(value: Value, dim: int) -> int:
    """``dim`` counted from the front."""
    return dim % max(rank(value), 1)


def axes_of(value: Value, dims: int | Sequence[int] | None) -> list[int]:
    """``dims`` counted from the front, in order; all of them for None and for an empty list."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank(value)))
    return sorted({axis_of(value, d) for d in ([dims] if isinstance(dims, int) else dims)})


def expand_sizes(sizes: int | Sequence[int], count: int) -> list[int]:
    """ATen's shorthand for sizes: one number stands for all dimensions."""
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    return [int(s) for s in (sizes * count if len(sizes) == 1 else sizes)]


def is_variable(value: Value) -> bool:
    """Whether ``value`` is, or contains, something computed from the model's inputs."""
    if isinstance(value, (list, tuple)):
        return any(is_variable(v) for v in value)
    return isinstance(value, tvm.ir.Expr)
