"""Binds the inputs of an ONNX graph to static shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from ..errors import ImportModelError, UnsupportedOperatorError
from ..ir import TensorSpec
from .onnx_ops import normal_dtype

# Names that exporters give to all extents they do not know, equal or not.
_ANONYMOUS = ("", "?")


def bind_inputs(graph: onnx.GraphProto, examples: Sequence[np.ndarray] | None) -> tuple[TensorSpec, ...]:
    """The inputs of ``graph`` that are not weights; symbolic dimensions take the examples' extents.

    Raises ImportModelError: the examples are too many or too few, differ from the model in rank, extent or element
    type, or disagree about a symbolic dimension; a dimension stays unknown.
    """
    weights = {t.name for t in graph.initializer}
    values = [v for v in graph.input if v.name not in weights]
    if examples is not None and len(examples) != len(values):
        raise ImportModelError("the number of example inputs is not that of the model's inputs", found=len(examples),
                               expected=f"{len(values)}: {', '.join(v.name for v in values)}")
    arrays = [None] * len(values) if examples is None else [np.asarray(e) for e in examples]
    symbols: dict[str, int] = {}
    problems: list[ImportModelError] = []
    result = []
    for value, array in zip(values, arrays, strict=True):
        try:
            result.append(_bind(value, array, symbols))
        except ImportModelError as error:
            problems.append(error)
    if problems:
        raise ImportModelError.collect(problems)
    return tuple(result)


def _bind(value: onnx.ValueInfoProto, array: np.ndarray | None, symbols: dict[str, int]) -> TensorSpec:
    kind = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type":
        raise UnsupportedOperatorError("an input that is not a tensor is not supported", layer=value.name)
    try:
        declared = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    except (KeyError, TypeError) as error:
        raise ImportModelError("an input has no element type", layer=value.name, found=kind.elem_type) from error
    dtype = normal_dtype(declared)
    if dtype is None:
        raise UnsupportedOperatorError(f"an input with elements of type {declared} is not supported", layer=value.name)
    if array is not None and array.dtype != declared and str(array.dtype) != dtype:
        raise ImportModelError("an example input has another element type", layer=value.name, found=array.dtype,
                               expected=declared)
    if not kind.HasField("shape"):
        if array is None:
            raise ImportModelError("an input has no shape in the model", layer=value.name, hint="pass example_inputs")
        return TensorSpec(value.name, array.shape, dtype)
    dims = list(kind.shape.dim)
    if array is not None and array.ndim != len(dims):
        raise ImportModelError("an example input has another rank", layer=value.name, found=array.shape,
                               expected=f"{len(dims)} dimensions")
    shape = tuple(_extent(value.name, i, d, None if array is None else array.shape[i], symbols)
                  for i, d in enumerate(dims))
    return TensorSpec(value.name, shape, dtype)


def _extent(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, given: int | None,
            symbols: dict[str, int]) -> int:
    if dim.HasField("dim_value") and dim.dim_value >= 0:  # Some exporters write -1 for an unknown extent.
        if given is not None and given != dim.dim_value:
            raise ImportModelError(f"dimension {axis} of an input does not fit", layer=name, found=given,
                                   expected=dim.dim_value)
        return int(dim.dim_value)
    if given is None:
        symbol = f" ('{dim.dim_param}')" if dim.dim_param else ""
        raise ImportModelError(f"dimension {axis}{symbol} of an input is symbolic", layer=name,
                               hint="pass example_inputs: their shapes bind symbolic dimensions")
    if dim.dim_param not in _ANONYMOUS and symbols.setdefault(dim.dim_param, given) != given:
        raise ImportModelError(f"the example inputs disagree about the dimension '{dim.dim_param}'", layer=name,
                               found=given, expected=symbols[dim.dim_param])
    return given
