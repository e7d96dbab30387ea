"""Windows over images by tables of places: Col2Im, MaxPool with the places of the maxima, MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...dims import product_of
from ...ir import Expr, dims_of
from .algebra import Algebra, check_table
from .node import OnnxNode, Results, operator


def window_table(extents: Sequence[int], counts: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
                 dilations: Sequence[int], starts: Sequence[int]) -> np.ndarray:
    """[windows, elements of a window]: the place of every element in the flattened image, -1 outside of it.

    ``counts`` are the windows along each axis, ``starts`` the padding before each.
    """
    axes = []
    for count, k, s, d, p in zip(counts, kernel, strides, dilations, starts, strict=True):
        axes.append(np.arange(count)[:, None] * s - p + np.arange(k) * d)
    place, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for extent, position in zip(extents, axes, strict=True):
        rows, columns = place.shape[0] * position.shape[0], place.shape[1] * position.shape[1]
        place = (place[:, None, :, None] * extent + position[None, :, None, :]).reshape(rows, columns)
        valid = (position >= 0) & (position < extent)
        inside = (inside[:, None, :, None] & valid[None, :, None, :]).reshape(rows, columns)
    return np.where(inside, place, -1)


@operator("Col2Im")
def column_to_image(node: OnnxNode) -> Results:
    """Every element of the image is the sum of the elements of columns that cover it, picked by a table."""
    extents, kernel = (node.integers(i, "", w) or () for i, w in ((1, "a shape"), (2, "a block")))
    count = len(extents)
    strides, dilations = (node.attribute(n, (1,) * count) for n in ("strides", "dilations"))
    pads = node.attribute("pads", (0,) * 2 * count)
    shape = node.dims(0)
    if len(shape) != 3 or not count == len(kernel) == len(strides) == len(dilations) or len(pads) != 2 * count \
            or min(*kernel, *strides, *dilations, *extents, 1) < 1:
        raise node.fault("the form is unusable", found=(shape, extents, kernel))
    counts = [(e + pads[i] + pads[count + i] - (k - 1) * d - 1) // s + 1
              for i, (e, k, s, d) in enumerate(zip(extents, kernel, strides, dilations, strict=True))]
    elements, windows = math.prod(kernel), math.prod(counts)
    planes, columns = node.numbers(shape[1:], "the columns")
    if columns != windows or planes % elements or windows < 1:
        raise node.fault("the columns do not fit the image", found=(planes, columns),
                         expected=f"a multiple of {elements}, {windows}")
    check_table(node, windows, elements)
    check_table(node, *extents)
    table = _covering(window_table(extents, counts, kernel, strides, dilations, pads[:count]), math.prod(extents))
    steps = Algebra(node, "columns")
    flat = steps.reshape(node.expr(0), [shape[0], planes // elements, elements * windows])
    flat = node.emit(relax.op.nn.pad(flat, [0, 0, 0, 0, 0, 1]), "columns")
    picked = node.emit(relax.op.take(flat, node.constant(table), 2, mode="clip"), "columns")
    return steps.reshape(steps.total(picked, 3), [shape[0], planes // elements, *extents])


def _covering(table: np.ndarray, size: int) -> np.ndarray:
    """[size, at most covered]: for every place of the image the elements of flattened columns [elements, windows] that
    ``table`` [windows, elements] puts there; their number where there are fewer."""
    windows, elements = table.shape
    flat = table.T.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[flat[order] >= 0]
    places = flat[order]
    first = np.searchsorted(places, np.arange(size))
    rank = np.arange(len(places)) - first[places]
    result = np.full((size, int(rank.max(initial=0)) + 1), windows * elements, np.int64)
    result[places, rank] = order
    return result


def max_with_places(node: OnnxNode, counts: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
                    dilations: Sequence[int], starts: Sequence[int]) -> tuple[relax.Var, relax.Var]:
    """The maxima of windows, and their places in the whole flattened tensor (``storage_order`` 1: of every image
    column by column)."""
    shape, x = node.shape(0), node.expr(0)
    extents = shape[2:]
    check_table(node, math.prod(counts), math.prod(kernel))
    table = window_table(extents, counts, kernel, strides, dilations, starts)
    if (table < 0).all(axis=1).any():
        raise node.fault("a window lies outside of the image", found=extents)
    steps = Algebra(node, "windows")
    flat = steps.reshape(x, [*shape[:2], math.prod(extents)])
    picked: Expr = node.emit(relax.op.take(flat, node.constant(np.maximum(table, 0)), 2, mode="clip"), "windows")
    if (table < 0).any():
        lowest = -np.inf if node.dtype(0) == "float32" else np.iinfo(node.dtype(0)).min
        picked = node.emit(relax.op.where(node.constant(table >= 0), picked, node.constant(lowest, node.dtype(0))),
                           "windows")
    best = node.emit(relax.op.max(picked, [3]))
    chosen = node.emit(relax.op.argmax(picked, 3), "places")
    places = Algebra(node, "places")
    rows = places.add(chosen, np.arange(table.shape[0]) * table.shape[1])
    local = node.emit(relax.op.take(node.constant(_stored(node, table, extents).reshape(-1)), rows, 0, mode="clip"),
                      "places")
    images = np.arange(math.prod(shape[:2])).reshape(*shape[:2], 1) * math.prod(extents)
    shape = (*shape[:2], *counts)
    return steps.reshape(best, shape), places.reshape(places.add(local, images), shape)


def _stored(node: OnnxNode, table: np.ndarray, extents: Sequence[int]) -> np.ndarray:
    """The places as the model counts them."""
    if not node.attribute("storage_order", 0):
        return table
    parts = np.unravel_index(np.maximum(table, 0), extents)
    return np.asarray(np.ravel_multi_index(parts[::-1], tuple(reversed(extents))))


@operator("MaxUnpool")
def max_unpool(node: OnnxNode) -> Results:
    """Values are put at their places in zeros of the shape that the pooling had; what a larger ``output_shape`` adds at
    the ends stays zero."""
    shape = node.shape(0)
    kernel = node.attribute("kernel_shape", ())
    count = len(shape) - 2
    strides, pads = node.attribute("strides", (1,) * count), node.attribute("pads", (0,) * 2 * count)
    if count < 1 or not len(kernel) == len(strides) == count or len(pads) != 2 * count \
            or node.shape(1) != shape:
        raise node.fault("the form is unusable", found=(shape, node.shape(1), kernel))
    inferred = [(d - 1) * s - pads[i] - pads[count + i] + k
                for i, (d, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))]
    whole = [*shape[:2], *inferred]
    wanted = list(node.integers(2, "", "a shape") or whole)
    if len(wanted) != len(whole) or any(w < i for w, i in zip(wanted, whole, strict=True)) or min(whole) < 1:
        raise node.fault("the output's shape is unusable", found=wanted, expected=f"at least {whole}")
    check_table(node, *whole)
    steps = Algebra(node, "places")
    indices = steps(relax.op.floor_mod, steps.reshape(node.expr(1), [math.prod(shape)]), math.prod(whole))
    zeros = node.constant(np.zeros(math.prod(whole)), node.dtype(0))
    values = steps.reshape(node.expr(0), [product_of(dims_of(node.expr(0)))])
    flat = node.emit(relax.op.scatter_elements(zeros, indices, values, 0, "update"))
    result = steps.reshape(flat, whole)
    widths = [n for w, i in zip(wanted, whole, strict=True) for n in (0, w - i)]
    return node.emit(relax.op.nn.pad(result, widths)) if any(widths) else result
