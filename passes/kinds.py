"""Which operators a fusion group of each kind is made of."""

from __future__ import annotations

from tvm import relax

from ..ir import Constant, Expr, dims_of, dtype_of, is_number, op_name, shape_of, variables_of
from ..operators.recurrent import is_recurrent, operands_of

ELEMENTWISE = frozenset({
    *(f"relax.{name}" for name in (
        "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "abs", "negative", "exp", "log", "sqrt",
        "rsqrt", "square", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "floor", "ceil", "round", "trunc", "sign", "clip")),
    *(f"relax.nn.{name}" for name in (
        "relu", "leakyrelu", "gelu", "gelu_tanh", "silu", "softplus", "selu")),
    "narrowcast.hard_swish", "narrowcast.hard_sigmoid", "narrowcast.fake_quantize",
})
"""Operators on float32 tensors whose output element depends on one element of each (broadcast) operand."""

MAX_POOL = frozenset(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3))

INDEXING = frozenset(f"relax.{name}" for name in (
    "reshape", "permute_dims", "strided_slice", "concat", "squeeze", "expand_dims", "flatten", "broadcast_to", "stack",
    "flip", "tile", "repeat")) | {"relax.nn.pad", "relax.nn.batch_flatten"}
"""Operators whose output elements are copies of input elements at computed places (``pad``: or 0)."""

POOL = frozenset(f"relax.nn.{adaptive}avg_pool{rank}d" for adaptive in ("", "adaptive_") for rank in (1, 2, 3))

REDUCE = frozenset(f"relax.{name}" for name in ("mean", "sum", "max", "min"))

NORMALIZE = {
    "relax.nn.softmax": "softmax", "relax.nn.layer_norm": "layer_norm", "relax.nn.rms_norm": "rms_norm",
}

CONVOLUTION = frozenset(f"relax.nn.conv{rank}d" for rank in (1, 2, 3))
TRANSPOSED_CONVOLUTION = frozenset(f"{name}_transpose" for name in CONVOLUTION)
ATTENTION = frozenset({"relax.nn.attention", "relax.nn.attention_bias"})


def classify(call: Expr) -> tuple[str, str]:
    """The kind of the group that ``call`` anchors, and for an opaque op the reason (else an empty string)."""
    name = op_name(call)
    if name is None:
        return "opaque", "not a call of an operator"
    if is_recurrent(name):
        return _recurrent(call)
    reason = _not_float(call)
    if reason:
        return "opaque", reason
    if name in CONVOLUTION:
        return _convolution(call)
    if name == "relax.matmul":
        return _matmul(call)
    if name in ATTENTION:
        return _attention(call)
    if name in NORMALIZE:
        return _normalization(call, NORMALIZE[name])
    if name == "relax.nn.pad" and not pads_zero(call):
        return "opaque", "pads with something else than 0"
    if name in INDEXING and any(isinstance(leaf, Constant) for leaf in _tensors(call)):
        return "opaque", "moves a constant, which has no storage of its own"
    for members, kind in ((MAX_POOL | INDEXING, "movement"), (POOL, "pool"), (REDUCE, "reduce"),
                          (ELEMENTWISE, "elementwise")):
        if name in members:
            return (kind, "") if any(True for _ in variables_of(call)) else ("opaque", "reads constants only")
    return "opaque", f"{name} belongs to no kind of group"


def _not_float(call: relax.Call) -> str:
    if not isinstance(call.ty, relax.TensorType):
        return "computes a tuple"
    for tensor in [call, *_tensors(call)]:
        if not isinstance(tensor.ty, relax.TensorType) or dtype_of(tensor) != "float32":
            return "works on something else than float32 tensors"
    return ""


def _tensors(call: relax.Call) -> list[Expr]:
    fields = (e for a in call.args for e in (a.fields if isinstance(a, relax.Tuple) else [a]))
    return [e for e in fields if isinstance(e, (relax.Var, Constant)) and not is_number(e)]


def _convolution(call: relax.Call) -> tuple[str, str]:
    data, weight = call.args
    if not isinstance(weight, Constant):
        return "opaque", "the weight is computed at run time"
    if not isinstance(data, relax.Var):
        return "opaque", "reads constants only"
    if not str(call.attrs.data_layout).endswith("C"):
        return "opaque", "the layout is not channels-last"
    channels, outputs = dims_of(data)[-1], shape_of(weight)[0]
    if not isinstance(channels, int):
        return "opaque", "the number of channels is symbolic"
    depthwise = int(call.attrs.groups) == channels == outputs and channels > 1
    return ("depthwise" if depthwise else "conv"), ""


def _matmul(call: relax.Call) -> tuple[str, str]:
    left, right = call.args
    if isinstance(left, Constant):
        return "opaque", "the left side is constant"
    if len(dims_of(left)) < 2 or len(dims_of(right)) < 2:
        return "opaque", "a side is a vector"
    if not isinstance(right, Constant):
        return "batched_matmul", ""
    return ("matmul", "") if len(dims_of(right)) == 2 else ("opaque", "the constant right side is not a matrix")


def _recurrent(call: relax.Call) -> tuple[str, str]:
    operands = operands_of(call)
    if not all(isinstance(operands[n], Constant) for n in ("w", "r", "projection") if n in operands):
        return "opaque", "a weight is computed at run time"
    if not isinstance(operands["x"], relax.Var):
        return "opaque", "the sequence is constant"
    if any(operands["x"].same_as(operand) for name, operand in operands.items() if name != "x"):
        return "opaque", "the sequence is another operand as well"
    return "recurrent", ""


def _attention(call: relax.Call) -> tuple[str, str]:
    if call.attrs.causal_mask is not None or call.attrs.window_size is not None:
        return "opaque", "a causal mask or a window"
    if any(isinstance(a, Constant) for a in call.args[:3]):
        return "opaque", "query, key or value is constant"
    return "attention", ""


def _normalization(call: relax.Call, kind: str) -> tuple[str, str]:
    rank = len(dims_of(call))
    axes = [call.attrs.axis] if kind == "softmax" else list(call.attrs.axes)
    if [int(a) % rank for a in axes] != [rank - 1]:
        return "opaque", "normalizes another axis than the last"
    if not all(isinstance(a, Constant) for a in call.args[1:]):
        return "opaque", "gamma or beta is computed at run time"
    return (kind, "") if isinstance(call.args[0], relax.Var) else ("opaque", "reads constants only")


def pads_zero(call: relax.Call) -> bool:
    """Whether a ``pad`` fills with zeros."""
    return str(call.attrs.pad_mode) == "constant" and float(call.attrs.pad_value) == 0.0
