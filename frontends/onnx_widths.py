"""float64, which the operators that move, compare and add up elements keep, and every other reads as float32."""

from __future__ import annotations

from dataclasses import replace

from tvm import relax

from ..ir import dtype_of
from .onnx_ops import OnnxNode, TensorSequence, Value

# Their results in float32 would be others: sums and differences of large numbers, and numbers beyond float32's range.
_KEEPS = frozenset({
    "Abs", "Add", "BitCast", "Cast", "Concat", "Div", "Equal", "Expand", "Flatten", "Gather", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "ReduceMax", "ReduceMin",
    "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze",
    "Where",
})


def with_widths(node: OnnxNode) -> OnnxNode:
    """The node, ``wide`` where it is one that keeps float64 and all floats it reads are of that type; else with those
    that are read as float32."""
    floats = {dtype_of(v) for v in node.inputs if isinstance(v, relax.Var) and _is_tensor(v)
              and dtype_of(v).startswith("float")}
    if "float64" in floats and len(floats) == 1 and node.domain == "" and node.op in _KEEPS:
        return replace(node, wide=True)
    return replace(node, inputs=tuple(_narrow(node, v) for v in node.inputs))


def _is_tensor(value: relax.Var) -> bool:
    return isinstance(value.ty, relax.TensorType)


def _narrow(node: OnnxNode, value: Value | None) -> Value | None:
    if isinstance(value, TensorSequence):
        return TensorSequence(tuple(_narrow(node, v) for v in value.items))  # type: ignore[misc]
    if isinstance(value, relax.Var) and _is_tensor(value) and dtype_of(value) == "float64":
        return node.emit(relax.op.astype(value, "float32"), "narrow")
    return value
