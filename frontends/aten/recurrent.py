"""Recurrent layers of ATen: the LSTM becomes ``narrowcast.lstm``; others are unrolled by PyTorch's decompositions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ...ir import Expr
from .. import emit
from .context import Context, Handler, Value, shape
from .movement import permuted, sliced

_op = relax.op


def lstm(c: Context, x: Value, state: Sequence[Value], weights: Sequence[Value], has_biases: bool, layers: int,
         dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> Value:
    """All layers of an ``nn.LSTM``: the sequence of outputs, the last hidden and the last cell states."""
    if not isinstance(state, (list, tuple)) or not isinstance(has_biases, bool):
        raise c.refuse("an LSTM over a packed sequence has no translation", hint="pass a padded tensor")
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    if len(weights) != layers * directions * each:
        raise c.refuse("an LSTM with a projection has no translation", hint="use proj_size=0")
    sequence = permuted(c, x, [1, 0, 2], "input") if batch_first else c.expr(x)
    hidden, cells = [], []
    for layer in range(layers):
        own = weights[layer * directions * each:(layer + 1) * directions * each]
        w, r, b = _packed(c, own, each)
        start = layer * directions
        h0, c0 = (sliced(c, s, 0, start, start + directions, part=part)
                  for s, part in zip(state, ("h0", "c0"), strict=True))
        outputs, h, cell = emit.lstm(c.builder, c.name, sequence, w, r, b, h0, c0)
        sequence = _joined_directions(c, outputs)
        hidden.append(h)
        cells.append(cell)
    result = permuted(c, sequence, [1, 0, 2], "output") if batch_first else sequence
    return result, _stacked(c, hidden, "hidden"), _stacked(c, cells, "cell")


def _packed(c: Context, weights: Sequence[Value], each: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights of one layer in ONNX's layout: [directions, 4·hidden, …], gates i, o, f, c."""
    arrays = [c.array(w, "an LSTM's weight") for w in weights]
    groups = [arrays[i:i + each] for i in range(0, len(arrays), each)]
    w, r = (np.stack([_reordered(g[i]) for g in groups]) for i in (0, 1))
    if each == 2:
        return w, r, np.zeros(w.shape[:2], np.float32)
    biases = [g[2].astype(np.float64) + g[3].astype(np.float64) for g in groups]
    return w, r, np.stack([_reordered(b) for b in biases])


def _reordered(gates: np.ndarray) -> np.ndarray:
    """PyTorch's gates i, f, g, o in the order i, o, f, c."""
    i, f, g, o = np.split(gates, 4)
    return np.concatenate([i, o, f, g])


def _joined_directions(c: Context, outputs: Expr) -> Expr:
    """[steps, directions, batch, hidden] as [steps, batch, directions · hidden]."""
    steps, directions, batch, hidden = shape(outputs)
    if directions == 1:
        return c.emit(_op.squeeze(outputs, 1), "joined")
    swapped = c.emit(_op.permute_dims(outputs, [0, 2, 1, 3]), "swapped")
    return c.emit(_op.reshape(swapped, (steps, batch, directions * hidden)), "joined")


def _stacked(c: Context, states: Sequence[Expr], part: str) -> Expr:
    return states[0] if len(states) == 1 else c.emit(_op.concat(list(states), axis=0), part)


TABLE: dict[str, Handler] = {"lstm": lstm}
