"""Operators of ONNX Runtime's own domain that its optimizer leaves in models, as far as other tables lack them."""

from __future__ import annotations

from tvm import relax

from ...ir import Expr
from .node import MICROSOFT, OnnxNode, Results, operator


@operator("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: OnnxNode) -> Results:
    return node.emit(relax.op.nn.gelu(node.emit(relax.op.add(node.expr(0), node.expr(1)))))


@operator("FastGelu", domain=MICROSOFT)
def fast_gelu(node: OnnxNode) -> Results:
    x: Expr = node.expr(0)
    return node.emit(relax.op.nn.gelu_tanh(node.emit(relax.op.add(x, node.expr(1))) if node.has(1) else x))
