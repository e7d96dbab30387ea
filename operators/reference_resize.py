"""Reference semantics of image resizing and sampling.

Resizing is separable in Relax: along each axis, an output position is mapped to a real input coordinate, and the
value there is a weighted sum of one, two or four elements. Coordinates are computed in float32, as the operator
does, so that positions that fall on a boundary round to the same side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from tvm import relax

from .semantics import Semantics, refuse, to_layout

_EPSILON = np.float32(1e-5)  # by which the operator keeps "floor" and "ceil" from rounding exact positions away


def _coordinates(source: int, target: int, roi: tuple[float, float], call: relax.Call) -> np.ndarray:
    """The input coordinate, float32, of every output position along one axis."""
    mode = str(call.attrs.coordinate_transformation_mode)
    x = np.arange(target, dtype=np.float32)
    scale = np.float32(source) / np.float32(target)
    half, last = np.float32(0.5), np.float32(source - 1)
    if mode == "pytorch_half_pixel" and target == 1:
        return np.zeros(1, np.float32)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (x + half) * scale - half
    if mode == "align_corners":
        return last / np.float32(max(target - 1, 1)) * x
    if mode == "asymmetric":
        return scale * x
    if mode == "tf_half_pixel_for_nn":
        return (x + half) * scale
    if mode == "tf_crop_and_resize":
        start, end = map(np.float32, roi)
        if target == 1:
            return half * (start + end) * last * np.ones(1, np.float32)
        return start * last + x * (end - start) * last / np.float32(target - 1)
    raise refuse(call, f"with coordinates {mode}")


def _nearest(coordinates: np.ndarray, call: relax.Call) -> np.ndarray:
    rounding = str(call.attrs.rounding_method)
    if rounding == "":
        rounding = "round" if str(call.attrs.coordinate_transformation_mode) == "align_corners" else "floor"
    half = np.float32(0.5)
    rounded: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "round": np.rint,
        "round_prefer_floor": lambda c: np.ceil(c - half), "round_prefer_ceil": lambda c: np.floor(c + half),
        "floor": lambda c: np.floor(c + _EPSILON), "ceil": lambda c: np.ceil(c - _EPSILON)}
    if rounding not in rounded:
        raise refuse(call, f"with rounding {rounding}")
    return rounded[rounding](coordinates)


def _cubic_weights(t: np.ndarray, alpha: float) -> np.ndarray:
    """Weights [4, n] of the elements at -1, 0, 1, 2 for the fraction t (Keys 1981, Cubic convolution interpolation)."""
    distance = np.stack([1 + t, t, 1 - t, 2 - t])
    near = (alpha + 2) * distance**3 - (alpha + 3) * distance**2 + 1
    far = alpha * distance**3 - 5 * alpha * distance**2 + 8 * alpha * distance - 4 * alpha
    return np.where(distance <= 1, near, far).astype(np.float32)


def _weights(coordinates: np.ndarray, source: int, call: relax.Call) -> np.ndarray:
    """The matrix [target, source] of one axis."""
    method = str(call.attrs.method).lower()
    base = np.floor(coordinates)
    fraction = (coordinates - base).astype(np.float32)
    if method == "nearest_neighbor":
        taps, weights = _nearest(coordinates, call)[None], np.ones((1, len(coordinates)), np.float32)
    elif method == "linear":
        taps, weights = np.stack([base, base + 1]), np.stack([1 - fraction, fraction])
    elif method == "cubic":
        taps, weights = base + np.arange(-1, 3)[:, None], _cubic_weights(fraction, float(call.attrs.cubic_alpha))
        if int(call.attrs.cubic_exclude):
            weights = np.where((taps < 0) | (taps > source - 1), np.float32(0), weights)
            weights = weights / weights.sum(axis=0)
    else:
        raise refuse(call, f"with method {method}")
    matrix = np.zeros((len(coordinates), source), np.float32)
    columns = np.clip(taps, 0, source - 1).astype(np.int64)
    np.add.at(matrix, (np.broadcast_to(np.arange(len(coordinates)), columns.shape), columns), weights)
    return matrix


def _resize(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    layout = {4: "NCHW", 5: "NCDHW"}[args[0].dim()]
    x = to_layout(args[0], call.attrs.layout, layout)
    dtype = x.dtype
    x, spatial = x.float(), x.dim() - 2
    roi = [float(v) for v in call.attrs.roi]
    outside = torch.zeros((), dtype=torch.bool)
    for axis, target in enumerate(args[1]):
        source = x.shape[axis + 2]
        coordinates = _coordinates(source, target, (roi[axis], roi[axis + spatial]), call)
        matrix = torch.from_numpy(_weights(coordinates, source, call))
        x = torch.matmul(x.movedim(axis + 2, -1), matrix.T).movedim(-1, axis + 2)
        beyond = torch.from_numpy((coordinates < 0) | (coordinates > source - 1))
        outside = outside | beyond.reshape([-1 if i == axis else 1 for i in range(spatial)])
    if str(call.attrs.coordinate_transformation_mode) == "tf_crop_and_resize":
        x = torch.where(outside, torch.tensor(float(call.attrs.extrapolation_value)), x)
    return to_layout(x.to(dtype), layout, call.attrs.layout)


def _grid_sample(args: Sequence[Any], call: relax.Call) -> torch.Tensor:
    """Relax keeps the grid as [N, 2, H, W], PyTorch as [N, H, W, 2]."""
    attrs = call.attrs
    layout = {4: "NCHW", 5: "NCDHW"}[args[0].dim()]
    methods = {"bilinear": "bilinear", "nearest": "nearest", "bicubic": "bicubic"}
    if str(attrs.method) not in methods or str(attrs.layout) != layout:
        raise refuse(call, f"with method {attrs.method} and layout {attrs.layout}")
    return functional.grid_sample(args[0], args[1].movedim(1, -1), methods[str(attrs.method)],
                                  str(attrs.padding_mode), bool(attrs.align_corners))


TABLE: dict[str, Semantics] = {
    "relax.image.resize2d": _resize,
    "relax.image.resize3d": _resize,
    "relax.image.grid_sample": _grid_sample,
}
