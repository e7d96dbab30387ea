"""Reference semantics of the normal form in PyTorch: what every operator means, differentiable by autograd.

``SEMANTICS`` maps operator names to functions, assembled from one table per family. Constant folding, calibration,
the evaluator of plans and the tests of passes and kernels all run through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from ..dims import NO_SYMBOLS, as_dim, dim_text, evaluate_dim, match_dims
from ..errors import CompileError, DataError, UnsupportedOperatorError, VerificationError
from ..ir import (
    Constant,
    Expr,
    constant_value,
    dims_of,
    is_number,
    op_bindings,
    op_name,
    outputs_of,
    tensors_of,
    variables_of,
)
from . import (
    reference_control,
    reference_elementwise,
    reference_linear_attention,
    reference_nn,
    reference_recurrent,
    reference_reduce,
    reference_resize,
    reference_shape,
    reference_unsigned,
)
from .control import has_bodies, runs_on_host
from .data_dependent import attributes_of, compute, is_data_dependent
from .semantics import Semantics, Value, tensor_of

SEMANTICS: dict[str, Semantics] = {
    **reference_elementwise.TABLE,
    **reference_nn.TABLE,
    **reference_linear_attention.TABLE,
    **reference_recurrent.TABLE,
    **reference_reduce.TABLE,
    **reference_resize.TABLE,
    **reference_shape.TABLE,
}


def evaluate_call(call: relax.Call, args: Sequence[Value], layer: str | None = None,
                  extents: Mapping[str, int] = NO_SYMBOLS) -> Value:
    """The value of one operator call.

    Parameters
    ----------
    call : a call of an operator; its shapes, integers and attributes are read from it.
    args : a value for every variable and every constant among its arguments, in order, those inside tuples
        included (a variable of tuple type has a tuple).
    layer : the name of the binding, for errors.
    extents : the symbols' extents by name, for the shapes and numbers among the arguments.

    Raises UnsupportedOperatorError, naming the operator and the binding, where there are no semantics; DataError for
    an index outside of a table.
    """
    name = op_name(call)
    if is_data_dependent(call):
        found = compute(str(name), attributes_of(call), [a.numpy() for a in args])  # type: ignore[union-attr]
        tensors = tuple(torch.from_numpy(a) for a in found)
        return tensors if len(tensors) > 1 else tensors[0]
    if has_bodies(call):
        return reference_control.evaluate(call, args, run, str(layer), extents)  # type: ignore[arg-type]
    if name not in SEMANTICS:
        raise UnsupportedOperatorError(f"the operator {name or call.op} has no reference semantics", layer=layer,
                                       hint="add it to a table of operators/reference_*.py")
    values = iter(args)
    arguments = [_argument(a, values, extents) for a in call.args]
    try:
        if reference_unsigned.concerns(arguments, call):
            return reference_unsigned.evaluate(SEMANTICS[name], arguments, call)
        return SEMANTICS[name](arguments, call)
    except CompileError as error:
        if layer is None or error.layer is not None:
            raise
        raise type(error)(error.problem, layer=layer, found=error.found, expected=error.expected,
                          hint=error.hint) from error


def evaluate_tensor(call: relax.Call, args: Sequence[Value], layer: str | None = None,
                    extents: Mapping[str, int] = NO_SYMBOLS) -> torch.Tensor:
    """``evaluate_call`` for an operator with one result. VerificationError for one with several."""
    value = evaluate_call(call, args, layer, extents)
    if isinstance(value, tuple):
        raise VerificationError("the operator has several results where one is wanted", layer=layer,
                                found=f"{len(value)} results of {op_name(call)}")
    return value


def _argument(expr: Expr, values: Iterator[Value], extents: Mapping[str, int]) -> Any:
    if isinstance(expr, (tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return expr.value
    if isinstance(expr, (relax.Var, Constant)) and not is_number(expr):
        return next(values)
    if isinstance(expr, relax.Tuple):
        return tuple(_argument(f, values, extents) for f in expr.fields)
    if isinstance(expr, relax.ShapeExpr):
        return tuple(_argument(v, values, extents) for v in expr.values)
    if is_number(expr):
        return evaluate_dim(expr, extents)
    raise VerificationError("an argument that is not of the normal form", found=str(expr))


def leaves_of(expr: Expr) -> Iterator[relax.Var | Constant]:
    """The variables and constants among a call's arguments, in the order ``evaluate_call`` wants their values."""
    if isinstance(expr, (relax.Var, Constant)):
        if not is_number(expr):
            yield expr
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from leaves_of(field)
    elif isinstance(expr, relax.Call) and not is_number(expr):
        for arg in expr.args:
            yield from leaves_of(arg)


