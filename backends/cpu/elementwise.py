"""Kernels of elementwise groups: one pass over the output, every input read once."""

from __future__ import annotations

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import is_one
from ..target import Capabilities
from .epilogue import Epilogue
from .kernel import Kernel, KernelRequest, declare_parameters
from .loops import Loops, for_each_vector


def build_elementwise(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a group without an anchor.

    Where nothing broadcasts, all tensors are read as one long row. Raises UnsupportedOperatorError for ops that have no
    vector code.
    """
    epilogue = Epilogue(request, capabilities)
    lanes = 1 if is_one(epilogue.columns) else epilogue.vector_lanes
    with IRBuilder() as builder, T.prim_func():
        epilogue.bind(declare_parameters(request, epilogue.constants))
        for_each_vector(epilogue.rows, epilogue.columns, lanes, Loops.of(request, capabilities, threads),
                        lambda position, valid: epilogue.emit(None, position, valid))
    return Kernel(builder.get(), tuple(epilogue.constants), 0, tuple(request.group.symbols))
