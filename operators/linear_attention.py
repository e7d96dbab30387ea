"""``narrowcast.linear_attention``: attention as a recurrence on a state instead of a softmax over all keys.

For every head the state S [key, value] is, at each step, scaled by the decay along its keys, changed by the outer
product of the key and the value, and read by the query (Katharopoulos et al. 2020; with ``delta`` the value written is
its difference to what the state already holds for the key: Yang et al. 2024, Gated Delta Networks).
"""

from __future__ import annotations

import tvm
from tvm import relax

from ..dims import equal_dims
from ..errors import VerificationError
from ..ir import Expr, dims_of, dtype_of
from .custom import register

NAME = "narrowcast.linear_attention"


def linear_attention(q: Expr, k: Expr, v: Expr, state: Expr, decay: Expr, rate: Expr, *, delta: bool) -> relax.Call:
    """Linear attention over a whole sequence.

    Parameters
    ----------
    q : [batch, steps, heads · n, key]; n consecutive query heads share the state of one head.
    k, decay : [batch, steps, heads, key]; the state is multiplied by the decay before each step.
    v : [batch, steps, heads, value]
    state : [batch, heads, key, value], before the first step
    rate : [batch, steps, heads], what the value that is written is multiplied by
    delta : whether what the state holds for the key is subtracted from the value first.

    Returns the tuple of what the queries read [batch, steps, heads · n, value] and the last state. All float32.
    """
    return relax.Call(_OP, [q, k, v, state, decay, rate], tvm.ir.make_node("ir.DictAttrs", delta=delta))


def _infer_type(call: relax.Call) -> relax.TupleType:
    q, k, v = (dims_of(a) for a in call.args[:3])
    batch, steps, heads, key = k
    expected = [(batch, steps, q[2], key), k, (batch, steps, heads, v[3]), (batch, heads, key, v[3]), k, k[:3]]
    for arg, shape in zip(call.args, expected, strict=True):
        if not equal_dims(dims_of(arg), shape) or dtype_of(arg) != "float32":
            raise VerificationError(f"an operand of {NAME} does not fit the others", found=str(arg.ty), expected=shape)
    result = relax.TensorType((batch, steps, q[2], v[3]), "float32")
    return relax.TupleType([result, relax.TensorType((batch, heads, key, v[3]), "float32")])


_OP = register(NAME, 6, _infer_type)
