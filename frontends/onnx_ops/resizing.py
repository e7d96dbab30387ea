"""Resize, Upsample and GridSample.

An axis is resized by a matrix that interpolates along it. Relax's ``resize2d`` and ``resize3d`` say the same
for whole images whose scales are the ratios of their sizes; everything else is a product with that matrix, or an
indexing where every row picks one element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from tvm import relax, tirx

from ...dims import Dim, is_equal_dim, simplified
from ...ir import Expr, dims_of
from .node import OnnxNode, Results, operator
from .sampling import sample_grid

_IMAGE_MODES = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_CROP = "tf_crop_and_resize"
_IMAGE_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
# Larger axes are refused before anything is computed for them, and larger interpolation matrices.
_MAX_EXTENT, _MAX_MATRIX = 2 ** 24, 2 ** 27
# Symbolic extents are scaled by fractions of small terms only.
_MAX_DENOMINATOR = 64
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda c: np.ceil(c - 0.5), "round_prefer_ceil": lambda c: np.floor(c + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}


@dataclass(frozen=True)
class _Form:
    """What every axis becomes, and how positions are rounded and interpolated; ``regions`` are the parts of the axes,
    from 0 to 1, that are cropped first."""

    mode: str
    coordinates: str
    rounding: str
    targets: list[Dim]
    scales: list[float | None]
    antialias: bool = False
    regions: list[tuple[float, float]] | None = None

    @property
    def is_image_form(self) -> bool:
        """Whether Relax's ``resize2d`` says it, given that the scales are ratios of the sizes."""
        plain = self.mode != "nearest" or (self.coordinates, self.rounding) == ("asymmetric", "floor")
        return plain and self.coordinates in _IMAGE_COORDINATES and not self.antialias


@operator("Resize", "Upsample")
def resize(node: OnnxNode) -> Results:
    source = node.dims(0)
    mode = node.attribute("mode", "nearest")
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    if node.op == "Upsample" or node.opset < 11:
        coordinates = "asymmetric"
    if mode not in _IMAGE_MODES or coordinates not in (*_IMAGE_COORDINATES, "half_pixel_symmetric", _CROP):
        raise node.fault("the mode or the coordinates are unknown", found=(mode, coordinates))
    targets, scales = _targets(node)
    narrows = any(s is None or s < 1 for s in scales)
    antialias = bool(node.attribute("antialias", 0)) and mode != "nearest" and narrows
    regions = _regions(node) if coordinates == _CROP else None
    form = _repetition(_Form(mode, coordinates, _rounding(node), targets, scales, antialias, regions))
    targets, scales = form.targets, form.scales
    axes = [a for a, (t, s) in enumerate(zip(targets, scales, strict=True))
            if not is_equal_dim(t, source[a]) or s not in (None, 1.0)
            or (regions is not None and regions[a] != (0.0, 1.0))]
    if not axes:
        return node.value(0)
    exact = all(_is_ratio(t, s, d) for t, s, d in zip(targets, scales, source, strict=True))
    if exact and form.is_image_form and len(source) == 4 and min(axes) >= 2:
        return _image(node, node.expr(0), targets[2:], form)
    if exact and form.is_image_form and len(source) == 3 and axes == [2] and not isinstance(source[2], int):
        rows = node.emit(relax.op.expand_dims(node.expr(0), 2), "rows")
        return node.emit(relax.op.squeeze(_image(node, rows, [1, targets[2]], form), [2]))
    x = node.expr(0)
    for axis in axes:
        before, after = node.numbers([source[axis], targets[axis]], "an axis that is resized")
        given = scales[axis]
        scale = after / before if given is None else given
        region = None if regions is None else regions[axis]
        positions = _positions(form.coordinates, before, after, scale, region)
        x = _resize_axis(node, x, axis, positions, form, scale)
    return x if isinstance(x, relax.Var) else node.emit(x)


def _regions(node: OnnxNode) -> list[tuple[float, float]]:
    """Where the crop starts and ends on every axis."""
    rank = node.rank(0)
    axes = node.axes(node.attribute("axes", tuple(range(rank))), rank)
    given = node.known(1, "a region").reshape(-1).tolist()
    if len(given) != 2 * len(axes):
        raise node.fault("the region does not fit the axes", found=given, expected=f"{2 * len(axes)} numbers")
    result = [(0.0, 1.0)] * rank
    for i, axis in enumerate(axes):
        result[axis] = given[i], given[len(axes) + i]
    return result


