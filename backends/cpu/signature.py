"""The frame that kernels with an anchor share: parameters, helpers, the epilogue's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import Dim
from ...errors import VerificationError
from .epilogue import Epilogue
from .isa import Arithmetic
from .kernel import Kernel, KernelRequest, Parameters, declare_parameters


def input_index(request: KernelRequest, expr: tvm.ir.Expr) -> int:
    """Which parameter of the group's function an anchor's argument is; VerificationError where it is none."""
    for index, param in enumerate(request.group.parameters):
        if param.same_as(expr):
            return index
    raise VerificationError("the anchor must read parameters of its group", layer=request.group.name, found=str(expr))


def build_kernel(request: KernelRequest, arithmetic: Arithmetic, epilogue: Epilogue, constants: Sequence[np.ndarray],
                 macs: Dim, emit: Callable[[Parameters], None]) -> Kernel:
    """Build a kernel's function around ``emit``, which emits its loops.

    constants : the anchor's own; the epilogue's follow them.
    """
    arrays = (*constants, *epilogue.constants)
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, arrays)
        epilogue.bind(parameters)
        with arithmetic.helpers():
            emit(parameters)
    return Kernel(builder.get(), arrays, request.typically(macs), tuple(request.group.symbols))
