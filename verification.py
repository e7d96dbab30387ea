"""Emitted kernels against the reference evaluator, group by group: each kernel gets exactly the inputs that the
evaluator stored, so that differences do not add up and a wrong kernel is named. Of a kernel that computes two groups
the second's result is judged by what the first's own kernel gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import tvm

from .backends.cpu.build import compile_functions
from .backends.cpu.emit import emit
from .backends.cpu.expansion import on_vectors
from .backends.cpu.kernel import ChainRequest, Kernel, KernelRequest, output_buffers
from .backends.lower import launches_for
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
    evaluation = Evaluator(mod).evaluate(inputs, plan)
    extents = evaluation.extents
    launches = launches_for(mod, plan, target.capabilities, target.threads, extents)
    checks = [check for launch in launches for check in _checks(launch, target)]
    names = [f"kernel{i}" for i in range(len(checks))]
    request_tiles_for(target)
    module = compile_functions({n: c.kernel.func for n, c in zip(names, checks, strict=True)}, target.tvm_target())
    found: list[Agreement] = []
    written: list[Stored] = []
    for name, check in zip(names, checks, strict=True):
        read, given = ([Stored(evaluation.materialised[n, s.dtype], s) for n, s in reads]
                       for reads in (check.reads, check.request.reads))
        if check.link is not None:
            (given[check.link],) = written
        request = check.request
        written = _run(module[name], request, check.kernel, read, extents)
        found.append(
            group_agreement(
                GroupProgram(request.group).at(extents),
                request.precision,
                given,
                written,
                per_channel=request.per_channel,
                correction=request.correction,
            )
        )
    return found


@dataclass(frozen=True)
class _Check:
    """A kernel and what it is judged by.

    request : of the group whose result it writes.
    reads : name and storage of what it takes.
    link : which of the group's inputs is what the check before wrote; None: none.
    """

    request: KernelRequest
    reads: tuple[tuple[str, Storage], ...]
    kernel: Kernel
    link: int | None = None


def _checks(launch: KernelRequest | ChainRequest, target: Target) -> list[_Check]:
    """Those of a launch; of a chain the first's own kernel comes before."""
    kernel = emit(launch, target.capabilities, target.threads)
    if isinstance(launch, KernelRequest):
        return [_Check(launch, launch.reads, kernel)]
    first = replace(launch.first, schedule=0)
    alone = emit(first, on_vectors(target.capabilities), target.threads)
    return [_Check(first, first.reads, alone), _Check(launch.second, launch.reads, kernel, launch.link)]


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
