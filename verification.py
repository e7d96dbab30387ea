"""Emitted kernels against the reference evaluator, group by group: each kernel gets exactly the inputs that the
evaluator stored, so that differences do not add up and a wrong kernel is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import tvm

from .backends.cpu.build import compile_functions
from .backends.cpu.emit import emit
from .backends.cpu.kernel import Kernel, KernelRequest, output_buffers
from .backends.lower import requests_for
from .backends.target import Target
from .backends.tile_permission import request_tiles_for
from .calibration.agreement import Agreement, group_agreement
from .calibration.evaluator import Evaluator
from .calibration.numerics import GroupProgram, Stored
from .dims import evaluate_dim
from .precision import PrecisionPlan, Storage


def kernel_agreement(
    mod: tvm.IRModule, plan: PrecisionPlan, target: Target, inputs: Sequence[np.ndarray]
) -> list[Agreement]:
    """How every kernel of a plan agrees with the evaluator on one sample.

    mod : the module in grouped form that the plan belongs to.
    inputs : one array per model input.
    """
    evaluator = Evaluator(mod)
    evaluation = evaluator.evaluate(inputs, plan)
    extents = evaluation.extents
    requests = requests_for(mod, plan, extents)
    kernels = [emit(r, target.capabilities, target.threads) for r in requests]
    names = [f"kernel{i}" for i in range(len(kernels))]
    request_tiles_for(target)
    module = compile_functions({n: k.func for n, k in zip(names, kernels, strict=True)}, target.tvm_target())
    found = []
    for name, request, kernel in zip(names, requests, kernels, strict=True):
        read = [
            Stored(evaluation.materialised[n, s.dtype], s)
            for n, s in zip(request.group.inputs, request.inputs, strict=True)
        ]
        written = _run(module[name], request, kernel, read, extents)
        found.append(
            group_agreement(
                GroupProgram(request.group).at(extents),
                request.precision,
                read,
                written,
                per_channel=request.per_channel,
                correction=request.correction,
            )
        )
    return found


def _run(
    function: tvm.runtime.Module,
    request: KernelRequest,
    kernel: Kernel,
    inputs: Sequence[Stored],
    extents: Mapping[str, int],
) -> list[Stored]:
    """The kernel's outputs on stored inputs."""
    arrays = [*(_memory(s) for s in inputs), *kernel.constants]
    outputs = [
        tvm.runtime.empty([evaluate_dim(d, extents) for d in shape], dtype) for shape, dtype in output_buffers(request)
    ]
    function(*(tvm.runtime.tensor(a) for a in arrays), *(extents[s.name] for s in kernel.symbols), *outputs)
    return [_from_memory(o.numpy(), s) for o, s in zip(outputs, request.outputs, strict=True)]


def _memory(stored: Stored) -> np.ndarray:
    data = stored.data.contiguous()
    return (data.view(torch.uint16) if data.dtype is torch.bfloat16 else data).numpy()


def _from_memory(array: np.ndarray, storage: Storage) -> Stored:
    data = torch.from_numpy(array)
    return Stored(data.view(torch.bfloat16) if storage.dtype == "bfloat16" else data, storage)
