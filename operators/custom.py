"""Operators that networks use and Relax lacks, registered as Relax operators of the ``narrowcast`` namespace.

They are ordinary Relax calls: passes match them by name, types are inferred, modules print and compare with them.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm.ir._ffi_api
from tvm import relax


def register(name: str, arity: int, infer_type: Callable[[relax.Call], object]) -> tvm.ir.Op:
    """Enter an operator of at most ``arity`` arguments in TVM's registry; ``infer_type`` gives a call's type.

    The registry belongs to the process: where the package is imported once more, under another name, the operators
    are there already.
    """
    if name in tvm.ir.Op.list_op_names():
        return tvm.ir.Op.get(name)
    tvm.ir._ffi_api.RegisterOp(name, name)
    op = tvm.ir.Op.get(name)
    tvm.ir._ffi_api.OpSetNumInputs(op, arity)
    tvm.ir.register_op_attr(name, "FInferType", lambda call, builder: infer_type(call))
    tvm.ir.register_op_attr(name, "FPurity", True)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name)
    return op


_HARD_SWISH = register("narrowcast.hard_swish", 1, lambda call: call.args[0].ty)
_HARD_SIGMOID = register("narrowcast.hard_sigmoid", 1, lambda call: call.args[0].ty)
_BITCAST = register("narrowcast.bitcast", 1,
                    lambda call: relax.TensorType(call.args[0].ty.shape, str(call.attrs["dtype"])))
_FAKE_QUANTIZE = register("narrowcast.fake_quantize", 1, lambda call: call.args[0].ty)


def hard_swish(x: tvm.ir.Expr) -> relax.Call:
    """``x * clip(x + 3, 0, 6) / 6``, elementwise (Howard et al., Searching for MobileNetV3)."""
    return relax.Call(_HARD_SWISH, [x])


def hard_sigmoid(x: tvm.ir.Expr) -> relax.Call:
    """``clip(x + 3, 0, 6) / 6``, elementwise; forms with another slope are written out by the importer."""
    return relax.Call(_HARD_SIGMOID, [x])


def bitcast(x: tvm.ir.Expr, dtype: str) -> relax.Call:
    """The bits of every element read as another type of the same width."""
    return relax.Call(_BITCAST, [x], tvm.ir.make_node("ir.DictAttrs", dtype=dtype))


def fake_quantize(x: tvm.ir.Expr, *, scale: float, zero_point: int, low: int, high: int) -> relax.Call:
    """``scale * (clip(round_half_even(x / scale) + zero_point, low, high) - zero_point)``, elementwise: the value that
    quantizing a tensor to integers low…high and dequantizing them leaves (Jacob et al. 2018)."""
    attrs = tvm.ir.make_node("ir.DictAttrs", scale=float(scale), zero_point=int(zero_point), low=int(low),
                             high=int(high))
    return relax.Call(_FAKE_QUANTIZE, [x], attrs)