def run(mod_or_func: tvm.IRModule | relax.Function,
        inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a function of the normal form, or of a module's ``main``, plain or grouped.

    ``inputs`` are PyTorch tensors by parameter name or in order. Values are dropped after their last use.
    Raises DataError for missing inputs, UnsupportedOperatorError as ``evaluate_call``.
    """
    mod = mod_or_func if isinstance(mod_or_func, tvm.IRModule) else None
    func = mod["main"] if mod is not None else mod_or_func
    tensors = _ordered(func, inputs)
    return _run(func, tensors, mod, extents_of(tensors_of(func), tensors))


def extents_of(params: Sequence[relax.Var], inputs: Sequence[torch.Tensor]) -> dict[str, int]:
    """The symbols' extents by name, from the shapes of actual inputs. DataError for an input that does not fit."""
    extents: dict[str, int] = {}
    for param, value in zip(params, inputs, strict=True):
        dims = dims_of(param)
        if len(dims) != value.dim() or match_dims(dims, tuple(value.shape), extents) is not None:
            raise DataError("an input has the wrong shape", layer=param.name, found=tuple(value.shape),
                            expected=[d if isinstance(d, int) else dim_text(d) for d in dims])
    return extents


def _ordered(func: relax.Function,
             inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    names = [p.name for p in tensors_of(func)]
    if isinstance(inputs, Mapping):
        missing = [n for n in names if n not in inputs]
        if missing:
            raise DataError("inputs are missing", found=sorted(inputs), expected=names)
        return [inputs[n] for n in names]
    if len(inputs) != len(names):
        raise DataError("the wrong number of inputs", found=len(inputs), expected=names)
    return list(inputs)


def learn_extents(binding: relax.VarBinding, value: Value, extents: dict[str, int]) -> None:
    """Enter the extents that an operator on the host found, by the symbols' names."""
    if not runs_on_host(binding.value):
        return
    several = isinstance(binding.var.ty, relax.TupleType)
    types = binding.var.ty.fields if several else [binding.var.ty]
    for ty, tensor in zip(types, value if isinstance(value, tuple) else (value,), strict=True):
        match_dims([as_dim(d) for d in ty.shape], tuple(tensor.shape), extents)


def _run(func: relax.Function, inputs: Sequence[torch.Tensor], mod: tvm.IRModule | None,
         extents: dict[str, int]) -> list[torch.Tensor]:
    values: dict[relax.Var, Value] = dict(zip(tensors_of(func), inputs, strict=True))
    outputs, bindings = outputs_of(func), op_bindings(func)
    last_use = {var: i for i, b in enumerate(bindings) for var in variables_of(b.value)}
    last_use.update(dict.fromkeys(outputs, len(bindings)))
    for i, binding in enumerate(bindings):
        values[binding.var] = _value(binding, values, mod, extents)
        learn_extents(binding, values[binding.var], extents)
        for var in (*variables_of(binding.value), binding.var):
            if last_use.get(var, i) <= i:
                values.pop(var, None)
    results: list[torch.Tensor] = []
    for var in outputs:
        value = values[var]
        results.extend(value if isinstance(value, tuple) else (value,))
    return results


def _value(binding: relax.VarBinding, values: Mapping[relax.Var, Value], mod: tvm.IRModule | None,
           extents: dict[str, int]) -> Value:
    expr = binding.value
    if isinstance(expr, (relax.Var, Constant)):
        return _leaf(expr, values)
    if isinstance(expr, relax.Tuple):
        return tuple(_leaf(f, values) for f in expr.fields)  # type: ignore[misc]
    if isinstance(expr, relax.TupleGetItem):
        return values[expr.tuple_value][expr.index]
    leaves = [_leaf(leaf, values) for leaf in leaves_of(expr)]
    if isinstance(expr.op, tvm.ir.GlobalVar):
        if mod is None:
            raise VerificationError("a call of another function needs its module", found=str(expr.op))
        function = mod[expr.op]
        results = _run(function, leaves, mod, extents)  # type: ignore[arg-type]
        return tuple(results) if isinstance(function.ret_ty, relax.TupleType) else results[0]
    return evaluate_call(expr, leaves, binding.var.name, extents)


def _leaf(expr: Expr, values: Mapping[relax.Var, Value]) -> Value:
    return tensor_of(constant_value(expr)) if isinstance(expr, Constant) else values[expr]


def to_numpy(values: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """The tensors as NumPy arrays."""
    return [v.detach().contiguous().numpy() for v in values]
