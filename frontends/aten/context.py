"""What the translation of one ATen operator gets to see, and the few things every translation needs.

A *value* during translation is a Relax variable, a torch tensor (a constant known at import), a Python scalar, a
symbolic extent, or a list or tuple of these. Translations see only calls in which at least one value is a variable or a
symbolic extent: everything else is computed by PyTorch itself at import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from ...dims import Dim, as_dim, equal_dims
from ...errors import UnsupportedOperatorError
from ...ir import Expr, GraphBuilder, constant, dims_of, dtype_of, is_number
from ..extents import extent
from ..model import Requirement

Scalar = bool | int | float
Value = Any
Handler = Callable[..., Value]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Unavailable:
    """Stands for a result that has no translation, and that most models never use."""


UNAVAILABLE = Unavailable()
# Stands for a condition on symbolic extents that holds for some of them only.
UNDECIDED = Unavailable()


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
    result : what PyTorch says the call returns (fake tensors).
    dims_of_result : the shape of one of those fake tensors in the normal form's extents.
    requirements : what translations take for granted about extents.
    """

    builder: GraphBuilder
    name: str
    result: Any
    dims_of_result: Callable[[torch.Tensor], tuple[Dim, ...]] = tuple
    requirements: list[Requirement] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        """The element type of the (first) result."""
        return relax_dtype(self._first.dtype)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The shape of the (first) result."""
        return self.dims_of_result(self._first)

    @property
    def _first(self) -> torch.Tensor:
        return self.result[0] if isinstance(self.result, (tuple, list)) else self.result

    def emit(self, value: Expr, part: str = "") -> relax.Var:
        """Bind ``value`` under the layer's name, or under ``name.part`` for what only prepares the main operation.

        Operands whose extents PyTorch took for equal, and TVM cannot prove to be, get those of the result.
        """
        name = f"{self.name}.{part}" if part else self.name
        result = self.builder.emit(value, name)
        if not isinstance(result.ty, relax.TensorType) or result.ty.shape is not None:
            return result
        if not isinstance(value, relax.Call) or result.ty.ndim != len(self.dims):
            raise self.refuse("it is not known to give a shape that fits", found=str(value))
        return self.builder.emit(relax.Call(value.op, [self._aligned(a) for a in value.args], value.attrs), name)

    def _aligned(self, operand: Expr) -> Expr:
        """An operand of an elementwise operator with the result's extents where its own are not 1."""
        own = dims_of(operand)
        dims = [o if is_exactly(o, 1) else d for o, d in zip(own, self.dims[len(self.dims) - len(own):], strict=True)]
        if equal_dims(own, dims):
            return operand
        return self.builder.emit(relax.op.reshape(operand, dims), f"{self.name}.operand")

    def expr(self, value: Value, dtype: str | None = None) -> Expr:
        """``value`` as a Relax expression; where ``dtype`` is given, with elements of that type."""
        if isinstance(value, torch.Tensor):
            array = to_numpy(value)
            return constant(array if dtype is None else array.astype(dtype))
        if isinstance(value, (bool, int, float)):
            return constant(np.asarray(value, dtype=dtype or _scalar_dtype(value)))
        if is_extent(value):
            return extent(self.builder, self.name, value, dtype or "int64")
        if dtype is None or dtype_of(value) == dtype:
            return value
        return self.emit(relax.op.astype(value, dtype), "cast")

    def multiplicand(self, value: Value) -> Expr:
        """``value`` for an operator that multiplies it by weights, which needs floating point."""
        if "float" not in (found := str(value.dtype) if isinstance(value, torch.Tensor) else dtype_of(value)):
            raise self.refuse("it multiplies something that is not floating point by weights", found=found,
                              expected="float32", hint="check the types of the example inputs")
        return self.expr(value)

    def require(self, extent: Dim, least: Dim) -> None:
        """Note that an extent has to be as large as another when the program is called."""
        requirement = Requirement(">=", extent, least, self.name)
        if not requirement.holds():
            self.requirements.append(requirement)

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


def shape(value: Value) -> tuple[Dim, ...]:
    """The shape of a variable or a constant: numbers, and expressions where a dim is symbolic."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else dims_of(value)


def static_shape(c: Context, value: Value, what: str) -> tuple[int, ...]:
    """The shape of a variable or a constant where it has to be known at import."""
    dims = shape(value)
    require_static(c, dims, what)
    return dims  # type: ignore[return-value]


def require_static(c: Context, dims: Sequence[Dim], what: str) -> None:
    """Refuse extents that are symbolic where ``what`` needs numbers."""
    if not all(isinstance(d, int) for d in dims):
        raise c.refuse(f"{what} needs fixed extents, and some are dynamic", found=", ".join(map(str, dims)),
                       hint="fix them with dims=")


def is_exactly(size: Dim, number: int) -> bool:
    """Whether an extent is this number."""
    return isinstance(size, int) and size == number


def is_extent(value: Value) -> bool:
    """Whether ``value`` is a symbolic extent."""
    return isinstance(value, tvm.ir.Expr) and is_number(value)


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


def expand_sizes(sizes: Dim | Sequence[Dim], count: int) -> list[Any]:
    """ATen's shorthand for sizes: one number stands for all dimensions."""
    sizes = [sizes] if isinstance(sizes, int) or is_extent(sizes) else list(sizes)
    return [as_dim(s) for s in (sizes * count if len(sizes) == 1 else sizes)]


def is_variable(value: Value) -> bool:
    """Whether ``value`` is, or contains, something computed from the model's inputs or their extents."""
    if isinstance(value, (list, tuple)):
        return any(is_variable(v) for v in value)
    return isinstance(value, tvm.ir.Expr)
