"""Weights as kernels read them: rounded and laid out by NumPy when a kernel is built."""

from __future__ import annotations

import numpy as np

from ...precision import Precision
from .isa import Arithmetic
from .tiling import Columns


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """float32 rounded to nearest even bfloat16, as uint16; NaN stays NaN."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)


def pack_weights(weights: np.ndarray, columns: Columns, arithmetic: Arithmetic) -> np.ndarray:
    """Lay weights out in the order in which the micro-kernel reads them.

    weights : [groups, taps, depth, columns], converted to the arithmetic's weight type. Returns a flat array: per group
    and column block [taps · steps][vectors][parts][lanes][depth / parts], where depth is padded with zeros to whole
    steps and columns to whole vectors.
    """
    groups, taps, depth, count = weights.shape
    steps = -(-depth // arithmetic.depth)
    vectors = -(-count // arithmetic.lanes)
    padded = np.zeros((groups, taps, steps * arithmetic.depth, vectors * arithmetic.lanes), arithmetic.weight)
    padded[:, :, :depth, :count] = weights
    within, parts = arithmetic.depth // arithmetic.parts, arithmetic.parts
    split = padded.reshape(groups, taps * steps, within, parts, vectors, arithmetic.lanes)
    ordered = split.transpose(0, 4, 1, 3, 5, 2)  # group, vector, step, part, lane, depth
    blocks = []
    for group in ordered:
        for first in range(0, vectors, columns.vectors):
            blocks.append(group[first:first + columns.vectors].swapaxes(0, 1).ravel())
    return np.concatenate(blocks)


def pad_columns(values: np.ndarray, groups: int, lanes: int) -> np.ndarray:
    """Per-channel float32 values with every group's channels padded to whole vectors."""
    grouped = values.reshape(groups, -1)
    width = -(-grouped.shape[1] // lanes) * lanes
    padded = np.zeros((groups, width), np.float32)
    padded[:, :grouped.shape[1]] = grouped
    return padded.ravel()


def as_operand(weights: np.ndarray, precision: Precision) -> np.ndarray:
    """Floating point weights as the multiply-add reads them."""
    if precision is Precision.BF16:
        return to_bfloat16(weights)
    return np.asarray(weights, dtype=np.float16 if precision is Precision.FP16 else np.float32)
