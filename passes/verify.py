"""The executable statement of the normal form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tvm
from tvm import relax

from ..dims import as_dim, symbols_in
from ..errors import VerificationError
from ..ir import Constant, Expr, bindings_of, op_bindings, op_name, outputs_of, shape_symbols, tensors_of

# Operators that only training has, or that the importers write out.
_NOT_INFERENCE = frozenset({"relax.nn.batch_norm", "relax.nn.dropout", "relax.call_tir", "relax.call_dps_packed",
                            "relax.call_pure_packed", "relax.call_inplace_packed", "relax.call_tir_inplace"})
_PLAIN_ARGUMENTS = (relax.Var, Constant, relax.ShapeExpr, tvm.tirx.IntImm, tvm.tirx.FloatImm)


@dataclass(frozen=True)
class VerifyNormalForm:
    """Return the module as it is; raise VerificationError, with every problem, where it is not in normal form.

    Requires: one Relax function ``main``, whose body is one dataflow block; every binding is an operator's call on
    variables, constants, shapes and numbers (no nested calls), or an item of a tuple; binding and parameter names are
    unique; every dim is a number or an expression over symbols, which are dims of inputs; floating point tensors are
    float32, or float64, which takes no part in precision decisions; no operator is one of training; the result is a
    tensor variable or a tuple of them.
    Ensures: the same.
    """

    name: str = "VerifyNormalForm"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        problems = list(_module_problems(mod))
        if not problems:
            problems = list(_function_problems(mod["main"]))
        if problems:
            raise VerificationError.collect(problems)
        return mod


def _module_problems(mod: tvm.IRModule) -> Iterator[VerificationError]:
    names = sorted(gv.name_hint for gv in mod.functions)
    if names != ["main"] or not isinstance(mod["main"], relax.Function):
        yield VerificationError("the module has to hold one Relax function, main", found=names)
        return
    blocks = mod["main"].body.blocks if isinstance(mod["main"].body, relax.SeqExpr) else []
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        yield VerificationError("the body of main has to be one dataflow block", found=f"{len(blocks)} blocks")


def _function_problems(func: relax.Function) -> Iterator[VerificationError]:
    names = [p.name for p in func.params] + [b.var.name for b in op_bindings(func)]
    for name in sorted({n for n in names if names.count(n) > 1} | {n for n in names if not n}):
        yield VerificationError("the name is not unique" if name else "a name is empty", layer=name or None)
    symbols = {d.name for p in func.params if isinstance(p.ty, relax.TensorType) and p.ty.shape is not None
               for d in p.ty.shape if isinstance(d, tvm.tirx.Var)}
    symbols |= {v.name for v in shape_symbols(func.params)}
    for param in tensors_of(func):
        yield from _type_problems(param.name, param.ty, symbols)
    outputs = outputs_of(func)
    for binding in op_bindings(func):
        yield from _binding_problems(binding, symbols, is_output=any(binding.var.same_as(o) for o in outputs))
    known = {*func.params, *(b.var for b in bindings_of(func))}
    for output in outputs:
        if output not in known or not isinstance(output.ty, relax.TensorType):
            yield VerificationError("an output is not a tensor variable of the function", found=str(output))


def _binding_problems(binding: relax.VarBinding, symbols: set[str], *, is_output: bool) -> Iterator[VerificationError]:
    name, value = binding.var.name, binding.value
    yield from _type_problems(name, binding.var.ty, symbols)
    if isinstance(value, relax.TupleGetItem):
        if not isinstance(value.tuple_value, relax.Var):
            yield VerificationError("an item is taken of something else than a variable", layer=name)
    elif isinstance(value, relax.Call):
        yield from _call_problems(name, value, symbols)
    elif not (isinstance(value, Constant) and is_output):
        yield VerificationError("a binding has to be an operator's call", layer=name, found=type(value).__name__)


def _call_problems(name: str, call: relax.Call, symbols: set[str]) -> Iterator[VerificationError]:
    operator = op_name(call)
    if operator is None or not operator.startswith(("relax.", "narrowcast.")) or operator in _NOT_INFERENCE:
        yield VerificationError("the call is not of an operator of the normal form", layer=name,
                                found=operator or type(call.op).__name__)
    for arg in call.args:
        fields = arg.fields if isinstance(arg, relax.Tuple) else [arg]
        for field in fields:
            if not isinstance(field, _PLAIN_ARGUMENTS) and not isinstance(field.ty, tvm.ir.PrimType):
                yield VerificationError("an argument has to be a variable, a constant, a shape or a number", layer=name,
                                        found=type(field).__name__)
            elif isinstance(field, Constant):
                yield from _type_problems(name, field.ty, symbols)


def _type_problems(name: str, ty: Expr, symbols: set[str]) -> Iterator[VerificationError]:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _type_problems(name, field, symbols)
        return
    if not isinstance(ty, relax.TensorType):
        yield VerificationError("a value has to be a tensor or a tuple of tensors", layer=name, found=str(ty))
        return
    if ty.shape is None:
        yield VerificationError("a known rank was required", layer=name, found=str(ty))
    else:
        undefined = sorted({s.name for d in ty.shape for s in symbols_in(as_dim(d))} - symbols)
        if undefined:
            yield VerificationError("a symbolic dim is not the dim of an input", layer=name, found=", ".join(undefined),
                                    expected=", ".join(sorted(symbols)) or "no symbols")
    if "float" in str(ty.dtype) and str(ty.dtype) not in ("float32", "float64"):
        yield VerificationError("floating point tensors have to be float32 or float64", layer=name, found=str(ty.dtype))
