"""Integer grids: what ``narrowcast.fake_quantize`` rounds to, and the INT8 levels of constant weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..ir import op_name
from ..precision import QParams

FAKE_QUANTIZE = "narrowcast.fake_quantize"

# The longest sum of products u8 · s8 that fits 32 bits.
LONGEST_INT8_SUM = (2**31 - 1) // (255 * 128)

# The level that the largest weight of a channel has, in the order of preference.
_LARGEST = (127, 128, *range(126, 0, -1))
# How far a weight may be from a level, in levels: float32's rounding of weights and scales, at most 2**-15, twice.
_ROUNDING = 2.0**-14
# Weights of a channel that decide which grids are looked at closely.
_PROBES = 32


@dataclass(frozen=True)
class Grid:
    """The values ``scale * (q - zero_point)`` for the integers ``q`` in low…high; ``zero_point`` is one of these."""

    scale: float
    zero_point: int
    low: int
    high: int

    @classmethod
    def of(cls, call: relax.Call) -> Grid:
        """The grid of a call of ``fake_quantize``."""
        a = call.attrs
        return cls(float(a.scale), int(a.zero_point), int(a.low), int(a.high))

    @property
    def qparams(self) -> QParams | None:
        """The u8 parameters that hold all values of the grid exactly; None where it has more than 256."""
        return QParams(self.scale, self.zero_point - self.low) if self.high - self.low <= 255 else None

    @property
    def fills_storage(self) -> bool:
        """Whether storing values with ``qparams`` is the rounding itself: the grid has all 256 levels."""
        return self.high - self.low == 255

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        return (self.low - self.zero_point) * self.scale, (self.high - self.zero_point) * self.scale


def grid_of(expr: tvm.ir.Expr) -> Grid | None:
    """The grid of a call of ``fake_quantize``; None for anything else."""
    return Grid.of(expr) if op_name(expr) == FAKE_QUANTIZE else None


def weight_channel_axis(call: relax.Call) -> int:
    """The axis of the output channels of the constant weight of a convolution or a matmul."""
    return -1 if op_name(call) == "relax.matmul" else str(call.attrs.kernel_layout).index("O")


def quantize_weights(weights: np.ndarray, channel_axis: int = -1, *,
                     per_channel: bool) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric INT8 weights and their scales.

    weights : float32. Returns int8 of the same shape and float32 scales [channels], equal ones unless ``per_channel``.
    Where the weights lie on grids already (``weight_scales``), the levels are exact. Otherwise a scale is
    ``absmax / 127`` of its channel (of the tensor unless ``per_channel``), 1 where everything is zero.
    """
    channels = weights.shape[channel_axis]
    by_channel = np.moveaxis(weights, channel_axis, 0)
    rows = by_channel.reshape(channels if per_channel else 1, -1)
    scales = weight_scales(rows)
    if scales is None:
        absmax = np.abs(rows).max(axis=1, initial=0.0).astype(np.float32)
        scales = np.where(absmax > 0, absmax / np.float32(127), np.float32(1)).astype(np.float32)
        low = -127
    else:
        low = -128
    along = scales.reshape(-1, *(1,) * (weights.ndim - 1))
    levels = np.clip(np.rint(by_channel / along), low, 127).astype(np.int8)
    return np.moveaxis(levels, 0, channel_axis), np.broadcast_to(scales, (channels,)).copy()


def weight_scales(rows: np.ndarray) -> np.ndarray | None:
    """The float32 scales on whose multiples, -128…127 times, the elements of every row lie to float32's rounding.

    rows : float32 [channels, weights of a channel]. The largest weight of a channel is 127 times its scale if that
    fits, else -128, 126, 125 … times. None where any row lies on no such grid; a row of zeros has scale 1.
    """
    absmax = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    scales = np.ones(len(rows), np.float64)
    for i, (row, largest) in enumerate(zip(rows, absmax, strict=True)):
        if largest > 0:
            found = _scale(row, largest)
            if found is None:
                return None
            scales[i] = found
    return scales.astype(np.float32)


def _scale(row: np.ndarray, largest: float) -> float | None:
    """The scale of one channel, fitted to all its weights by least squares."""
    ratios = row.astype(np.float64) / largest
    probes = ratios[:: max(len(ratios) // _PROBES, 1)]
    steps = np.asarray(_LARGEST, np.float64)[:, None] * probes
    for index in np.flatnonzero((np.abs(steps - np.rint(steps)) <= _ROUNDING).all(axis=1)):
        exact = ratios * _LARGEST[index]
        levels = np.rint(exact)
        if levels.max() <= 127 and np.abs(exact - levels).max() <= _ROUNDING:
            return float(largest * (ratios @ levels) / (levels @ levels))
    return None
