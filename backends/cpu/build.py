"""Kernels to machine code outside of a whole program: for measuring costs and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm

from ...dims import evaluate_dim, match_dims
from . import pipeline
from .kernel import ChainRequest, Kernel, KernelRequest, output_buffers


def compile_functions(functions: Mapping[str, tvm.tirx.PrimFunc], target: tvm.target.Target) -> tvm.runtime.Module:
    """Machine code of several kernels; each is called by its key. They need no root block."""
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    return tvm.tirx.build(tvm.IRModule(named), target=target, pipeline=pipeline.NAME)


def empty_outputs(request: KernelRequest, extents: Mapping[str, int] | None = None) -> list[tvm.runtime.Tensor]:
    """Uninitialized tensors for a kernel's outputs, in order; ``extents`` are those of the symbols, by name."""
    return [tvm.runtime.empty([evaluate_dim(d, extents or {}) for d in shape], dtype)
            for shape, dtype in output_buffers(request)]


def run_kernel(request: KernelRequest, kernel: Kernel, inputs: Sequence[np.ndarray],
               target: tvm.target.Target) -> list[np.ndarray]:
    """Compile one kernel, call it once and return its outputs as they are stored (bfloat16 as uint16 bits).

    ``inputs`` are in their storage already (``arrays.encode_array``).
    """
    module = compile_functions({"kernel": kernel.func}, target)
    return call_kernel(module["kernel"], request, kernel, inputs)


def call_kernel(function: tvm.runtime.Module, request: KernelRequest | ChainRequest, kernel: Kernel,
                inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """``run_kernel`` for a kernel that is compiled already; the inputs' shapes give the symbols their extents."""
    extents: dict[str, int] = {}
    for (shape, _), array in zip(request.input_buffers, inputs, strict=True):
        match_dims(shape, array.shape, extents)
    request = request.result
    outputs = empty_outputs(request, extents)
    symbols = [extents[s.name] for s in kernel.symbols]
    function(*(tvm.runtime.tensor(a) for a in (*inputs, *kernel.constants)), *symbols, *outputs)
    return [output.numpy() for output in outputs]
