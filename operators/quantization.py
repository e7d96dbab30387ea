"""Integer grids: what ``narrowcast.fake_quantize`` rounds to, and the INT8 levels of constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..ir import op_name, same_dims, variables_of
from ..precision import QParams

FAKE_QUANTIZE = "narrowcast.fake_quantize"

# The longest sum of products u8 · s8 that fits 32 bits.
LONGEST_INT8_SUM = (2**31 - 1) // (255 * 128)

# A recurrent layer's state in INT8, quantized anew at every step: ``round(state · 127 / absmax)``, stored with this
# zero point; ``absmax`` counts as at least so much.
STATE_LEVELS, STATE_ZERO_POINT = 127, 128
LEAST_STATE = 1e-30

# An attention's probabilities in INT8: ``round(PROBABILITY_LEVELS · exp(score - highest score))``, divided by their
# sum.
PROBABILITY_LEVELS = 255

# The level that the largest weight of a channel has, in the order of preference.
_LARGEST = (127, 128, *range(126, 0, -1))
# How far a weight may be from a level, in levels: float32's rounding of weights and scales, at most 2**-15, twice.
_ROUNDING = 2.0**-14
# How far a bias may be from a multiple of the accumulator's unit, in units, and how large it may be.
_UNIT_ROUNDING, _LARGEST_BIAS = 1e-3, 2**20
# Channels that are looked at together.
_ROWS = 256
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


def rounding_behind(bindings: Sequence[relax.VarBinding], done: int) -> Grid | None:
    """The grid that the value of the first ``done`` bindings of a group is rounded to, where the next binding does that
    and nothing else reads the value."""
    if len(bindings) <= done:
        return None
    value, rounding = bindings[done - 1].var, bindings[done]
    grid = grid_of(rounding.value)
    readers = [b for b in bindings if any(v.same_as(value) for v in variables_of(b.value))]
    return grid if grid is not None and len(readers) == 1 and readers[0].var.same_as(rounding.var) else None


def summands(bindings: Sequence[relax.VarBinding], rounding: relax.VarBinding) -> tuple[relax.Var, ...]:
    """The two variables of one shape whose sum ``rounding`` rounds to a grid, where nothing else of the group's
    ``bindings`` reads the sum; else none."""
    if grid_of(rounding.value) is None:
        return ()
    total = rounding.value.args[0]
    found = next((b for b in bindings if b.var.same_as(total)), None)
    readers = [b for b in bindings if any(v.same_as(total) for v in variables_of(b.value))]
    if found is None or op_name(found.value) != "relax.add" or len(readers) != 1:
        return ()
    operands = tuple(found.value.args)
    plain = all(isinstance(v, relax.Var) and same_dims(v, total) for v in operands)
    return operands if plain else ()


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


def quantize_matrices(weights: np.ndarray, *, per_channel: bool) -> tuple[np.ndarray, np.ndarray]:
    """``quantize_weights`` of every matrix of [matrices, rows, depth], whose rows are the channels: int8 of the same
    shape, and float32 scales [matrices, rows]."""
    found = [quantize_weights(matrix, 0, per_channel=per_channel) for matrix in weights]
    levels, scales = (np.stack(arrays) for arrays in zip(*found, strict=True))
    return levels, scales


def weight_scales(rows: np.ndarray) -> np.ndarray | None:
    """The float32 scales on whose multiples, -128…127 times, the elements of every row lie to float32's rounding.

    rows : float32 [channels, weights of a channel]. The largest weight of a channel is 127 times its scale if that
    fits, else -128, 126, 125 … times. None where any row lies on no such grid; a row of zeros has scale 1.
    """
    absmax = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    scales = np.ones(len(rows), np.float64)
    used = np.flatnonzero(absmax)
    if len(used) and _scale(rows[used[0]], absmax[used[0]]) is None:
        return None
    for begin in range(0, len(used), _ROWS):
        chunk = used[begin:begin + _ROWS]
        scales[chunk], plain = _full_scales(rows[chunk], absmax[chunk])
        for i in chunk[~plain]:
            found = _scale(rows[i], absmax[i])
            if found is None:
                return None
            scales[i] = found
    return scales.astype(np.float32)


def _full_scales(rows: np.ndarray, absmax: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scales of rows whose largest level is 127, and which rows these are: what most quantizers make."""
    ratios = rows.astype(np.float64) / absmax[:, None]
    levels = np.rint(ratios * 127)
    plain = np.abs(ratios * 127 - levels).max(axis=1) <= _ROUNDING
    fitted = (absmax * np.einsum("ij,ij->i", ratios, levels) / np.square(levels).sum(axis=1)).astype(np.float32)
    candidates = np.stack([fitted, np.nextafter(fitted, np.float32(0)), np.nextafter(fitted, np.float32(np.inf))])
    exact = np.stack([(levels.astype(np.float32) * c[:, None] == rows).all(axis=1) for c in candidates])
    return candidates[exact.argmax(axis=0), np.arange(len(rows))], plain


