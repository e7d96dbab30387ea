"""Extents and positions as tensors, also where the extents are symbolic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..dims import Dim, as_dim
from ..ir import Expr, GraphBuilder, constant


def extent(builder: GraphBuilder, name: str, value: Dim, dtype: str = "int64") -> Expr:
    """An extent as a scalar tensor: a constant where it is a number."""
    value = as_dim(value)
    if isinstance(value, int):
        return constant(np.asarray(value, dtype))
    column = builder.emit(relax.op.arange(value, value + 1, 1, "int64"), f"{name}.extent")
    scalar = builder.emit(relax.op.squeeze(column, [0]), f"{name}.extent")
    return scalar if dtype == "int64" else builder.emit(relax.op.astype(scalar, dtype), f"{name}.extent")


def extents(builder: GraphBuilder, name: str, values: Sequence[Dim], dtype: str = "int64") -> Expr:
    """Several extents as the elements of a tensor."""
    values = [as_dim(v) for v in values]
    if all(isinstance(v, int) for v in values):
        return constant(np.asarray(values, dtype))
    parts = [builder.emit(relax.op.expand_dims(extent(builder, name, v, dtype), 0), f"{name}.extent") for v in values]
    return builder.emit(relax.op.concat(parts, 0), f"{name}.extents")


def positions(builder: GraphBuilder, name: str, count: Dim, dtype: str = "int64") -> Expr:
    """0, 1, … below ``count``: a constant where that is a number."""
    count = as_dim(count)
    if isinstance(count, int):
        return constant(np.arange(count, dtype=dtype))
    return builder.emit(relax.op.arange(0, count, 1, dtype), f"{name}.positions")


def triangle(builder: GraphBuilder, name: str, rows: Dim, columns: Dim, diagonal: Dim = 0) -> Expr:
    """[rows, columns] booleans: true at and below a diagonal."""
    rows, columns, diagonal = as_dim(rows), as_dim(columns), as_dim(diagonal)
    if isinstance(rows, int) and isinstance(columns, int) and isinstance(diagonal, int):
        return constant(np.tri(rows, columns, diagonal, dtype=bool))
    row = positions(builder, f"{name}.row", rows)
    if not (isinstance(diagonal, int) and diagonal == 0):
        row = builder.emit(relax.op.add(row, extent(builder, name, diagonal)), f"{name}.row")
    row = builder.emit(relax.op.expand_dims(row, 1), f"{name}.row")
    column = positions(builder, f"{name}.column", columns)
    return builder.emit(relax.op.less_equal(column, row), f"{name}.visible")
