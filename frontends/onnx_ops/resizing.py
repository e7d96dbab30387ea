"""Resize, Upsample and GridSample.

An axis is resized by a matrix that interpolates along it. Relax's ``resize2d`` and ``resize3d`` say the same
for whole images whose scales are the ratios of their sizes; everything else is a product with that matrix, or an
indexing where every row picks one element.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ...ir import Expr, shape_of
from .node import OnnxNode, Results, operator

_IMAGE_MODES = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_IMAGE_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
# Larger axes are refused before anything is computed for them, and larger interpolation matrices.
_MAX_EXTENT, _MAX_MATRIX = 2 ** 24, 2 ** 27
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda c: np.ceil(c - 0.5), "round_prefer_ceil": lambda c: np.floor(c + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}


@operator("Resize", "Upsample")
def resize(node: OnnxNode) -> Results:
    source = node.shape(0)
    mode = node.attribute("mode", "nearest")
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    if node.op == "Upsample" or node.opset < 11:
        coordinates = "asymmetric"
    if mode not in _IMAGE_MODES or coordinates not in (*_IMAGE_COORDINATES, "half_pixel_symmetric"):
        raise node.unsupported(f"with mode {mode} and coordinates {coordinates}")
    if node.attribute("antialias", 0):
        raise node.unsupported("with antialias")
    targets, scales = _targets(node)
    axes = [a for a, (t, s) in enumerate(zip(targets, scales, strict=True)) if t != source[a] or s != 1.0]
    if not axes:
        return node.value(0)
    exact = all(np.isclose(t, s * d, rtol=0, atol=1e-6) for t, s, d in zip(targets, scales, source, strict=True))
    plain = mode != "nearest" or (coordinates, _rounding(node)) == ("asymmetric", "floor")
    if exact and plain and coordinates in _IMAGE_COORDINATES and len(source) == 4 and min(axes) >= 2:
        return node.emit(relax.op.image.resize2d(
            node.expr(0), tuple(targets[2:]), layout="NCHW", method=_IMAGE_MODES[mode],
            coordinate_transformation_mode=coordinates, rounding_method="floor" if mode == "nearest" else "round",
            cubic_alpha=float(node.attribute("cubic_coeff_a", -0.75)),
            cubic_exclude=int(node.attribute("exclude_outside", 0))))
    x = node.expr(0)
    for axis in axes:
        x = _resize_axis(node, x, axis, _positions(coordinates, source[axis], targets[axis], scales[axis]), mode)
    return x if isinstance(x, relax.Var) else node.emit(x)


def _rounding(node: OnnxNode) -> str:
    default = "floor" if node.op == "Upsample" or node.opset < 11 else "round_prefer_floor"
    rounding = node.attribute("nearest_mode", default)
    if rounding not in _ROUNDINGS:
        raise node.fault("nearest_mode is unknown", found=rounding, expected=", ".join(_ROUNDINGS))
    return rounding


def _targets(node: OnnxNode) -> tuple[list[int], list[float]]:
    """The size and the scale of every axis, from sizes or scales of all axes or of ``axes``."""
    source = node.shape(0)
    axes = node.axes(node.attribute("axes", tuple(range(len(source)))), len(source))
    first = 1 if node.op == "Upsample" or node.opset < 11 else 2
    given = node.attribute("scales", ())
    if not given and node.has(first):
        given = tuple(node.known(first, "scales").reshape(-1).tolist())
    targets, scales = list(source), [1.0] * len(source)
    if not given:
        sizes = node.integers(3, "sizes", "sizes")
        if sizes is None or len(sizes) != len(axes) or any(s < 1 for s in sizes):
            raise node.fault("sizes and scales are unusable", found=sizes, expected=f"{len(axes)} sizes")
        given = tuple(s / source[a] for s, a in zip(sizes, axes, strict=True))
        given = _keep_aspect(node, given)
    if len(given) != len(axes) or any(not 0 < s < 1e9 for s in given):
        raise node.fault("sizes and scales are unusable", found=given, expected=f"{len(axes)} positive scales")
    by_size = not node.has(first) and "scales" not in node.attributes
    for scale, a in zip(given, axes, strict=True):
        targets[a] = int(np.floor(source[a] * scale + 0.5)) if by_size else int(np.floor(source[a] * scale + 1e-6))
        scales[a] = float(scale)
        if not 1 <= targets[a] <= _MAX_EXTENT or source[a] * targets[a] > _MAX_MATRIX:
            raise node.fault("an axis would get an impossible size", found=targets[a])
    return targets, scales


def _keep_aspect(node: OnnxNode, scales: tuple[float, ...]) -> tuple[float, ...]:
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales
    if policy not in ("not_larger", "not_smaller"):
        raise node.fault("keep_aspect_ratio_policy is unknown", found=policy)
    return ((min if policy == "not_larger" else max)(scales),) * len(scales)


def _positions(coordinates: str, source: int, target: int, scale: float) -> np.ndarray:
    """For every element of the result the place in the source that it is taken from, as the operator defines it."""
    x = np.arange(target, dtype=np.float64)
    if coordinates == "asymmetric":
        return x / scale
    if coordinates == "align_corners":
        return x * (source - 1) / (target - 1) if target > 1 else np.zeros(1)
    if coordinates == "pytorch_half_pixel" and target == 1:
        return np.full(1, -0.5)  # Before the edge, which is picked.
    if coordinates == "half_pixel_symmetric":
        adjustment = target / (scale * source)
        return source / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def _resize_axis(node: OnnxNode, x: Expr, axis: int, positions: np.ndarray, mode: str) -> Expr:
    shape = shape_of(x)
    if mode == "nearest":
        picked = np.clip(_ROUNDINGS[_rounding(node)](positions), 0, shape[axis] - 1).astype(np.int64)
        return node.emit(relax.op.take(x, node.constant(picked), axis, mode="clip"))
    matrix = _weights(node, positions, shape[axis], mode)
    last = [a for a in range(len(shape)) if a != axis] + [axis]
    turned = x if axis == len(shape) - 1 else node.emit(relax.op.permute_dims(x, last), "turned")
    product = node.emit(relax.op.matmul(turned, node.constant(matrix.T.astype(np.float32))))
    return product if axis == len(shape) - 1 else node.emit(relax.op.permute_dims(product, np.argsort(last).tolist()))


def _weights(node: OnnxNode, positions: np.ndarray, source: int, mode: str) -> np.ndarray:
    """The matrix [target, source]; places outside repeat the edge."""
    base = np.floor(positions)
    t = positions - base
    if mode == "linear":
        taps, weights = np.stack([base, base + 1]), np.stack([1 - t, t])
    else:
        a = float(node.attribute("cubic_coeff_a", -0.75))
        distance = np.stack([1 + t, t, 1 - t, 2 - t])
        near = ((a + 2) * distance - (a + 3)) * distance ** 2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        taps, weights = base + np.arange(-1, 3)[:, None], np.where(distance <= 1, near, far)
        if node.attribute("exclude_outside", 0):
            weights = np.where((taps < 0) | (taps >= source), 0.0, weights)
            weights = weights / weights.sum(axis=0)
    matrix = np.zeros((len(positions), source))
    rows = np.broadcast_to(np.arange(len(positions)), taps.shape)
    np.add.at(matrix, (rows, np.clip(taps, 0, source - 1).astype(np.int64)), weights)
    return matrix


@operator("GridSample")
def grid_sample(node: OnnxNode) -> Results:
    """Sample images at the places that a grid names; opset 16 called the modes after their two-dimensional forms."""
    modes = {"linear": "bilinear", "cubic": "bicubic"}
    mode, rank = node.attribute("mode", "linear"), len(node.shape(0))
    method = modes.get(mode, mode)
    if node.attribute("padding_mode", "zeros") not in ("zeros", "border", "reflection"):
        raise node.fault("padding_mode is unknown", found=node.attribute("padding_mode"))
    if method not in ("nearest", "bilinear", "bicubic") or rank != 4 or len(node.shape(1)) != 4:
        raise node.unsupported(f"with mode {mode} of {rank} dimensions")
    grid = node.emit(relax.op.permute_dims(node.expr(1), [0, 3, 1, 2]), "grid")
    return node.emit(relax.op.image.grid_sample(
        node.expr(0), grid, method=method, layout="NCHW", padding_mode=node.attribute("padding_mode", "zeros"),
        align_corners=bool(node.attribute("align_corners", 0))))
