"""Fusion groups for kernel tests: built op by op, run through a kernel, computed in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.arrays import decode_array, encode_array
from narrowcast.backends.cpu.build import run_kernel
from narrowcast.backends.cpu.kernel import Kernel, KernelRequest
from narrowcast.backends.target import Capabilities, Target
from narrowcast.operators.quantization import quantize_weights
from narrowcast.precision import FP16_BLOCK, Precision, QParams, Storage

NATIVE = Target.parse("cpu", threads=2)
Build = Callable[[KernelRequest, Capabilities, int], Kernel]


def group_of(kind: str, shapes: Sequence[tuple[int, ...]],
             body: Callable[[ir.GraphBuilder, list[relax.Var]], relax.Var], name: str = "layer") -> ir.Group:
    """A group over float32 parameters of the given shapes; ``body`` emits its ops, the anchor under ``name``."""
    params = [relax.Var(f"in{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    builder = ir.GraphBuilder(params)
    function = builder.finish([body(builder, params)], attrs={"Primitive": True, "group": kind})
    return ir.Group(name=name, kind=kind, function=function, inputs=tuple(p.name for p in params))


def storage_for(precision: Precision, array: np.ndarray) -> Storage:
    """The storage that an op of this precision reads, fitted to the data."""
    if precision is Precision.INT8:
        return Storage("uint8", QParams.from_range(float(array.min()), float(array.max())))
    return Storage(precision.storage_dtype)


def stored(array: np.ndarray, storage: Storage) -> np.ndarray:
    """The values that remain of an array in a storage."""
    return decode_array(encode_array(array, storage), storage)


def held_weights(weights: np.ndarray, precision: Precision, *, per_channel: bool = True) -> np.ndarray:
    """The values, float64, that remain of constant weights (output channels last) in a precision."""
    if precision is Precision.INT8:
        quantized, scales = quantize_weights(weights, per_channel=per_channel)
        return quantized * scales.astype(np.float64)
    return stored(weights, Storage(precision.storage_dtype)).astype(np.float64)


def execute(build: Build, request: KernelRequest, inputs: Sequence[np.ndarray], target: Target = NATIVE,
            threads: int = 2) -> list[np.ndarray]:
    """Build, compile and run a kernel on float32 arrays; the outputs as float32."""
    kernel = build(request, target.capabilities, threads)
    encoded = [encode_array(a, s) for a, s in zip(inputs, request.inputs, strict=True)]
    results = run_kernel(request, kernel, encoded, target.tvm_target())
    return [decode_array(r, s) for r, s in zip(results, request.outputs, strict=True)]


def assert_close(actual: np.ndarray, expected: np.ndarray, magnitude: np.ndarray, storage: Storage, terms: int,
                 precision: Precision = Precision.FP32) -> None:
    """Equal to the rounding of a float32 sum of ``terms`` products, in FP16 of blocks in float16, and of the storage.

    magnitude : the sum of the products' absolute values, which bounds the error of any order of summation.
    """
    bound = np.finfo(np.float32).eps * (terms + 4) * magnitude + 1e-30
    if precision is Precision.FP16:  # Every addition rounds the block's sum, below 2^-14 to multiples of 2^-24.
        roundings = min(terms, FP16_BLOCK)
        bound = bound + magnitude * (roundings * 2.0**-11 / (1 - roundings * 2.0**-11)) + terms * 2.0**-25
    if storage.dtype == "bfloat16":
        bound = bound + np.abs(expected) * 2.0**-8
    if storage.qparams is not None:
        low, high = -storage.qparams.zero_point, 255 - storage.qparams.zero_point
        expected = np.clip(expected, low * storage.qparams.scale, high * storage.qparams.scale)
        bound = bound + 0.501 * storage.qparams.scale
    worst = np.max(np.abs(actual - expected) - bound)
    assert worst <= 0, f"off by {worst} beyond the bound; largest error {np.max(np.abs(actual - expected))}"

