"""Normalizations of ONNX Runtime's own domain, with the sums before them."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...ir import Expr, dims_of
from .. import emit
from .broadcasting import broadcastable
from .composition import standard
from .node import MICROSOFT, OnnxNode, Results, operator


def _sum(node: OnnxNode, a: Expr, b: Expr) -> relax.Var:
    return node.emit(relax.op.add(*broadcastable(node, [a, b])), "sum")


def _refuse_statistics(node: OnnxNode) -> None:
    if any(node.outputs[1:3]):
        raise node.unsupported("with mean and deviation as outputs")


@operator("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: OnnxNode) -> Results:
    """``layer_norm(x + skip + bias)``; the fourth output is the sum."""
    _refuse_statistics(node)
    total = _sum(node, node.expr(0), node.expr(1))
    total = _sum(node, total, node.expr(4)) if node.has(4) else total
    beta = node.expr(3) if node.has(3) else None
    result = emit.layer_norm(node.builder, node.name, total, node.expr(2), beta, axes=[len(dims_of(total)) - 1],
                             epsilon=float(node.attribute("epsilon", 1e-12)))
    return (result, None, None, total) if any(node.outputs[3:]) else result


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_normalization(node: OnnxNode) -> Results:
    """``rms_norm(x + skip + bias)``; the fourth output is the sum."""
    _refuse_statistics(node)
    total = _sum(node, node.expr(0), node.expr(1))
    total = _sum(node, total, node.expr(3)) if node.has(3) else total
    result = node.emit(relax.op.nn.rms_norm(total, node.expr(2), [len(dims_of(total)) - 1],
                                            float(node.attribute("epsilon", 1e-12))))
    return (result, None, None, total) if any(node.outputs[3:]) else result


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: OnnxNode) -> Results:
    """The embeddings of words, positions and segments, summed and normalized; the second output counts what the mask
    leaves of every sequence."""
    total = node.constant(standard(node, "Gather", [node.value(2), node.value(0)], "words", axis=0))
    steps = dims_of(total)[1]
    if node.has(8):
        places = standard(node, "Gather", [node.value(3), node.value(8)], "places", axis=0)
    else:
        places = node.emit(relax.op.strided_slice(node.expr(3), [0], [0], [steps]), "places")
    total = _sum(node, total, node.constant(places))
    if node.has(1):
        segments = standard(node, "Gather", [node.value(4), node.value(1)], "segments", axis=0)
        total = _sum(node, total, node.constant(segments))
    result = emit.layer_norm(node.builder, node.name, total, node.expr(5), node.expr(6), axes=[2],
                             epsilon=float(node.attribute("epsilon", 1e-12)))
    if not any(node.outputs[1:]):
        return result
    return result, _kept(node), total


def _kept(node: OnnxNode) -> relax.Var | np.ndarray:
    """How many elements of the mask are not 0, in every sequence; none without a mask."""
    if not node.has(7):
        (batch,) = node.numbers(node.dims(0)[:1], "the batch")
        return np.zeros(batch, np.int32)
    kept = node.emit(relax.op.not_equal(node.expr(7), node.constant(0, node.dtype(7))), "kept")
    return node.emit(relax.op.sum(node.emit(relax.op.astype(kept, "int32"), "kept"), [1]), "kept")
