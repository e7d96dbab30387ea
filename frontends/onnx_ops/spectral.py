"""Fourier transforms of signals, as products with the matrices that define them, and matrices of mel filters.

A complex number is a pair of floats on the last axis, so that a transform is one product of [length · 2] with
[length · 2, frequencies · 2].
"""

from __future__ import annotations

import numpy as np
from onnx import helper
from tvm import relax

from ...ir import Expr
from .algebra import Algebra, check_table
from .node import OnnxNode, Results, operator

# Frequency in hertz of 0 mel's doubling, and the factor of the logarithm (O'Shaughnessy 1987).
_MEL_BREAK, _MEL_FACTOR = 700.0, 2595.0


@operator("DFT")
def discrete_fourier_transform(node: OnnxNode) -> Results:
    """Up to opset 19 the axis is an attribute, then an input."""
    shape, steps = node.dims(0), Algebra(node, "signal")
    given = int(node.attribute("axis", 1)) if node.opset < 20 else -2
    if node.has(2):
        given = _integer(node, 2, "an axis")
    axis = node.axis(given, len(shape))
    if len(shape) < 2 or axis == len(shape) - 1 or shape[-1] not in (1, 2):
        raise node.fault("the signal is not one of real or complex numbers along another axis", found=shape)
    (length,) = node.numbers([shape[axis]], "the axis that is transformed")
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    default = 2 * (length - 1) if inverse and onesided else length
    size = _integer(node, 1, "a length") if node.has(1) else default
    if size < 1:
        raise node.fault("the length is not positive", found=size)
    parts = int(shape[-1])
    matrix = _matrix(node, length, parts, size, inverse=inverse, onesided=onesided)
    last = [a for a in range(len(shape) - 1) if a != axis]
    order = [*last, axis, len(shape) - 1]
    rows = steps.reshape(steps.permuted(node.expr(0), order), [*(shape[a] for a in last), length * parts])
    real = inverse and onesided
    found = _transform(node, rows, matrix, 1 if real else 2)
    back = np.argsort(order).tolist()
    return found if back == list(range(len(back))) else node.emit(relax.op.permute_dims(found, back))


@operator("STFT")
def short_time_fourier_transform(node: OnnxNode) -> Results:
    """Frames are picked by a table, the window is part of the matrix where it is known."""
    shape, steps = node.dims(0), Algebra(node, "frames")
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or shape[-1] not in (1, 2):
        raise node.fault("the signal is not a batch of real or complex numbers", found=shape)
    (length,), parts = node.numbers([shape[1]], "the signal's length"), int(shape[-1])
    step = _integer(node, 1, "a step")
    size = _integer(node, 3, "a length of frames") if node.has(3) else \
        node.numbers(node.dims(2), "the window")[0] if node.has(2) else length
    if step < 1 or not 1 <= size <= length:
        raise node.fault("the frames do not fit the signal", found=f"step {step}, length {size}", expected=length)
    if node.has(2) and node.numbers(node.dims(2), "the window") != (size,):
        raise node.fault("the window does not fit the frames", found=node.dims(2), expected=(size,))
    count = 1 + (length - size) // step
    check_table(node, count, size)
    table = np.arange(count)[:, None] * step + np.arange(size)
    frames: Expr = node.emit(relax.op.take(steps.reshape(node.expr(0), shape), node.constant(table), 1, mode="clip"),
                             "frames")
    matrix = _matrix(node, size, parts, size, inverse=False, onesided=bool(node.attribute("onesided", 1)))
    if node.is_known(2):
        matrix = matrix * np.repeat(node.known(2, "a window").astype(np.float64), parts)[:, None]
    elif node.has(2):
        frames = steps.multiply(frames, steps.reshape(node.expr(2), [size, 1]))
    rows = steps.reshape(frames, [shape[0], count, size * parts])
    return _transform(node, rows, matrix, 2)


def _transform(node: OnnxNode, rows: Expr, matrix: np.ndarray, parts: int) -> relax.Var:
    steps = Algebra(node, "frequencies")
    product = node.emit(relax.op.matmul(rows, node.constant(matrix.astype(np.float32))))
    return steps.reshape(product, [*steps.shape(product)[:-1], matrix.shape[1] // parts, parts])


def _matrix(node: OnnxNode, length: int, parts: int, size: int, *, inverse: bool, onesided: bool) -> np.ndarray:
    """[length · parts, frequencies · 2] of a transform over ``size`` points, [length · parts, size] for one that goes
    back to real numbers. What ``length`` has beyond ``size`` is cut off, what it lacks is zero."""
    columns = size // 2 + 1 if onesided and not inverse else size
    check_table(node, length, parts, columns, 2)
    places = np.arange(length)[:, None] * np.arange(columns)
    angle = 2 * np.pi / size * np.remainder(places, size)
    cos, sin = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    if inverse and onesided:
        half = size // 2 + 1
        weight = np.where(np.arange(length) < half, 2.0, 0.0)
        weight[0] = 1.0
        if size % 2 == 0 and length >= half:
            weight[half - 1] = 1.0
        real = np.stack([cos, -sin], axis=1) * weight[:, None, None] / size
        return real[:, :parts].reshape(length * parts, columns)
    # Rows are (place, part), columns (frequency, part): (a + bi)(cos + sin i).
    full = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], axis=1)[:, :parts]
    full[size:] = 0.0
    return full.reshape(length * parts, columns * 2) / (size if inverse else 1)


def _integer(node: OnnxNode, index: int, what: str) -> int:
    value = node.known(index, what)
    if value.size != 1:
        raise node.fault(f"{what} is not one number", found=value.shape)
    return int(value.reshape(()))


@operator("MelWeightMatrix")
def mel_weight_matrix(node: OnnxNode) -> Results:
    """Triangular filters whose centres are evenly spaced on the mel scale: [frequencies, filters]."""
    bins, size, rate = (_integer(node, i, w) for i, w in enumerate(("a number of bins", "a length", "a rate")))
    low, high = (float(node.known(i, "an edge").reshape(())) for i in (3, 4))
    if bins < 1 or size < 1 or rate < 1 or not 0 <= low < high:
        raise node.fault("the filters are unusable", found=(bins, size, rate, low, high))
    check_table(node, bins + 2, size)
    mel_low, mel_high = (_MEL_FACTOR * np.log10(1 + f / _MEL_BREAK) for f in (low, high))
    mels = mel_low + np.arange(bins + 2) * (mel_high - mel_low) / (bins + 2)
    edges = np.floor((size + 1) * _MEL_BREAK * (10 ** (mels / _MEL_FACTOR) - 1) / rate)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    places = np.arange(size // 2 + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = (places - left) / (centre - left)
        falling = (right - places) / (right - centre)
    result = np.where((places >= left) & (places <= centre), rising, 0.0)
    result = np.where((places == centre) & (left == centre), 1.0, result)
    result = np.where((places >= centre) & (places < right), falling, result)
    dtype = helper.tensor_dtype_to_np_dtype(int(node.attribute("output_datatype", 1)))
    return result.astype(dtype)