def _scale(row: np.ndarray, largest: float) -> float | None:
    """The scale of one channel, fitted to all its weights by least squares."""
    ratios = row.astype(np.float64) / largest
    probes = ratios[:: max(len(ratios) // _PROBES, 1)]
    steps = np.asarray(_LARGEST, np.float64)[:, None] * probes
    for index in np.flatnonzero((np.abs(steps - np.rint(steps)) <= _ROUNDING).all(axis=1)):
        exact = ratios * _LARGEST[index]
        levels = np.rint(exact)
        if levels.max() <= 127 and np.abs(exact - levels).max() <= _ROUNDING:
            return _exact(row, levels, largest * (ratios @ levels) / (levels @ levels))
    return None


def _exact(row: np.ndarray, levels: np.ndarray, fitted: float) -> float:
    """The float32 scale next to the fitted one that gives exactly these weights, where there is one."""
    scale = np.float32(fitted)
    down, up = (np.nextafter(scale, np.float32(end)) for end in (0.0, np.inf))
    exact = (s for s in (scale, down, up) if np.array_equal(levels.astype(np.float32) * s, row))
    return float(next(exact, scale))


def scale_and_offset(levels: np.ndarray, scales: np.ndarray, data: QParams, bias: np.ndarray | None,
                     correction: Sequence[float] = (), grid: Grid | None = None) -> tuple[np.ndarray, np.ndarray]:
    """What turns s32 accumulators into float32 results, or into steps of ``grid`` where they are rounded to it at once.

    levels : int8 [..., channels] and their float32 ``scales`` [channels]; data : what they were multiplied with.
    bias : float32 [channels] that is added first; correction : [channels] that is added as well, or nothing.

    Returns the scale, float32 [channels], and the offset [channels]: int32 to be added before the accumulator is
    scaled, or float32 to be added afterwards. Floats are computed in float64 and rounded once. Integers are for a grid
    and a bias that is a multiple of the accumulator's unit, as quantized models have it; the scale is then the
    quotient that ONNX Runtime's integer kernels multiply by, computed in float32 like theirs, and the steps are theirs.
    """
    sums = levels.reshape(-1, levels.shape[-1]).astype(np.int64).sum(axis=0)
    unit = np.float64(data.scale) * scales.astype(np.float64)
    if grid is not None and not len(correction):
        whole = np.zeros(len(sums)) if bias is None else np.rint(bias / unit)
        lacking = np.zeros(len(sums)) if bias is None else np.abs(bias / unit - whole)
        if np.all(lacking <= _UNIT_ROUNDING + np.abs(whole) * 2.0**-22) and np.all(np.abs(whole) < _LARGEST_BIAS):
            factor = np.float32(data.scale) * scales / np.float32(grid.scale)
            return factor.astype(np.float32), (whole - data.zero_point * sums).astype(np.int32)
    offset = -unit * data.zero_point * sums
    if bias is not None:
        offset = offset + bias.astype(np.float64)
    if len(correction):
        offset = offset + np.asarray(correction, np.float64)
    step = 1.0 if grid is None else np.float64(grid.scale)
    return (unit / step).astype(np.float32), (offset / step).astype(np.float32)


def sum_factors(a: QParams, b: QParams, grid: Grid) -> tuple[float, float, float]:
    """``(r, s, f)`` such that two tensors with levels a, b add up to ``r · a + (s · b + f)`` in levels of the grid's
    storage: two fused multiply-adds in float32, computed like ONNX Runtime's (QLinearAdd), so that ties fall alike."""
    scale = np.float32(grid.scale)
    first, second = np.float32(a.scale) / scale, np.float32(b.scale) / scale
    zero = np.float32(np.float64(first) * a.zero_point + np.float64(second * np.float32(b.zero_point)))
    return float(first), float(second), float(np.float32(grid.zero_point - grid.low) - zero)
