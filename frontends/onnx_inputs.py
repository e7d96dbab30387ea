"""The inputs of an ONNX graph: their shapes with symbols for what the model leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper
from tvm import relax, tirx

from ..dims import Dim
from ..errors import ImportModelError, UnsupportedOperatorError
from ..ir import TensorSpec
from .limits import is_tensor_shape
from .onnx_ops import normal_dtype

# Names that exporters give to all extents they do not know, equal or not.
_ANONYMOUS = ("", "?")
# Extents that are likely where no example says more: of images, and of sequences.
_IMAGE, _SEQUENCE = 224, 128


@dataclass
class Signature:
    """The inputs of a program.

    variables : the inputs that are not fixed, in order.
    values : the arrays of inputs that are fixed.
    hints : a likely extent of every symbol, by name.
    """

    variables: list[relax.Var] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec.of(v, v.name) for v in self.variables)


def bind_inputs(graph: onnx.GraphProto, examples: Sequence[np.ndarray] | None = None,
                dims: Mapping[str, int] | None = None, same: Mapping[str, str | int] | None = None) -> Signature:
    """The inputs of ``graph`` that are not weights.

    Parameters
    ----------
    examples : one array per input, those that are fixed left out or not, to be checked and for the hints.
    dims : extents by the model's names for them; one that has no name is called ``"<input>_<axis>"``. Symbols have
        these names, with underscores for what is no letter or digit. The name of an input of one integer stands for its
        value.

    same : symbols that turned out to be another symbol or a number, by name.

    Raises ImportModelError: the examples are too many or too few, differ from the model in rank, extent or element
    type, or disagree about an extent; a name in ``dims`` is not in the model.
    """
    weights = {t.name for t in graph.initializer}
    values = [v for v in graph.input if v.name not in weights]
    named = {d.dim_param for v in values for d in v.type.tensor_type.shape.dim}
    binder = _Binder(dict(dims or {}), dict(same or {}), named)
    fixed = [v for v in values if binder.is_fixed(v)]
    open_inputs = [v for v in values if v not in fixed]
    if examples is not None and len(examples) == len(values):
        examples = [e for e, v in zip(examples, values, strict=True) if v not in fixed]
    if examples is not None and len(examples) != len(open_inputs):
        raise ImportModelError("the number of example inputs is not that of the model's inputs", found=len(examples),
                               expected=f"{len(open_inputs)}: {', '.join(v.name for v in open_inputs)}")
    problems: list[ImportModelError] = []
    arrays: Sequence[np.ndarray | None] = [None] * len(open_inputs) if examples is None else examples
    for value, array in zip(open_inputs, arrays, strict=True):
        try:
            binder.bind(value, None if array is None else np.asarray(array))
        except ImportModelError as error:
            problems.append(error)
    problems += binder.unused()
    if problems:
        raise ImportModelError.collect(problems)
    return binder.signature


class _Binder:
    """Collects the signature; one symbol per name."""

    def __init__(self, dims: Mapping[str, int], same: Mapping[str, str | int], names: set[str]) -> None:
        self.signature = Signature()
        self._dims = dims
        self._same = same
        self._names = {_identifier(n) for n in names}
        self._used: set[str] = set()
        self._symbols: dict[str, tirx.Var] = {}

    def is_fixed(self, value: onnx.ValueInfoProto) -> bool:
        """Whether ``dims`` gives the value of this input."""
        kind = value.type.tensor_type
        one = kind.HasField("shape") and all(d.dim_value == 1 for d in kind.shape.dim)
        integer = kind.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        if value.name not in self._dims or _identifier(value.name) in self._names or not one or not integer:
            return False
        self._used.add(value.name)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        self.signature.values[value.name] = np.full([1] * len(kind.shape.dim), self._dims[value.name], dtype)
        return True

    def bind(self, value: onnx.ValueInfoProto, array: np.ndarray | None) -> None:
        dtype, kind = _dtype(value, array), tensor_type(value)
        if kind is None or not kind.HasField("shape"):
            if array is None:
                raise ImportModelError("an input has no shape in the model", layer=value.name,
                                       hint="pass example_inputs: their shapes are taken where the model has none")
            shape: Sequence[Dim] = array.shape
        else:
            dims = list(kind.shape.dim)
            if array is not None and array.ndim != len(dims):
                raise ImportModelError("an example input has another rank", layer=value.name, found=array.shape,
                                       expected=f"{len(dims)} dimensions")
            shape = [self._extent(value.name, i, d, len(dims), None if array is None else array.shape[i])
                     for i, d in enumerate(dims)]
        if not is_tensor_shape([d if isinstance(d, int) else 1 for d in shape]):
            raise ImportModelError("an input has an impossible shape", layer=value.name,
                                   found=f"{len(shape)} dimensions: {shape[:8]}")
        self.signature.variables.append(relax.Var(value.name, relax.TensorType(shape, dtype)))

    def _extent(self, name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, rank: int, given: int | None) -> Dim:
        symbol = self._name(name, axis, dim.dim_param)
        # Some exporters write -1 for an extent that they do not know.
        number = int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for own in (dim.dim_param, symbol):
            if number is None and own in self._dims:
                self._used.add(own)
                number = self._dims[own]
        meant = self._same.get(symbol, symbol)
        if number is None and isinstance(meant, int):
            number = meant
        if number is not None:
            if given is not None and given != number:
                raise ImportModelError(f"dimension {axis} of an input does not fit", layer=name, found=given,
                                       expected=number)
            return number
        if given == 0:
            raise ImportModelError(f"dimension {axis} of an example input is empty", layer=name)
        symbol, hints = str(meant), self.signature.hints
        if given is not None and symbol in self._symbols and hints[symbol] != given:
            raise ImportModelError(f"the example inputs disagree about the dimension '{symbol}'", layer=name,
                                   found=given, expected=hints[symbol])
        likely = 1 if axis == 0 else _IMAGE if rank > 3 else _SEQUENCE
        hints.setdefault(symbol, likely if given is None else given)
        return self._symbols.setdefault(symbol, tirx.Var(symbol, "int64"))

    def _name(self, name: str, axis: int, symbol: str) -> str:
        if symbol not in _ANONYMOUS:
            return _identifier(symbol)
        fresh = _identifier(f"{name}_{axis}")
        while fresh in self._names:
            fresh += "_"
        return fresh

    def unused(self) -> list[ImportModelError]:
        """The faults of names in ``dims`` that the model does not have."""
        return [ImportModelError("the model has no such dimension", found=name,
                                 expected=", ".join(self._symbols) or "none: all extents are numbers")
                for name in self._dims if name not in self._used]


def tensor_type(value: onnx.ValueInfoProto) -> onnx.TypeProto.Tensor | None:
    """The type of a tensor, also of an optional one; None for what is no tensor."""
    kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
    return kind.tensor_type if kind.HasField("tensor_type") else None


def _identifier(name: str) -> str:
    """A name as symbols are printed: letters, digits and underscores."""
    return re.sub(r"\W", "_", name)


def _dtype(value: onnx.ValueInfoProto, array: np.ndarray | None) -> str:
    """The element type of an input in normal form."""
    kind = tensor_type(value)
    if kind is None:
        raise UnsupportedOperatorError("an input that is not a tensor is not supported", layer=value.name)
    try:
        declared = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    except (KeyError, TypeError) as error:
        raise ImportModelError("an input has no element type", layer=value.name, found=kind.elem_type) from error
    dtype = "float64" if str(declared) == "float64" else normal_dtype(declared)
    if dtype is None:
        raise UnsupportedOperatorError(f"an input with elements of type {declared} is not supported", layer=value.name)
    taken = (dtype, "float32") if dtype == "float64" else (dtype,)
    if array is not None and array.dtype != declared and str(array.dtype) not in taken:
        raise ImportModelError("an example input has another element type", layer=value.name, found=array.dtype,
                               expected=declared)
    return dtype
