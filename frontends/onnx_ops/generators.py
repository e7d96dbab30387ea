"""Operators that answer questions about shapes, and those that make tensors of a given shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper
from tvm import relax, tirx

from ...dims import Dim, product_of, simplified
from ..extents import extent, positions
from ..limits import MAX_ELEMENTS, is_tensor_shape
from ..symbolic_array import known_array
from .algebra import check_table
from .broadcasting import shape_text
from .node import OnnxNode, Results, Value, normal_dtype, operator


@operator("Shape")
def shape(node: OnnxNode) -> Results:
    dims = node.dims(0)[slice(node.attribute("start", 0), node.attribute("end"))]
    return known_array(dims, (len(dims),), "int64")


@operator("Size")
def size(node: OnnxNode) -> Results:
    return known_array([product_of(node.dims(0))], (), "int64")


@operator("ConstantOfShape")
def constant_of_shape(node: OnnxNode) -> Results:
    wanted = node.extents(0, "", "a shape") or ()
    if any(d < 0 for d in wanted if isinstance(d, int)):
        raise node.fault("the shape has a negative extent", found=shape_text(wanted))
    value = np.asarray(node.attribute("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise node.fault("the value is not one number", found=value.shape)
    return filled(node, wanted, value.reshape(()))


def filled(node: OnnxNode, dims: Sequence[Dim], value: np.ndarray) -> Value:
    """A tensor that has ``value`` everywhere."""
    if all(isinstance(d, int) for d in dims):
        shape = node.numbers(dims, "the result")
        if not is_tensor_shape(shape):
            raise node.fault("the result has an impossible shape", found=shape)
        check_table(node, *shape)
        return np.full(shape, value)
    dtype = normal_dtype(value.dtype)
    return node.emit(relax.op.full(tuple(dims), node.constant(value), dtype))


@operator("Range")
def range_(node: OnnxNode) -> Results:
    """``start``, ``start + delta`` … below ``limit``, where the bounds are expressions over symbols."""
    if not node.dtype(0).startswith("int"):
        raise node.unsupported("of floats that depend on the model's inputs")
    bounds = [node.extents(i, "", what) for i, what in enumerate(("a start", "a limit", "a step"))]
    if any(b is None or len(b) != 1 for b in bounds):
        raise node.fault("the bounds are not three numbers")
    start, limit, step = (b[0] for b in bounds if b is not None)
    if not isinstance(step, int) or step == 0:
        raise node.unsupported("with a step that is not a number")
    if step < 0:  # Relax counts upwards.
        count = simplified(tirx.floordiv(start - limit - step - 1, -step))
        places = node.emit(relax.op.arange(0, count, 1, "int64"), "positions")
        value = node.emit(relax.op.multiply(places, node.constant(step, "int64")), "positions")
        value = node.emit(relax.op.add(value, extent(node.builder, node.name, start)))
    else:
        value = node.emit(relax.op.arange(start, limit, step, "int64"))
    return value if node.dtype(0) == "int64" else node.emit(relax.op.astype(value, node.dtype(0)))


@operator("EyeLike")
def eye_like(node: OnnxNode) -> Results:
    source = node.dims(0)
    if len(source) != 2 or math.prod(d for d in source if isinstance(d, int)) > MAX_ELEMENTS >> 6:
        raise node.fault("the input is not a matrix of sensible size", found=shape_text(source))
    dtype = node.dtype(0)
    if "dtype" in node.attributes:
        dtype = normal_dtype(helper.tensor_dtype_to_np_dtype(node.attributes["dtype"])) or dtype
    k = int(node.attribute("k", 0))
    if all(isinstance(d, int) for d in source):
        height, width = node.numbers(source, "input 0")
        return np.eye(height, width, k=k, dtype=np.dtype(dtype))
    rows, columns = (positions(node.builder, node.name, d) for d in source)
    column = node.emit(relax.op.expand_dims(rows, 1), "rows")
    places = node.emit(relax.op.add(column, node.constant(k, "int64")), "rows")
    return node.emit(relax.op.astype(node.emit(relax.op.equal(places, columns), "diagonal"), dtype))


@operator("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def drawn(node: OnnxNode) -> Results:
    """Refused, with a seed too: every runtime draws other numbers from it, so no result could be compared."""
    raise node.unsupported("with results that are drawn at random")
