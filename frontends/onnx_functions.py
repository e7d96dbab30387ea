"""Functions in ONNX: those of a model, and those by which ONNX defines some of its operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ..dims import dim_text
from ..errors import UnsupportedOperatorError
from ..ir import dims_of, dtype_of
from .onnx_constants import can_evaluate
from .onnx_ops import OnnxNode, TensorSequence, Value, normal_dtype

NO_TRANSLATION = "no translation"


def has_function(domain: str, op: str, opsets: Mapping[str, int]) -> bool:
    """Whether ONNX defines the operator by a function of other operators."""
    try:
        schema: Any = onnx.defs.get_schema(op, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def function_of(node: onnx.NodeProto, resolved: OnnxNode) -> onnx.FunctionProto:
    """The function that ONNX defines the operator by; UnsupportedOperatorError where there is none."""
    if not has_function(resolved.domain, resolved.op, {resolved.domain: resolved.opset}):
        depends = resolved.domain == "" and can_evaluate(node, resolved.opset)
        raise UnsupportedOperatorError(NO_TRANSLATION + " for inputs that depend on the model's" * depends,
                                       layer=resolved.label)
    schema: Any = onnx.defs.get_schema(resolved.op, resolved.opset, resolved.domain)  # onnx types a part of it only
    function = onnx.FunctionProto()
    if schema.has_function:
        version = max([v for v in schema.function_opset_versions if v <= resolved.opset],
                      default=min(schema.function_opset_versions))
        function.ParseFromString(schema.get_function_with_opset_version(version))
        function.attribute_proto.extend(a.default_value for a in schema.attributes.values() if a.default_value.name)
        return function
    versions = schema.context_dependent_function_opset_versions
    version = max([v for v in versions if v <= resolved.opset], default=min(versions))
    types = [_type_of(v) for v in resolved.inputs]
    function.ParseFromString(
        schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types))
    return function


def _type_of(value: Value | None) -> bytes:
    if value is None or isinstance(value, TensorSequence):
        return onnx.TypeProto().SerializeToString()
    dtype, shape = (dtype_of(value), dims_of(value)) if isinstance(value, relax.Var) else (value.dtype, value.shape)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(normal_dtype(dtype) or "float32"))
    extents = [d if isinstance(d, int) else dim_text(d) for d in shape]
    return helper.make_tensor_type_proto(kind, extents).SerializeToString()


def with_arguments(node: onnx.NodeProto, call: onnx.NodeProto, function: onnx.FunctionProto) -> onnx.NodeProto:
    """``node`` of a function's body, with the attributes that it takes from the call or the defaults filled in."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    given = {a.name: a for a in [*function.attribute_proto, *call.attribute]}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            result.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            filled = result.attribute.add()
            filled.CopyFrom(given[attribute.ref_attr_name])
            filled.name = attribute.name
    return result
