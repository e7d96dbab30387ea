"""Sampling of images between their elements: volumetric GridSample, RoiAlign, DeformConv.

A place is a float coordinate per axis. It is read from the 2^k elements around it, each weighted by its nearness; what
lies outside of the image counts as zero. Elements are picked from the flattened image by ``gather_elements``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from tvm import relax

from ...ir import Expr
from .algebra import Algebra, check_table
from .node import OnnxNode, Results, operator


def corners(steps: Algebra, places: Sequence[Expr], extents: Sequence[int]) -> Iterator[tuple[relax.Var, relax.Var]]:
    """For the 2^k elements around every place: where it is in the flattened image (int64), and its weight, 0 outside.

    places : one float coordinate per axis, tensors of one shape.
    """
    below = [steps(relax.op.floor, p) for p in places]
    near = [steps.subtract(p, b) for p, b in zip(places, below, strict=True)]
    far = [steps.subtract(1.0, n) for n in near]
    for offsets in itertools.product((0, 1), repeat=len(places)):
        index: Expr | None = None
        weight: Expr | None = None
        for axis, offset in enumerate(offsets):
            position = steps.add(below[axis], float(offset)) if offset else below[axis]
            part = near[axis] if offset else far[axis]
            part = steps.multiply(part, steps.cast(steps.within(position, 0.0, extents[axis] - 1.0), "float32"))
            place = steps.cast(steps.clipped(position, 0.0, extents[axis] - 1.0), "int64")
            weight = part if weight is None else steps.multiply(weight, part)
            index = place if index is None else steps.add(steps.multiply(index, extents[axis]), place)
        yield index, weight


def picked(steps: Algebra, flat: Expr, index: Expr) -> relax.Var:
    """[N, C, P]: of ``flat`` [N, C, S] the elements at ``index`` [N, P]."""
    n, c, _ = steps.shape(flat)
    rows = steps.broadcast(steps.expanded(index, 1), [n, c, steps.shape(index)[1]])
    return steps.node.emit(relax.op.gather_elements(flat, rows, 2), steps.part)


def interpolated(steps: Algebra, flat: Expr, places: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """[N, C, P]: ``flat`` [N, C, S], images of ``extents``, at the ``places``, each [N, P]."""
    total: Expr | None = None
    for index, weight in corners(steps, places, extents):
        term = steps.multiply(picked(steps, flat, index), steps.expanded(weight, 1))
        total = term if total is None else steps.add(total, term)
    return total


def sample_grid(node: OnnxNode, mode: str) -> Results:
    """GridSample of images with any number of axes, linear or nearest, by a grid that fits them."""
    steps, shape, grid = Algebra(node, "places"), node.shape(0), node.shape(1)
    extents, rank = shape[2:], len(shape) - 2
    if mode not in ("linear", "bilinear", "nearest"):
        raise node.unsupported(f"with mode {mode} of {rank + 2} dimensions")
    count = math.prod(grid[1:-1])
    flat = steps.reshape(node.expr(0), [*shape[:2], math.prod(extents)])
    rows = steps.reshape(node.expr(1), [grid[0], count, rank])
    places = [_from_grid(node, steps, steps.element(rows, 2, rank - 1 - a), extents[a]) for a in range(rank)]
    if mode == "nearest":
        places = [steps(relax.op.round, p) for p in places]
    result = interpolated(steps, flat, places, extents)
    return node.emit(relax.op.reshape(result, (*shape[:2], *grid[1:-1])))


def _from_grid(node: OnnxNode, steps: Algebra, x: Expr, extent: int) -> Expr:
    """Coordinates of -1…1 as places in an axis, folded back into it as ``padding_mode`` says."""
    aligned = bool(node.attribute("align_corners", 0))
    scale = (extent - 1) / 2 if aligned else extent / 2
    place: Expr = steps.add(steps.multiply(x, scale), (extent - 1) / 2)
    padding = node.attribute("padding_mode", "zeros")
    if padding == "border":
        return steps.clipped(place, 0.0, extent - 1.0)
    if padding == "reflection":
        low, span = (0.0, extent - 1.0) if aligned else (-0.5, float(extent))
        if span == 0:
            return steps.multiply(place, 0.0)
        distance = steps(relax.op.abs, steps.subtract(place, low))
        folded = steps(relax.op.floor_mod, distance, 2 * span)
        inside = steps.add(steps(relax.op.minimum, folded, steps.subtract(2 * span, folded)), low)
        return steps.clipped(inside, 0.0, extent - 1.0)
    return place


@operator("RoiAlign")
def roi_align(node: OnnxNode) -> Results:
    """Every bin of every region is the mean, or the maximum, of a grid of samples inside of it (He et al. 2017)."""
    shape, steps = node.shape(0), Algebra(node, "regions")
    (regions,) = node.numbers(node.dims(1)[:1], "the regions")
    samples = int(node.attribute("sampling_ratio", 0))
    height, width = (int(node.attribute(n, 1)) for n in ("output_height", "output_width"))
    mode = node.attribute("mode", "avg")
    if len(shape) != 4 or mode not in ("avg", "max") or min(height, width) < 1:
        raise node.fault("the form is unusable", found=(shape, mode, height, width))
    if samples < 1 and not node.is_known(1):
        raise node.unsupported("with a number of samples that depends on the regions")
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half = node.attribute("coordinate_transformation_mode", default) == "half_pixel"
    check_table(node, height, width, max(samples, 1) ** 2)
    images = steps(relax.op.floor_mod, steps.cast(node.expr(2), "int64"), shape[0])
    flat = steps.reshape(node.expr(0), [*shape[:2], shape[2] * shape[3]])
    own = node.emit(relax.op.take(flat, images, 0, mode="clip"), "regions")
    if samples < 1:
        return _adaptive(node, steps, own, height, width, half=half, mode=mode)
    places = [_bins(node, steps, axis, (height, width)[axis], samples, half=half) for axis in (0, 1)]
    rows, columns = height * samples, width * samples
    grid = [steps.reshape(steps.broadcast(steps.expanded(p, 2 - axis), [regions, rows, columns]),
                          [regions, rows * columns]) for axis, p in enumerate(places)]
    return _pooled(node, steps, _aligned(steps, own, grid, shape[2:], mode), mode,
                   (regions, shape[1], height, width), (samples, samples))


def _bins(node: OnnxNode, steps: Algebra, axis: int, count: int, samples: int, *, half: bool) -> Expr:
    """[regions, count · samples]: the places of the samples along an axis, 0 for rows and 1 for columns."""
    scale, shift = float(node.attribute("spatial_scale", 1.0)), 0.5 if half else 0.0
    first, last = (steps.subtract(steps.multiply(steps.sliced(node.expr(1), 1, i, i + 1), scale), shift)
                   for i in (1 - axis, 3 - axis))
    size: Expr = steps.subtract(last, first)
    if not half:  # Regions of the older definition are at least one element large.
        size = steps(relax.op.maximum, size, 1.0)
    share = (np.arange(count)[:, None] + (np.arange(samples) + 0.5) / samples).reshape(1, -1) / count
    return steps.add(steps.multiply(size, share.astype(np.float32)), first)


def _aligned(steps: Algebra, own: Expr, grid: Sequence[Expr], extents: Sequence[int], mode: str) -> Expr:
    """The samples [regions, C, P]; those more than one element outside of the image are zero, others are clipped to it.
    For the maximum ONNX takes that of the weighted elements instead of their sum."""
    inside: Expr | None = None
    places = []
    for place, extent in zip(grid, extents, strict=True):
        valid = steps.within(place, -1.0, float(extent))
        inside = valid if inside is None else steps(relax.op.logical_and, inside, valid)
        places.append(steps.clipped(place, 0.0, extent - 1.0))
    weight = steps.expanded(steps.cast(inside, "float32"), 1)
    result: Expr | None = None
    for index, part in corners(steps, places, extents):
        term = steps.multiply(picked(steps, own, index), steps.expanded(part, 1))
        result = term if result is None else steps(relax.op.add if mode == "avg" else relax.op.maximum, result, term)
    return steps.multiply(result, weight)


def _pooled(node: OnnxNode, steps: Algebra, samples: Expr, mode: str, shape: Sequence[int],
            per_bin: tuple[int, int]) -> relax.Var:
    n, c, height, width = shape
    bins = steps.reshape(samples, [n, c, height, per_bin[0], width, per_bin[1]])
    return node.emit((relax.op.mean if mode == "avg" else relax.op.max)(bins, [3, 5]))


def _adaptive(node: OnnxNode, steps: Algebra, own: Expr, height: int, width: int, *, half: bool, mode: str) -> Results:
    """As many samples as a bin is large, which is known for regions that are: one region after the other."""
    regions = node.known(1, "regions").astype(np.float32)
    shape, scale = node.shape(0), np.float32(node.attribute("spatial_scale", 1.0))
    results = []
    for i, region in enumerate(regions):
        low, high = (region[[1 + k, k]] * scale - np.float32(0.5 if half else 0.0) for k in (0, 2))
        size = high - low if half else np.maximum(high - low, np.float32(1.0))
        counts = [max(math.ceil(s / n), 1) for s, n in zip(size, (height, width), strict=True)]
        check_table(node, height, width, *counts)
        places = [low[a] + size[a] / n * (np.arange(n)[:, None] + (np.arange(k) + 0.5) / k).reshape(-1)
                  for a, (n, k) in enumerate(zip((height, width), counts, strict=True))]
        grid = [g.reshape(1, -1) for g in np.meshgrid(*places, indexing="ij")]
        part = _aligned(steps, steps.sliced(own, 0, i, i + 1), [node.constant(g.astype(np.float32)) for g in grid],
                        shape[2:], mode)
        results.append(_pooled(node, steps, part, mode, (1, shape[1], height, width), (counts[0], counts[1])))
    return results[0] if len(results) == 1 else node.emit(relax.op.concat(results, 0))


@operator("DeformConv")
def deformable_convolution(node: OnnxNode) -> Results:
    """A convolution whose every tap reads a place of its own, moved by ``offset`` and weighted by ``mask`` (Dai et al.
    2017, Zhu et al. 2019): a product of the sampled columns with the weights."""
    shape, weight, steps = node.shape(0), node.shape(1), Algebra(node, "columns")
    rank, n, channels = len(shape) - 2, shape[0], shape[1]
    kernel, groups = weight[2:], int(node.attribute("group", 1))
    strides, dilations = (node.attribute(k, (1,) * rank) for k in ("strides", "dilations"))
    pads, parts = node.attribute("pads", (0,) * 2 * rank), int(node.attribute("offset_group", 1))
    taps = math.prod(kernel)
    counts = [(d + pads[i] + pads[rank + i] - (k - 1) * dilations[i] - 1) // strides[i] + 1
              for i, (d, k) in enumerate(zip(shape[2:], kernel, strict=True))]
    expected = (n, parts * taps * rank, *counts)
    if rank < 1 or channels % parts or weight[1] * groups != channels or node.shape(2) != expected:
        raise node.fault("the offsets do not fit", found=node.shape(2), expected=expected)
    windows = math.prod(counts)
    check_table(node, taps, windows)
    # Images of the offset groups are samples of a batch; every place is (tap, window).
    flat = steps.reshape(node.expr(0), [n * parts, channels // parts, math.prod(shape[2:])])
    offsets = steps.reshape(node.expr(2), [n * parts, taps, rank, windows])
    places = []
    for axis in range(rank):
        own = _tap_places(axis, kernel, counts, strides, dilations, pads)
        moved = steps.add(steps.element(offsets, 2, axis), own.astype(np.float32))
        places.append(steps.reshape(moved, [n * parts, taps * windows]))
    columns = interpolated(steps, flat, places, shape[2:])
    if node.has(4):
        mask = steps.reshape(node.expr(4), [n * parts, 1, taps * windows])
        columns = steps.multiply(columns, mask)
    rows = steps.reshape(columns, [n, groups, channels // groups * taps, windows])
    matrix = steps.reshape(node.expr(1), [groups, weight[0] // groups, weight[1] * taps])
    product = node.emit(relax.op.matmul(matrix, rows))
    result = node.emit(relax.op.reshape(product, (n, weight[0], *counts)))
    if not node.has(3):
        return result
    bias = steps.reshape(node.expr(3), [weight[0], *(1,) * rank])
    return node.emit(relax.op.add(result, bias))


def _tap_places(axis: int, kernel: Sequence[int], counts: Sequence[int], strides: Sequence[int],
                dilations: Sequence[int], pads: Sequence[int]) -> np.ndarray:
    """[taps, windows]: where every tap is along an axis before it is moved."""
    tap = np.arange(kernel[axis]).reshape([-1 if a == axis else 1 for a in range(len(kernel))])
    window = np.arange(counts[axis]).reshape([-1 if a == axis else 1 for a in range(len(kernel))])
    taps = np.broadcast_to(tap, tuple(kernel)).reshape(-1, 1) * dilations[axis]
    windows = np.broadcast_to(window, tuple(counts)).reshape(1, -1) * strides[axis]
    return taps + windows - pads[axis]