def _image(node: OnnxNode, x: Expr, size: list[Dim], form: _Form) -> relax.Var:
    return node.emit(relax.op.image.resize2d(
        x, tuple(size), layout="NCHW", method=_IMAGE_MODES[form.mode],
        coordinate_transformation_mode=form.coordinates,
        rounding_method="floor" if form.mode == "nearest" else "round",
        cubic_alpha=float(node.attribute("cubic_coeff_a", -0.75)),
        cubic_exclude=int(node.attribute("exclude_outside", 0))))


def _repetition(form: _Form) -> _Form:
    """The plain form of repeating every element a whole number of times: half a pixel then never rounds further."""
    whole = all(s is not None and s >= 1 and s == int(s) for s in form.scales)
    if form.mode == "nearest" and whole and form.coordinates.startswith(("half_pixel", "pytorch_half_pixel")) \
            and form.rounding.startswith("round"):
        return replace(form, coordinates="asymmetric", rounding="floor")
    return form


def _is_ratio(target: Dim, scale: float | None, source: Dim) -> bool:
    """Whether the scale is the ratio of the sizes; it is where it is symbolic, by what ``_targets`` requires."""
    if scale is None or not isinstance(target, int) or not isinstance(source, int):
        return True
    return bool(np.isclose(target, scale * source, rtol=0, atol=1e-6))


def _rounding(node: OnnxNode) -> str:
    default = "floor" if node.op == "Upsample" or node.opset < 11 else "round_prefer_floor"
    rounding = node.attribute("nearest_mode", default)
    if rounding not in _ROUNDINGS:
        raise node.fault("nearest_mode is unknown", found=rounding, expected=", ".join(_ROUNDINGS))
    return rounding


def _targets(node: OnnxNode) -> tuple[list[Dim], list[float | None]]:
    """The size and the scale of every axis, from sizes or scales of all axes or of ``axes``.

    A scale of None is the ratio of symbolic sizes.
    """
    source = node.dims(0)
    axes = node.axes(node.attribute("axes", tuple(range(len(source)))), len(source))
    first = 1 if node.op == "Upsample" or node.opset < 11 else 2
    targets: list[Dim] = list(source)
    scales: list[float | None] = [1.0] * len(source)
    given = node.attribute("scales", ())
    if not given and node.has(first):
        given = tuple(node.known(first, "scales").reshape(-1).tolist())
    if given:
        if len(given) != len(axes) or any(not 0 < s < 1e9 for s in given):
            raise node.fault("sizes and scales are unusable", found=given, expected=f"{len(axes)} positive scales")
        for scale, a in zip(given, axes, strict=True):
            targets[a], scales[a] = _scaled(node, source[a], scale), float(scale)
    else:
        sizes = node.extents(3, "sizes", "sizes")
        if sizes is None or len(sizes) != len(axes) or any(s < 1 for s in sizes if isinstance(s, int)):
            raise node.fault("sizes and scales are unusable", found=sizes, expected=f"{len(axes)} sizes")
        if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
            extents = node.numbers([source[a] for a in axes], "input 0")
            ratios = tuple(s / d for s, d in zip(node.numbers(sizes, "the sizes"), extents, strict=True))
            for scale, a in zip(_keep_aspect(node, ratios), axes, strict=True):
                targets[a], scales[a] = int(np.floor(int(source[a]) * scale + 0.5)), scale
        else:
            for size, a in zip(sizes, axes, strict=True):
                targets[a] = size
                scales[a] = size / source[a] if isinstance(size, int) and isinstance(source[a], int) else None
    for target, extent in zip(targets, source, strict=True):
        if isinstance(target, int) and not (1 <= target <= _MAX_EXTENT and
                                            (not isinstance(extent, int) or extent * target <= _MAX_MATRIX)):
            raise node.fault("an axis would get an impossible size", found=target)
    return targets, scales


def _scaled(node: OnnxNode, extent: Dim, scale: float) -> Dim:
    """``extent · scale``, rounded down; a symbolic extent has to give a whole number."""
    if isinstance(extent, int):
        return int(np.floor(extent * scale + 1e-6))
    fraction = Fraction(scale)
    if fraction.denominator > _MAX_DENOMINATOR:
        node.numbers([extent], f"input 0, scaled by {scale},")
    total = extent * fraction.numerator
    target = simplified(tirx.floordiv(total, fraction.denominator))
    node.require_equal(simplified(target * fraction.denominator), simplified(total))
    return target


