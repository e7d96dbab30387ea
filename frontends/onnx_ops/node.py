"""What a translation of an ONNX operator is given, and the table that translations are entered in.

A translation is a function of one :class:`OnnxNode`. It emits bindings and returns the node's results: one value, or
a tuple of them in the order of the node's outputs. A value is a Relax variable, a NumPy array where it is known, or a
:class:`SymbolicArray` where it is known but for symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from tvm import relax, tirx

from ...dims import Dim, as_dim, dim_text, is_equal_dim, simplified
from ...errors import ImportModelError, UnsupportedOperatorError
from ...ir import Expr, GraphBuilder, constant, dims_of, dtype_of
from ...requirements import Requirement
from ..limits import is_tensor_shape
from ..symbolic_array import SymbolicArray, materialized

Tensor: TypeAlias = relax.Var | np.ndarray
Value: TypeAlias = "Tensor | SymbolicArray | TensorSequence"
Results: TypeAlias = "Value | tuple[Value | None, ...]"
Translation = Callable[["OnnxNode"], Results]

OPERATORS: dict[tuple[str, str], Translation] = {}
MICROSOFT = "com.microsoft"

_FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
           "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn")
_OTHERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_PACKED = {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}


def operator(*names: str, domain: str = "") -> Callable[[Translation], Translation]:
    """Enter a translation in the table under the names of the operators it translates."""

    def enter(translation: Translation) -> Translation:
        for name in names:
            OPERATORS[domain, name] = translation
        return translation

    return enter


def normal_dtype(dtype: object) -> str | None:
    """The element type that values of ``dtype`` have in normal form: float32 for every float (but see ``onnx_widths``),
    a byte for integers of 2 or 4 bits; None if there is none."""
    text = str(dtype)
    return "float32" if text in _FLOATS else text if text in _OTHERS else _PACKED.get(text)


@dataclass(frozen=True)
class TensorSequence:
    """A sequence of values; how many there are is known."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class OnnxNode:
    """One node of the model with its inputs resolved.

    op, domain, opset : the operator and the version of its domain that the model imports.
    name : the op name (see ``ir``) of what the node emits.
    label : what the node is called in errors.
    inputs : its values, None for an input that is left out.
    outputs : names of its outputs, empty for one that is left out.
    attributes : strings as ``str``, tensors as arrays, lists as tuples.
    builder : where the bindings go.
    requirements : where relations between extents go that the operator takes for granted and nothing proves.
    declared : the element types that the model declares for the inputs, None where unknown (``onnx_types``).
    wide : whether the floats it reads are float64, and stay so.
    """

    op: str
    domain: str
    opset: int
    name: str
    label: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    builder: GraphBuilder
    requirements: list[Requirement] = field(default_factory=list)
    declared: tuple[str | None, ...] = ()
    wide: bool = False

    def fault(self, problem: str, **details: object) -> ImportModelError:
        """The error for a node that contradicts the operator's definition."""
        return ImportModelError(f"{self.op}: {problem}", layer=self.label, **details)  # type: ignore[arg-type]

    def unsupported(self, form: str) -> UnsupportedOperatorError:
        """The error for a form of the operator without translation."""
        return UnsupportedOperatorError(f"{self.op} {form} is not supported", layer=self.label)

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def has(self, index: int) -> bool:
        """Whether input ``index`` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Tensor:
        """Input ``index``, as a tensor; ImportModelError where it is left out."""
        return self.tensor(self._given(index))

    def tensor(self, value: Value) -> Tensor:
        """``value`` as a tensor: symbolic arrays are computed in the graph."""
        if isinstance(value, TensorSequence):
            raise self.fault("an input is a sequence of tensors")
        return materialized(self.builder, f"{self.name}.extents", value) if isinstance(value, SymbolicArray) else value

    def _given(self, index: int) -> Value:
        result = self.inputs[index] if index < len(self.inputs) else None
        if result is None:
            raise self.fault(f"input {index} is missing", found=f"{len(self.inputs)} inputs")
        return result

    def dims(self, index: int) -> tuple[Dim, ...]:
        """The shape of input ``index``, which may have symbolic extents."""
        value = self._given(index)
        if isinstance(value, TensorSequence):
            raise self.fault(f"input {index} is a sequence of tensors")
        return dims_of(value) if isinstance(value, relax.Var) else value.shape

    def rank(self, index: int) -> int:
        return len(self.dims(index))

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of input ``index``; UnsupportedOperatorError where an extent is symbolic."""
        return self.numbers(self.dims(index), f"input {index}")

    def numbers(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """``dims`` as numbers; UnsupportedOperatorError where one is symbolic."""
        for dim in dims:
            if not isinstance(dim, int):
                raise UnsupportedOperatorError(f"{self.op} with the extent {dim_text(dim)} of {what} left open is not "
                                               "supported", layer=self.label,
                                               hint='fix the extents it is made of: dims={"name": extent}')
        return tuple(d for d in dims if isinstance(d, int))

    def require_equal(self, a: Dim, b: Dim, problem: str = "extents differ") -> None:
        """Note that two extents have to be equal when the program is called; a fault where they never are."""
        if not isinstance(a, int) or not isinstance(b, int):
            if not is_equal_dim(a, b):
                self._require(simplified(a), simplified(b))
        elif a != b:
            raise self.fault(problem, found=a, expected=b)

    def _require(self, a: Dim, b: Dim) -> None:
        """Note that two extents have to be equal; ``min(a, b) == a`` reads better as ``b >= a``."""
        for bound, other in ((a, b), (b, a)):
            if isinstance(bound, (tirx.Min, tirx.Max)):
                for kept, limit in ((bound.a, bound.b), (bound.b, bound.a)):
                    if is_equal_dim(kept, other):
                        large, small = (limit, kept) if isinstance(bound, tirx.Min) else (kept, limit)
                        self.requirements.append(Requirement(">=", as_dim(large), as_dim(small), self.label))
                        return
        self.requirements.append(Requirement("==", a, b, self.label))

    def require_at_least(self, a: Dim, least: Dim, problem: str = "an extent is too small") -> None:
        """Note that an extent has to be as large as another when the program is called."""
        requirement = Requirement(">=", simplified(a), simplified(least), self.label)
        if requirement.holds() is False:
            raise self.fault(problem, found=dim_text(a), expected=f"at least {dim_text(least)}")
        if requirement.holds() is None:
            self.requirements.append(requirement)

    def dtype(self, index: int) -> str:
        """The element type that input ``index`` has in normal form."""
        value = self._given(index)
        if isinstance(value, TensorSequence):
            raise self.fault(f"input {index} is a sequence of tensors")
        if isinstance(value, relax.Var):
            return dtype_of(value)
        return self._constant_dtype(value.dtype) or str(value.dtype)

    def _constant_dtype(self, dtype: object) -> str | None:
        """The element type that known values of ``dtype`` get here: that of normal form, float64 for floats where the
        node is wide."""
        wanted = normal_dtype(dtype)
        return "float64" if self.wide and wanted == "float32" else wanted

    def declared_dtype(self, index: int) -> str:
        """The element type that the model declares for input ``index``, or where it is unknown that in normal form."""
        value = self.value(index)
        if isinstance(value, np.ndarray) and normal_dtype(value.dtype) != str(value.dtype):
            return str(value.dtype)
        return (self.declared[index] if index < len(self.declared) else None) or self.dtype(index)

    def expr(self, index: int) -> Expr:
        """Input ``index`` as an expression; known values become constants."""
        return self.constant(self.value(index))

    def constant(self, value: Tensor | float | int, dtype: str | None = None) -> Expr:
        """``value`` as an expression: constants get the element type of normal form, or ``dtype``."""
        if isinstance(value, relax.Var):
            return value
        array = np.asarray(value)
        wanted = dtype or self._constant_dtype(array.dtype)
        if wanted is None:
            raise self.unsupported(f"on elements of type {array.dtype}")
        return constant(array.astype(wanted))

    def is_known(self, index: int) -> bool:
        return self.has(index) and isinstance(self.inputs[index], np.ndarray)

    def known(self, index: int, what: str) -> np.ndarray:
        """The array of input ``index``, which must be known at import; ``what`` names it in the error."""
        value = self._given(index)
        if isinstance(value, SymbolicArray):
            raise UnsupportedOperatorError(
                f"{self.op} with {what} that depends on symbolic extents is not supported", layer=self.label,
                found=str(value), hint='fix these extents: dims={"name": extent}')
        if not isinstance(value, np.ndarray):
            raise self.unsupported(f"with {what} that depends on the model's inputs")
        return value

    def integers(self, index: int, attribute: str, what: str) -> tuple[int, ...] | None:
        """Integers that older opsets hold in an attribute and newer ones in an input; None where left out."""
        if attribute in self.attributes:
            found = self.attributes[attribute]
            return tuple(found) if isinstance(found, tuple) else (found,)
        if not self.has(index):
            return None
        value = self.known(index, what)
        if value.dtype.kind not in "iu":
            raise self.fault(f"{what} is not of integers", found=value.dtype)
        return tuple(int(v) for v in value.reshape(-1))

    def extents(self, index: int, attribute: str, what: str) -> tuple[Dim, ...] | None:
        """As ``integers``, but they may have symbols."""
        value = self.inputs[index] if self.has(index) else None
        if attribute in self.attributes or not isinstance(value, SymbolicArray):
            return self.integers(index, attribute, what)
        if not value.dtype.startswith("int"):
            raise self.fault(f"{what} is not of integers", found=value.dtype)
        return tuple(value.elements.reshape(-1))

    def axis(self, axis: int, rank: int) -> int:
        """``axis`` counted from the front; ImportModelError where it is outside of ``rank`` dimensions."""
        if not -rank <= axis < rank:
            raise self.fault("an axis is out of range", found=axis, expected=f"{-rank}…{rank - 1}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        """``axes`` counted from the front; ImportModelError for one out of range or given twice."""
        result = [self.axis(a, rank) for a in axes]
        if len(set(result)) != len(result):
            raise self.fault("an axis is given twice", found=tuple(axes))
        return result

    def emit(self, value: Expr, part: str | None = None) -> relax.Var:
        """Bind ``value`` under the node's name, or under ``name.part`` where it only prepares an operand."""
        var = self.builder.emit(value, self.name if part is None else f"{self.name}.{part}")
        if isinstance(var.ty, relax.TensorType):
            if var.ty.shape is None:
                raise self.unsupported("on extents that are not known to fit")
            for dim in dims_of(var):
                if not isinstance(dim, (int, tirx.Var)):
                    self.require_at_least(dim, 1)
            if not is_tensor_shape(known := [d if isinstance(d, int) else 1 for d in dims_of(var)]):
                raise self.fault("the result has an impossible shape", found=known)
        return var
