"""The element types that an ONNX model declares, which the normal form does not all have.

They decide what casts and quantizations do. Types are NumPy's names ("float8_e4m3fn", "int4" …); None is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

# Attributes that state the type of a result.
_STATED = ("to", "dtype", "output_dtype")


def type_name(kind: int) -> str | None:
    """The name of a ``TensorProto.DataType``; None where there is none, or it is not one of numbers."""
    try:
        return None if kind == TensorProto.STRING else str(helper.tensor_dtype_to_np_dtype(kind))
    except (KeyError, TypeError):
        return None


def result_types(domain: str, op: str, opset: int, attributes: Mapping[str, Any], inputs: Sequence[str | None],
                 count: int) -> list[str | None]:
    """The declared types of a node's first ``count`` results, given those of its inputs, by the operator's definition:
    an attribute's, or that of an input with the same type variable."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return [None] * count
    bound: dict[str, str | None] = {}
    for i, found in enumerate(inputs):
        if found is not None and schema.inputs:
            bound.setdefault(schema.inputs[min(i, len(schema.inputs) - 1)].type_str, found)
    stated = next((type_name(attributes[a]) for a in _STATED if isinstance(attributes.get(a), int) and attributes[a]),
                  None)
    formals = [schema.outputs[min(j, len(schema.outputs) - 1)].type_str for j in range(count if schema.outputs else 0)]
    return [bound.get(t) or _concrete(t) or stated for t in formals] or [None] * count


def type_problem(schema: Any, inputs: Sequence[str | None]) -> str | None:
    """What is wrong with the declared types of a node's inputs by the operator's definition; None where nothing is."""
    bound: dict[str, str] = {}
    for i, found in enumerate(inputs):
        if found is None or not schema.inputs:
            continue
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        name = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(np.dtype(found))).lower()
        if f"tensor({name})" not in formal.types:
            return f"{found} for {formal.name}"
        if formal.is_homogeneous and bound.setdefault(formal.type_str, found) != found:
            return f"{found} for {formal.name}, beside {bound[formal.type_str]}"
    return None


def _concrete(text: str) -> str | None:
    """The type in ``tensor(float16)``; None for a type variable."""
    name = text[7:-1].upper() if text.startswith("tensor(") else ""
    return type_name(TensorProto.DataType.Value(name)) if name in TensorProto.DataType.keys() else None  # noqa: SIM118
