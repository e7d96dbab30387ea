"""What narrowcast's own operators are in TVM's tensor expressions, for those that have no kernel generator.

Importing this module registers them for ``relax.transform.LegalizeOps``.
"""

from __future__ import annotations

import tvm
from tvm import relax, te


def _bitcast(builder: relax.BlockBuilder, call: relax.Call) -> tvm.ir.Expr:
    dtype = str(call.attrs["dtype"])

    def reinterpret(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tvm.tirx.reinterpret(dtype, x(*i)), name="bitcast")

    return builder.call_te(reinterpret, call.args[0])


tvm.ir.register_op_attr("narrowcast.bitcast", "FLegalize", _bitcast)
