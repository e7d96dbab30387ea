"""Operators that networks use and Relax lacks, registered as Relax operators of the ``narrowcast`` namespace.

They are ordinary Relax calls: passes match them by name, types are inferred, modules print and compare with them.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm.ir._ffi_api
from tvm import relax

from ..ir import shape_of


def _register(name: str, arity: int, infer_type: Callable[[relax.Call], object]) -> tvm.ir.Op:
    tvm.ir._ffi_api.RegisterOp(name, name)
    op = tvm.ir.Op.get(name)
    tvm.ir._ffi_api.OpSetNumInputs(op, arity)
    tvm.ir.register_op_attr(name, "FInferType", lambda call, builder: infer_type(call))
    tvm.ir.register_op_attr(name, "FPurity", True)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name)
    return op


def _infer_lstm(call: relax.Call) -> relax.TupleType:
    steps, batch, _ = shape_of(call.args[0])
    directions, _, hidden = shape_of(call.args[2])
    return relax.TupleType(
        [
            relax.TensorType((steps, directions, batch, hidden), "float32"),
            relax.TensorType((directions, batch, hidden), "float32"),
            relax.TensorType((directions, batch, hidden), "float32"),
        ]
    )


_HARD_SWISH = _register("narrowcast.hard_swish", 1, lambda call: call.args[0].ty)
_HARD_SIGMOID = _register("narrowcast.hard_sigmoid", 1, lambda call: call.args[0].ty)
_LSTM = _register("narrowcast.lstm", 6, _infer_lstm)


def hard_swish(x: tvm.ir.Expr) -> relax.Call:
    """``x * clip(x + 3, 0, 6) / 6``, elementwise (Howard et al., Searching for MobileNetV3)."""
    return relax.Call(_HARD_SWISH, [x])


def hard_sigmoid(x: tvm.ir.Expr) -> relax.Call:
    """``clip(x + 3, 0, 6) / 6``, elementwise; forms with another slope are written out by the importer."""
    return relax.Call(_HARD_SIGMOID, [x])


def lstm(
    x: tvm.ir.Expr, w: tvm.ir.Expr, r: tvm.ir.Expr, b: tvm.ir.Expr, h0: tvm.ir.Expr, c0: tvm.ir.Expr
) -> relax.Call:
    """A long short-term memory layer over a whole sequence, in the layout of ONNX's LSTM.

    Parameters
    ----------
    x : [steps, batch, input]
    w : [directions, 4*hidden, input], gates in the order i, o, f, c
    r : [directions, 4*hidden, hidden]
    b : [directions, 4*hidden], the sum of the input and the recurrent bias
    h0, c0 : [directions, batch, hidden]

    Direction 1, where there is one, runs backwards in time. Returns the tuple of all hidden states
    [steps, directions, batch, hidden], the last hidden and the last cell state [directions, batch, hidden].
    Gates are sigmoid, cell and output tanh (Hochreiter and Schmidhuber 1997; Gers et al. 2000).
    """
    return relax.Call(_LSTM, [x, w, r, b, h0, c0])