def _keep_aspect(node: OnnxNode, scales: tuple[float, ...]) -> tuple[float, ...]:
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales
    if policy not in ("not_larger", "not_smaller"):
        raise node.fault("keep_aspect_ratio_policy is unknown", found=policy)
    return ((min if policy == "not_larger" else max)(scales),) * len(scales)


def _positions(coordinates: str, source: int, target: int, scale: float,
               region: tuple[float, float] | None) -> np.ndarray:
    """For every element of the result the place in the source that it is taken from, as the operator defines it."""
    x = np.arange(target, dtype=np.float64)
    if coordinates == "asymmetric":
        return x / scale
    if region is not None:
        low, span = region[0] * (source - 1), (region[1] - region[0]) * (source - 1)
        return low + (x * span / (target - 1) if target > 1 else np.full(1, span / 2))
    if coordinates == "align_corners":
        return x * (source - 1) / (target - 1) if target > 1 else np.zeros(1)
    if coordinates == "pytorch_half_pixel" and target == 1:
        return np.full(1, -0.5)  # Before the edge, which is picked.
    if coordinates == "half_pixel_symmetric":
        adjustment = target / (scale * source)
        return source / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def _resize_axis(node: OnnxNode, x: Expr, axis: int, positions: np.ndarray, form: _Form, scale: float) -> Expr:
    shape = dims_of(x)
    extent = int(shape[axis])
    if form.mode == "nearest":
        picked = np.clip(_ROUNDINGS[form.rounding](positions), 0, extent - 1).astype(np.int64)
        result = node.emit(relax.op.take(x, node.constant(picked), axis, mode="clip"))
    else:
        matrix = _weights(node, positions, extent, form.mode, min(scale, 1.0) if form.antialias else 1.0)
        last = [a for a in range(len(shape)) if a != axis] + [axis]
        turned = x if axis == len(shape) - 1 else node.emit(relax.op.permute_dims(x, last), "turned")
        result = node.emit(relax.op.matmul(turned, node.constant(matrix.T.astype(np.float32))))
        if axis < len(shape) - 1:
            result = node.emit(relax.op.permute_dims(result, np.argsort(last).tolist()))
    outside = (positions < 0) | (positions > extent - 1)
    if form.coordinates != _CROP or not outside.any():
        return result
    mask = node.constant(outside.reshape([-1 if a == axis else 1 for a in range(len(shape))]))
    value = node.constant(node.attribute("extrapolation_value", 0.0), node.dtype(0))
    return node.emit(relax.op.where(mask, value, result))


def _weights(node: OnnxNode, positions: np.ndarray, source: int, mode: str, stretch: float) -> np.ndarray:
    """The matrix [target, source]; places outside repeat the edge. A ``stretch`` below 1 makes the kernel wider, so
    that every element of the source counts."""
    reach = int(np.ceil((1 if mode == "linear" else 2) / stretch))
    taps = np.floor(positions) + np.arange(1 - reach, reach + 1)[:, None]
    distance = np.abs(taps - positions) * stretch
    if mode == "linear":
        weights = np.maximum(1 - distance, 0)
    else:
        a = float(node.attribute("cubic_coeff_a", -0.75))
        near = ((a + 2) * distance - (a + 3)) * distance ** 2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
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
    mode, rank = node.attribute("mode", "linear"), node.rank(0)
    method = modes.get(mode, mode)
    if node.attribute("padding_mode", "zeros") not in ("zeros", "border", "reflection"):
        raise node.fault("padding_mode is unknown", found=node.attribute("padding_mode"))
    if node.rank(1) != rank or node.dims(1)[-1] != rank - 2:
        raise node.fault("the grid does not fit the images", found=(node.rank(1), str(node.dims(1)[-1:])),
                         expected=f"{rank} dimensions, the last of {rank - 2}")
    node.require_equal(node.dims(0)[0], node.dims(1)[0], "input and grid differ in the batch")
    if method not in ("nearest", "bilinear", "bicubic") or rank != 4:
        return sample_grid(node, mode)
    grid = node.emit(relax.op.permute_dims(node.expr(1), [0, 3, 1, 2]), "grid")
    return node.emit(relax.op.image.grid_sample(
        node.expr(0), grid, method=method, layout="NCHW", padding_mode=node.attribute("padding_mode", "zeros"),
        align_corners=bool(node.attribute("align_corners", 0))))
