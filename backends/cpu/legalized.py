"""Kernels through TVM's own legalization, for operators that have no generator here, with a generic schedule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.tirx.layout import TileLayout

from ...dims import as_dim, is_equal_dim, product_of
from ...errors import UnsupportedOperatorError
from ...ir import (
    Constant,
    GraphBuilder,
    constant_value,
    dtype_of,
    is_number,
    op_bindings,
    op_name,
    outputs_of,
    substitute,
    symbols_of,
    tensors_of,
    with_symbols,
)
from ..target import Capabilities
from . import legalizations as legalizations  # Registers what our own operators legalize to.
from .kernel import Kernel, KernelRequest, are_extents, identifier
from .loops import SERIAL_ELEMENTS, Loops
from .pipeline import lower_blocks


def build_opaque(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of an opaque group: what Relax legalizes its operators to, merged into one function.

    Raises UnsupportedOperatorError, naming the layer, for an operator that cannot be legalized, and for storages
    other than the tensors' own types.
    """
    group = request.group
    if any(s.dtype in ("float16", "bfloat16") or s.qparams is not None for s in (*request.inputs, *request.outputs)):
        raise UnsupportedOperatorError("an operator without a kernel of its own reads and writes float32 only",
                                       layer=group.name, found=[s.dtype for s in (*request.inputs, *request.outputs)])
    function, arrays = lift_constants(group.function)
    names = [op_name(b.value) for b in group.bindings]
    try:
        func = _legalize(function)
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise UnsupportedOperatorError("TVM has no code for this operator", layer=group.name, found=", ".join(
            str(n) for n in names), hint=str(error).strip().splitlines()[-1][:200]) from error
    func = lower_blocks(schedule(func, capabilities.vector_bits // 32, Loops.of(request, capabilities, threads)))
    func = _with_one_symbol_each(func)
    func = func.with_attr("global_symbol", identifier(group.name)).with_attr("layer", group.name)
    return Kernel(func, arrays, 0, tuple(p for p in func.params if is_number(p)))


def lift_constants(function: relax.Function) -> tuple[relax.Function, tuple[np.ndarray, ...]]:
    """The function with its constants as further parameters, and their arrays."""
    lifted: dict[Constant, relax.Var] = {}

    def replace(arg: tvm.ir.Expr) -> tvm.ir.Expr:
        if isinstance(arg, Constant):
            return lifted.setdefault(arg, relax.Var(f"constant{len(lifted)}", arg.ty))
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([replace(f) for f in arg.fields])
        return arg

    calls = []
    for binding in op_bindings(function):
        value = binding.value
        if isinstance(value, relax.Call):
            value = relax.Call(value.op, [replace(a) for a in value.args], value.attrs, value.ty_args)
        elif isinstance(value, Constant):  # A result that is known: it is copied.
            value = relax.op.astype(replace(value), dtype_of(value))
        calls.append((binding.var, value))
    tensors = tensors_of(function)
    builder = GraphBuilder([*tensors, *lifted.values(), *(p for p in function.params if p not in tensors)])
    known: dict[relax.Var, tvm.ir.Expr] = {}
    for var, value in calls:
        known[var] = builder.emit(substitute(value, known), var.name)
    results = [known[v] if v in known else builder.emit(v, v.name) for v in outputs_of(function)]
    as_tuple = isinstance(function.ret_ty, relax.TupleType)
    return builder.finish(results, as_tuple=as_tuple), tuple(constant_value(c) for c in lifted)


def _legalize(function: relax.Function) -> tvm.tirx.PrimFunc:
    """One PrimFunc for a Relax function of operators; it takes the parameters, then the results."""
    own = {s: tvm.tirx.Var(s.name, s.ty.dtype) for s in symbols_of(function)}
    params = [relax.Var(p.name, with_symbols(p.ty, own)) for p in function.params]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            name = builder.add_func(function.with_attr("Primitive", True), "group")
            result = builder.emit_output(relax.Call(name, params))
        builder.emit_func_output(result)
    with tvm.target.Target("llvm"):
        passes = [relax.backend.DispatchSortScan(), relax.transform.LegalizeOps(), relax.transform.FuseTIR()]
        mod = tvm.transform.Sequential(passes)(builder.get())
    found = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    if len(found) != 1:
        raise ValueError(f"legalized to {len(found)} functions instead of one")
    return found[0]


def _with_one_symbol_each(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """The function without the second variables for a symbol that ``FuseTIR`` leaves in the layouts of buffers, and
    with what is known of symbols (``kernel.assume_extents``)."""
    extents = [d for p in func.params for d in ([p] if is_number(p) else p.ty.shape)]
    symbols = {d.name: d for d in extents if isinstance(d, tvm.ir.Var)}
    if not symbols:
        return func

    def mend(layout: TileLayout) -> TileLayout:
        return tvm_ffi.structural_map(layout, (tvm.ir.Var, lambda var: symbols.get(var.name, var)))

    func = tvm_ffi.structural_map(func, (TileLayout, mend))
    return func.with_body(tvm.tirx.IfThenElse(are_extents(symbols.values()), func.body, None))


def schedule(func: tvm.tirx.PrimFunc, lanes: int, loops: Loops) -> tvm.tirx.PrimFunc:
    """A generic schedule: inline elementwise producers, share outer loops between threads, vectorize the innermost.

    Each step is tried on each block and left out where the block does not allow it.
    """
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    for block in _blocks(sch):
        _attempt(_inline, sch, block)
    for block in _blocks(sch):
        _attempt(_schedule_block, sch, block, lanes, loops)
    return sch.mod["main"]


def _blocks(sch: tvm.s_tir.Schedule) -> list[tvm.s_tir.schedule.SBlockRV]:
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def _inline(sch: tvm.s_tir.Schedule, block: tvm.s_tir.schedule.SBlockRV) -> None:
    if len(sch.get_consumers(block)) == 1:
        sch.compute_inline(block)


def _schedule_block(sch: tvm.s_tir.Schedule, block: tvm.s_tir.schedule.SBlockRV, lanes: int,
                    made_for: Loops) -> None:
    loops = sch.get_loops(block)
    kinds = [var.iter_type for var in sch.get(block).iter_vars]
    if not loops or len(loops) != len(kinds):
        return
    extents = [as_dim(sch.get(loop).extent) for loop in loops]
    spatial = next((i for i, kind in enumerate(kinds) if kind != tvm.tirx.IterVar.DataPar), len(kinds))
    outer = loops[:spatial] if spatial < len(loops) else loops[:-1]
    if spatial == len(loops) and is_equal_dim(extents[-1] % lanes, 0):
        rest, vector = sch.split(loops[-1], [None, lanes])
        sch.vectorize(vector)
        outer = outer or [rest]
    if outer and made_for.threads > 1 and made_for.typically(product_of(extents)) >= SERIAL_ELEMENTS:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])


def _attempt(step: Callable[..., None], *args: object) -> None:
    """Apply a step of a schedule, unless the block does not allow it."""
    try:
        step(*args)
    except tvm.s_tir.ScheduleError:
        return
