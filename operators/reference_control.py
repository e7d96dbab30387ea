"""Reference semantics of loops and branches that only running tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import tvm
from tvm import relax

from ..dims import Dim, evaluate_dim, symbols_in
from ..ir import op_name
from .control import LOOP, Body, CheckedBody, bodies_of, counts_of, run_branch, run_loop, shapes_of
from .semantics import torch_dtype

Run = Callable[[tvm.IRModule, Sequence[torch.Tensor]], list[torch.Tensor]]


class TorchTensors:
    """What PyTorch's tensors can (``control.Tensors``)."""

    def number(self, value: int) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.int64)

    def extent(self, value: int) -> torch.Tensor:
        return torch.empty((value, 0), dtype=torch.bool)

    def item(self, tensor: torch.Tensor) -> int:
        return int(tensor)

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def stack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(list(tensors))

    def empty(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        return torch.empty(list(shape), dtype=torch_dtype(dtype))


def evaluate(call: relax.Call, operands: Sequence[torch.Tensor], run: Run, layer: str,
             extents: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
    """The results of a loop or a branch; ``run`` computes what a module does."""
    def checked(body: Body) -> CheckedBody[torch.Tensor]:
        return CheckedBody(partial(run, body.mod), body.requirements, body.places(body.requirements), layer,
                           TorchTensors())

    bodies, counts = [checked(b) for b in bodies_of(call)], counts_of(call)
    if op_name(call) != LOOP:
        return tuple(run_branch(bodies, counts, operands))
    shapes = [tuple(0 if _is_open(d, extents) else evaluate_dim(d, extents) for d in s) for s in shapes_of(call)]
    dtypes = [str(t.dtype) for t in call.ty.fields]
    return tuple(run_loop(bodies, counts, operands, list(zip(shapes, dtypes, strict=True))[counts[0]:]))


def _is_open(dim: Dim, extents: Mapping[str, int]) -> bool:
    return any(s.name not in extents for s in symbols_in(dim))
