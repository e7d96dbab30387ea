"""Kernels to machine code outside of a whole program: for measuring costs and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm

from . import pipeline
from .kernel import Kernel, KernelRequest, output_buffers


def compile_functions(functions: Mapping[str, tvm.tirx.PrimFunc], target: tvm.target.Target) -> tvm.runtime.Module:
    """Machine code of several kernels; each is called by its key. They need no root block."""
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    return tvm.tirx.build(tvm.IRModule(named), target=target, pipeline=pipeline.NAME)


def empty_outputs(request: KernelRequest) -> list[tvm.runtime.Tensor]:
    """Uninitialized tensors for a kernel's outputs, in order."""
    return [tvm.runtime.empty(shape, dtype) for shape, dtype in output_buffers(request)]


def run_kernel(request: KernelRequest, kernel: Kernel, inputs: Sequence[np.ndarray],
               target: tvm.target.Target) -> list[np.ndarray]:
    """Compile one kernel, call it once and return its outputs as they are stored (bfloat16 as uint16 bits).

    ``inputs`` are in their storage already (``arrays.encode_array``).
    """
    module = compile_functions({"kernel": kernel.func}, target)
    outputs = empty_outputs(request)
    module["kernel"](*(tvm.runtime.tensor(a) for a in (*inputs, *kernel.constants)), *outputs)
    return [output.numpy() for output in outputs]
