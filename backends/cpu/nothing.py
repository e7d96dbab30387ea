"""Groups whose results have no elements."""

from __future__ import annotations

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .kernel import Kernel, KernelRequest, declare_parameters, output_shapes


def computes_nothing(request: KernelRequest) -> bool:
    """Whether an extent of every result is 0."""
    return all(any(isinstance(d, int) and d == 0 for d in shape) for shape, _ in output_shapes(request.group.function))


def build_nothing(request: KernelRequest) -> Kernel:
    """A kernel without loops: builders may divide by the extents that they are given."""
    with IRBuilder() as builder, T.prim_func():
        declare_parameters(request, ())
        T.evaluate(0)
    return Kernel(builder.get(), (), 0, tuple(request.group.symbols))
