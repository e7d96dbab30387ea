"""What a translation of an ONNX operator is given, and the table that translations are entered in.

A translation is a function of one :class:`OnnxNode`. It emits bindings and returns the node's results: one value, or
a tuple of them in the order of the node's outputs. A value is a Relax variable, or a NumPy array where it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import relax

from ...errors import ImportModelError, UnsupportedOperatorError
from ...ir import Expr, GraphBuilder, constant, dtype_of, shape_of

Value: TypeAlias = relax.Var | np.ndarray
Results: TypeAlias = Value | tuple[Value, ...]
Translation = Callable[["OnnxNode"], Results]

OPERATORS: dict[tuple[str, str], Translation] = {}
MICROSOFT = "com.microsoft"

# Larger tensors are refused: no machine that narrowcast targets holds one.
MAX_ELEMENTS = 2 ** 40
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_OTHERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def operator(*names: str, domain: str = "") -> Callable[[Translation], Translation]:
    """Enter a translation in the table under the names of the operators it translates."""

    def enter(translation: Translation) -> Translation:
        for name in names:
            OPERATORS[domain, name] = translation
        return translation

    return enter


def normal_dtype(dtype: object) -> str | None:
    """The element type that values of ``dtype`` have in normal form: float32 for every float; None if there is none."""
    text = str(dtype)
    return "float32" if text in _FLOATS else text if text in _OTHERS else None


@dataclass(frozen=True)
class OnnxNode:
    """One node of the model with its inputs resolved.

    op, domain, opset : the operator and the version of its domain that the model imports.
    name : the op name (see ``ir``) of what the node emits.
    label : what the node is called in errors.
    inputs : its values, None for an input that is left out.
    outputs : names of its outputs, empty for one that is left out.
    attributes : strings as ``str``, tensors as arrays, lists as tuples.
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

    def value(self, index: int) -> Value:
        """Input ``index``; ImportModelError where it is left out."""
        result = self.inputs[index] if index < len(self.inputs) else None
        if result is None:
            raise self.fault(f"input {index} is missing", found=f"{len(self.inputs)} inputs")
        return result

    def shape(self, index: int) -> tuple[int, ...]:
        value = self.value(index)
        return value.shape if isinstance(value, np.ndarray) else shape_of(value)

    def dtype(self, index: int) -> str:
        """The element type that input ``index`` has in normal form."""
        value = self.value(index)
        return normal_dtype(value.dtype) or str(value.dtype) if isinstance(value, np.ndarray) else dtype_of(value)

    def expr(self, index: int) -> Expr:
        """Input ``index`` as an expression; known values become constants."""
        return self.constant(self.value(index))

    def constant(self, value: Value | float | int, dtype: str | None = None) -> Expr:
        """``value`` as an expression: constants get the element type of normal form, or ``dtype``."""
        if isinstance(value, relax.Var):
            return value
        array = np.asarray(value)
        wanted = dtype or normal_dtype(array.dtype)
        if wanted is None:
            raise self.unsupported(f"on elements of type {array.dtype}")
        return constant(array.astype(wanted))

    def is_known(self, index: int) -> bool:
        return self.has(index) and isinstance(self.inputs[index], np.ndarray)

    def known(self, index: int, what: str) -> np.ndarray:
        """The array of input ``index``, which must be known at import; ``what`` names it in the error."""
        value = self.value(index)
        if not isinstance(value, np.ndarray):
            raise self.unsupported(f"with {what} that depends on the model's inputs")
        return value

    def integers(self, index: int, attribute: str, what: str) -> tuple[int, ...] | None:
        """Integers that older opsets hold in an attribute and newer ones in an input; None where left out."""
        if attribute in self.attributes:
            found = self.attributes[attribute]
            return tuple(found) if isinstance(found, tuple) else (found,)
        return tuple(int(v) for v in self.known(index, what).reshape(-1)) if self.has(index) else None

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
            shape = shape_of(var)
            if any(d < 0 for d in shape) or int(np.prod(shape, dtype=object)) > MAX_ELEMENTS:
                raise self.fault("the result has an impossible shape", found=shape)
        return var
