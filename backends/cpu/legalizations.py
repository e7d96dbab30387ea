"""What operators without a kernel generator are in TVM's tensor expressions: our own ones, and those of Relax that TVM
computes otherwise than PyTorch and ONNX where an element is not a number, or not at all where the CPU traps.

Importing this module registers them for ``relax.transform.LegalizeOps``, and tells TVM which intrinsics LLVM has for
scalars only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, te, topi

from ...ir import Constant, constant_value, dtype_of

Division = Callable[[te.Tensor, te.Tensor], te.Tensor]
_OVERRIDING = 11  # TVM's own entries have level 10.


def _bitcast(builder: relax.BlockBuilder, call: relax.Call) -> tvm.ir.Expr:
    dtype = str(call.attrs["dtype"])

    def reinterpret(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tvm.tirx.reinterpret(dtype, x(*i)), name="bitcast")

    return builder.call_te(reinterpret, call.args[0])


def _equal(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """TVM's simplifier takes anything for equal to itself."""
    return topi.logical_and(topi.equal(a, b), topi.logical_not(topi.isnan(a)))


def _not_equal(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """TVM's comparison is false where an element is not a number."""
    return topi.logical_or(topi.not_equal(a, b), topi.logical_or(topi.isnan(a), topi.isnan(b)))


def _maximum(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return _not_a_number_or(a, b, topi.maximum(a, b))


def _minimum(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return _not_a_number_or(a, b, topi.minimum(a, b))


def _not_a_number_or(a: te.Tensor, b: te.Tensor, result: te.Tensor) -> te.Tensor:
    """``a`` or ``b`` where that is not a number, else ``result``."""
    return topi.where(topi.isnan(a), a, topi.where(topi.isnan(b), b, result))


def _divisor(b: te.Tensor) -> te.Tensor:
    """``b`` with 1 in place of 0, and of -1, by which the least integer has no quotient: the CPU traps at both."""
    traps = topi.equal(b, _number(0, b))
    if _is_signed(b):
        traps = topi.logical_or(traps, topi.equal(b, _number(-1, b)))
    return topi.where(traps, topi.full_like(b, _number(1, b)), b)


def _number(value: int, like: te.Tensor) -> tvm.tirx.PrimExpr:
    return tvm.tirx.const(value, str(like.dtype))


def _is_signed(x: te.Tensor) -> bool:
    return not str(x.dtype).startswith("uint")


def _quotient(divide: Division) -> Division:
    """An integer quotient by any divisor: by 0 as by 1."""
    def of_any(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        found = divide(a, _divisor(b))
        return topi.where(topi.equal(b, _number(-1, b)), topi.negative(a), found) if _is_signed(b) else found

    return of_any


def _rest(modulo: Division) -> Division:
    """An integer remainder by any divisor: by 0 as by 1."""
    return lambda a, b: modulo(a, _divisor(b))


def _override_integers(name: str, of_any: Division) -> None:
    """Let ``name`` be ``of_any`` on integers by a divisor that may trap."""
    of_others = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> tvm.ir.Expr:
        divisor = call.args[1]
        traps = "int" in dtype_of(divisor) and (not isinstance(divisor, Constant)
                                                or np.isin(constant_value(divisor), (0, -1)).any())
        return builder.call_te(of_any, *call.args) if traps else of_others(builder, call)

    tvm.ir.register_op_attr(name, "FLegalize", legalize, level=_OVERRIDING)


def _override(name: str, of_floats: Callable[[te.Tensor, te.Tensor], te.Tensor]) -> None:
    """Let the binary operator ``name`` be ``of_floats`` on floats; on other types it stays TVM's."""
    of_others = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> tvm.ir.Expr:
        is_float = "float" in dtype_of(call.args[0])
        return builder.call_te(of_floats, *call.args) if is_float else of_others(builder, call)

    tvm.ir.register_op_attr(name, "FLegalize", legalize, level=_OVERRIDING)


tvm.ir.register_op_attr("narrowcast.bitcast", "FLegalize", _bitcast)
for _name, _of_floats in (("equal", _equal), ("not_equal", _not_equal), ("maximum", _maximum), ("minimum", _minimum)):
    _override(f"relax.{_name}", _of_floats)
for _name, _of_any in (("divide", _quotient(topi.divide)), ("floor_divide", _quotient(topi.floor_divide)),
                       ("mod", _rest(topi.mod)), ("floor_mod", _rest(topi.floor_mod))):
    _override_integers(f"relax.{_name}", _of_any)
for _name in ("sinh", "cosh"):
    tvm.ir.register_op_attr(f"tirx.{_name}", "TVectorizable", False, level=_OVERRIDING)
