"""What operators without a kernel generator are in TVM's tensor expressions: our own ones, and those of Relax that TVM
computes otherwise than PyTorch and ONNX where an element is not a number.

Importing this module registers them for ``relax.transform.LegalizeOps``, and tells TVM which intrinsics LLVM has for
scalars only.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, te, topi

from ...ir import dtype_of

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
for _name in ("sinh", "cosh"):
    tvm.ir.register_op_attr(f"tirx.{_name}", "TVectorizable", False, level=_OVERRIDING)
