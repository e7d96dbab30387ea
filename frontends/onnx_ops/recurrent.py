"""Recurrent layers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...ir import Expr
from .. import emit
from .node import OnnxNode, Results, operator

_ACTIVATIONS = ("sigmoid", "tanh", "tanh")


@operator("LSTM")
def lstm(node: OnnxNode) -> Results:
    """``narrowcast.lstm``; a layer that runs backwards reads a sequence that is turned round."""
    direction, batch_first = node.attribute("direction", "forward"), bool(node.attribute("layout", 0))
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.fault("the direction is unknown", found=direction)
    _check_form(node)
    x = node.expr(0)
    x = node.emit(relax.op.permute_dims(x, [1, 0, 2]), "steps") if batch_first else x
    x = node.emit(relax.op.flip(x, 0), "reversed") if direction == "reverse" else x
    w, r, b = _weights(node, 2 if direction == "bidirectional" else 1)
    h0, c0 = (_state(node, i, len(w), r.shape[-1], batch_first=batch_first) for i in (5, 6))
    sequence, hidden, cell = emit.lstm(node.builder, node.name, x, w, r, b, h0, c0)
    if direction == "reverse":
        sequence = node.emit(relax.op.flip(sequence, 0), "sequence")
    if batch_first:
        sequence = node.emit(relax.op.permute_dims(sequence, [2, 0, 1, 3]), "sequence")
        hidden, cell = (node.emit(relax.op.permute_dims(s, [1, 0, 2]), part)
                        for s, part in ((hidden, "hidden"), (cell, "cell")))
    return sequence, hidden, cell


def _check_form(node: OnnxNode) -> None:
    if len(node.shape(0)) != 3:
        raise node.fault("the input is not a sequence of batches of vectors", found=node.shape(0))
    activations = [a.lower() for a in node.attribute("activations", ())]
    if any(a != _ACTIVATIONS[i % 3] for i, a in enumerate(activations)):
        raise node.unsupported(f"with the activations {activations}")
    if "clip" in node.attributes or node.attribute("input_forget", 0):
        raise node.unsupported("with clip or input_forget")
    if node.has(7) and node.known(7, "peepholes").any():
        raise node.unsupported("with peepholes")
    if node.has(4):
        lengths, steps = node.known(4, "sequence lengths"), node.shape(0)[1 if node.attribute("layout", 0) else 0]
        if (lengths != steps).any():
            raise node.unsupported("with sequences of different lengths")


def _weights(node: OnnxNode, directions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights and the sum of both biases, checked."""
    w, r = node.known(1, "weights"), node.known(2, "weights")
    hidden = r.shape[-1]
    if w.shape != (directions, 4 * hidden, node.shape(0)[2]) or r.shape != (directions, 4 * hidden, hidden):
        raise node.fault("the weights do not fit", found=(w.shape, r.shape),
                         expected=f"{directions} directions of 4 · hidden rows")
    if int(node.attribute("hidden_size", hidden)) != hidden:
        raise node.fault("hidden_size is not that of the weights", found=node.attribute("hidden_size"), expected=hidden)
    b = node.known(3, "a bias") if node.has(3) else np.zeros((directions, 8 * hidden), np.float32)
    if b.shape != (directions, 8 * hidden):
        raise node.fault("the bias does not fit", found=b.shape, expected=(directions, 8 * hidden))
    return w, r, b[:, :4 * hidden] + b[:, 4 * hidden:]


def _state(node: OnnxNode, index: int, directions: int, hidden: int, *, batch_first: bool) -> Expr:
    batch = node.shape(0)[0 if batch_first else 1]
    if not node.has(index):
        return node.constant(np.zeros((directions, batch, hidden), np.float32))
    expected = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    if node.shape(index) != expected:
        raise node.fault("an initial state does not fit", found=node.shape(index), expected=expected)
    value = node.value(index)
    if not batch_first:
        return node.constant(value)
    if isinstance(value, np.ndarray):
        return node.constant(value.transpose(1, 0, 2))
    return node.emit(relax.op.permute_dims(value, [1, 0, 2]), "state")
