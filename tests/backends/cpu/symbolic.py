"""Kernels with symbolic extents: compiled once, run at several extents, compared with the reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import tvm
from tvm import relax, tirx

from narrowcast import ir
from narrowcast.backends.cpu.build import compile_functions, empty_outputs
from narrowcast.backends.cpu.emit import emit
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Capabilities, Target
from narrowcast.calibration.agreement import group_agreement
from narrowcast.calibration.numerics import GroupProgram, Stored
from narrowcast.dims import Dim, evaluate_dim, symbols_in
from narrowcast.precision import BFLOAT16, FLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE

OUTPUTS = (FLOAT32, Storage("uint8", QParams(0.1, 100)), BFLOAT16)
OPERAND = {Precision.FP32: FLOAT32, Precision.BF16: BFLOAT16, Precision.FP16: FLOAT16,
           Precision.INT8: Storage("uint8", QParams(0.03, 120))}


def symbol(name: str) -> tirx.Var:
    """The extent of a user's dim."""
    return tirx.Var(name, "int64")


def symbolic_group(kind: str, shapes: Sequence[tuple[Dim, ...]],
                   body: Callable[[ir.GraphBuilder, list[relax.Var]], relax.Var]) -> ir.Group:
    """A group over float32 parameters whose shapes hold symbols; ``body`` emits its ops, the anchor as "layer"."""
    params = [relax.Var(f"in{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    symbols = list(dict.fromkeys(s for shape in shapes for d in shape for s in symbols_in(d)))
    builder = ir.GraphBuilder([*params, relax.Var("symbols", relax.ShapeType(symbols))])
    function = builder.finish([body(builder, params)], attrs={"Primitive": True, "group": kind})
    return ir.Group(name="layer", kind=kind, function=function, inputs=tuple(p.name for p in params))


class SymbolicKernel:
    """The compiled kernel of a group, made for the extents ``typical``.

    exact : how many of the first parameters the anchor multiplies; the others are float32.
    core : what the kernel is made for, if it is not the target that it is compiled for.
    """

    def __init__(self, group: ir.Group, precision: Precision, typical: Mapping[str, int], exact: int = 1,
                 core: Capabilities | None = None, target: Target = NATIVE) -> None:
        storages = tuple(OPERAND[precision] if i < exact else FLOAT32 for i in range(len(group.parameters)))
        self.request = KernelRequest(group, precision, storages, OUTPUTS, typical=tuple(typical.items()))
        self.kernel = emit(self.request, core or target.capabilities, 2)
        self.module = compile_functions({"kernel": self.kernel.func}, target.tvm_target())

    def check(self, extents: Mapping[str, int], seed: int = 0) -> None:
        """Run at these extents on random data; assert that every output is what the evaluator computes."""
        rng, request = np.random.default_rng(seed), self.request
        inputs = []
        for parameter, storage in zip(request.group.parameters, request.inputs, strict=True):
            shape = [evaluate_dim(d, extents) for d in ir.dims_of(parameter)]
            inputs.append(Stored.of(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)), storage))
        outputs = self._call([_memory(s.data) for s in inputs], extents)
        agreement = group_agreement(GroupProgram(request.group).at(extents), request.precision, inputs, outputs)
        assert agreement.ok, f"{agreement.detail} at {dict(extents)}"

    def _call(self, inputs: Sequence[np.ndarray], extents: Mapping[str, int]) -> list[Stored]:
        outputs = empty_outputs(self.request, extents)
        tensors = [tvm.runtime.tensor(a) for a in (*inputs, *self.kernel.constants)]
        self.module["kernel"](*tensors, *(extents[s.name] for s in self.kernel.symbols), *outputs)
        return [Stored(_tensor(o.numpy(), s), s) for o, s in zip(outputs, self.request.outputs, strict=True)]


def _memory(data: torch.Tensor) -> np.ndarray:
    return (data.view(torch.uint16) if data.dtype is torch.bfloat16 else data).numpy()


def _tensor(array: np.ndarray, storage: Storage) -> torch.Tensor:
    data = torch.from_numpy(array)
    return data.view(torch.bfloat16) if storage.dtype == "bfloat16" else data
