"""NumPy arrays in the storages of tensors: what a kernel reads and writes, outside of kernels."""

from __future__ import annotations

import numpy as np

from ...precision import Storage


def encode_array(array: np.ndarray, storage: Storage) -> np.ndarray:
    """A float32 array as the storage holds it: float16, and bfloat16 as uint16 bits, rounded to nearest even; uint8
    quantized.

    Arrays of other element types are returned as they are.
    """
    if storage.dtype == "float16":
        with np.errstate(over="ignore"):
            return np.asarray(array, np.float16, order="C")
    if storage.dtype == "bfloat16":
        bits = np.asarray(array, np.float32, order="C").view(np.uint32)
        rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)
    if storage.qparams is not None:
        scaled = np.rint(np.asarray(array, np.float32) * np.float32(storage.qparams.inverse_scale))
        return np.clip(scaled + np.float32(storage.qparams.zero_point), 0, 255).astype(np.uint8)
    return np.asarray(array, order="C")


def decode_array(array: np.ndarray, storage: Storage) -> np.ndarray:
    """The float32 values of an array in the storage; arrays of other element types are returned as they are."""
    if storage.dtype == "float16":
        return array.astype(np.float32)
    if storage.dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if storage.qparams is not None:
        centred = array.astype(np.int32) - storage.qparams.zero_point
        return centred.astype(np.float32) * np.float32(storage.qparams.scale)
    return array
