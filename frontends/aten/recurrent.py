"""Recurrent layers of ATen, which become those of ``operators.recurrent``, one for each layer of a stack. Cells, single
steps, are taken apart by PyTorch's decompositions: their products are linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import relax

from ...ir import Expr, constant, dims_of
from ...operators.recurrent import Activation, Recurrence
from .. import emit
from .context import Context, Handler, Value
from .movement import permuted
from .slicing import sliced

_op = relax.op
# PyTorch's gates (i, f, g, o of an LSTM; r, z, n of a GRU) in ONNX's order.
_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
# Names of one direction's parameters, in PyTorch's order; a layer may lack the biases or the projection.
_PARAMETERS = ("w", "r", "b_ih", "b_hh", "projection")


@dataclass(frozen=True)
class _Stack:
    """How the parameters of a stack of layers are listed: ``names`` for every direction of every layer."""

    form: Recurrence
    names: tuple[str, ...]
    weights: Sequence[Value]
    layers: int

    def operands(self, c: Context, layer: int) -> dict[str, Expr]:
        """The constant operands of one layer."""
        directions, each = self.form.directions, len(self.names)
        own = self.weights[layer * directions * each:(layer + 1) * directions * each]
        arrays = [c.array(w, "a recurrent layer's weight") for w in own]
        by_name = {n: [arrays[d * each + i] for d in range(directions)] for i, n in enumerate(self.names)}
        operands = {n: np.stack([self._reordered(a) for a in by_name[n]]) for n in ("w", "r")}
        if "b_ih" in by_name:
            pairs = zip(by_name["b_ih"], by_name["b_hh"], strict=True)
            operands["b"] = np.stack([np.concatenate([self._reordered(a) for a in pair]) for pair in pairs])
        if "projection" in by_name:
            operands["projection"] = np.stack(by_name["projection"])
        return {n: constant(a) for n, a in operands.items()}

    def _reordered(self, gates: np.ndarray) -> np.ndarray:
        parts = np.split(gates, self.form.gates)
        return np.concatenate([parts[i] for i in _ORDERS[self.form.cell]])


def _layers(c: Context, x: Value, states: dict[str, Value], stack: _Stack, *, batch_first: bool) -> Value:
    """The sequence of outputs and the last states of all layers; each layer reads the sequence before it."""
    form = stack.form
    sequence = permuted(c, x, [1, 0, 2], "input") if batch_first else c.expr(x)
    last: list[list[Expr]] = [[] for _ in states]
    for layer in range(stack.layers):
        start = layer * form.directions
        own = {n: sliced(c, s, 0, start, start + form.directions, part=n) for n, s in states.items()}
        outputs, *ends = emit.recurrent(c.builder, c.name, form, x=sequence, **stack.operands(c, layer), **own)
        sequence = _joined_directions(c, outputs)
        for found, end in zip(last, ends, strict=True):
            found.append(end)
    sequence = permuted(c, sequence, [1, 0, 2], "output") if batch_first else sequence
    return (sequence, *(_stacked(c, found, part) for found, part in zip(last, ("hidden", "cell"), strict=False)))


def _stack_of(c: Context, form: Recurrence, weights: Sequence[Value], layers: int, *, has_biases: bool,
              dropout: float, train: bool) -> _Stack:
    if train and dropout > 0:
        raise c.refuse("dropout between the layers has no translation", hint="export the module in eval() mode")
    names = _PARAMETERS[:4] if has_biases else _PARAMETERS[:2]
    if len(weights) == layers * form.directions * (len(names) + 1):
        names = (*names, "projection")
    return _Stack(form, names, weights, layers)


def lstm(c: Context, x: Value, state: Sequence[Value], weights: Sequence[Value], has_biases: bool, layers: int,
         dropout: float, train: bool, bidirectional: bool, batch_first: bool) -> Value:
    """All layers of an ``nn.LSTM``: the sequence of outputs, the last hidden and the last cell states."""
    form = Recurrence("lstm", 2 if bidirectional else 1)
    stack = _stack_of(c, form, weights, layers, has_biases=has_biases, dropout=dropout, train=train)
    return _layers(c, x, {"h0": state[0], "c0": state[1]}, stack, batch_first=batch_first)


def _with_one_state(cell: str, activation: str, c: Context, x: Value, state: Value, weights: Sequence[Value],
                    has_biases: bool, layers: int, dropout: float, train: bool, bidirectional: bool,
                    batch_first: bool) -> Value:
    """All layers of an ``nn.GRU`` or ``nn.RNN``: the sequence of outputs and the last hidden states."""
    directions = 2 if bidirectional else 1
    activations = (Activation(activation),) * directions if cell == "rnn" else ()
    form = Recurrence(cell, directions, activations, linear_before_reset=cell == "gru")
    stack = _stack_of(c, form, weights, layers, has_biases=has_biases, dropout=dropout, train=train)
    return _layers(c, x, {"h0": state}, stack, batch_first=batch_first)


def _joined_directions(c: Context, outputs: Expr) -> Expr:
    """[steps, directions, batch, state] as [steps, batch, directions · state]."""
    steps, directions, batch, state = dims_of(outputs)
    if directions == 1:
        return c.emit(_op.squeeze(outputs, 1), "joined")
    swapped = c.emit(_op.permute_dims(outputs, [0, 2, 1, 3]), "swapped")
    return c.emit(_op.reshape(swapped, (steps, batch, directions * state)), "joined")


def _stacked(c: Context, states: Sequence[Expr], part: str) -> Expr:
    return states[0] if len(states) == 1 else c.emit(_op.concat(list(states), axis=0), part)


def _packed(c: Context, *arguments: Value) -> Value:
    raise c.refuse("a recurrent layer over a packed sequence has no translation", hint="pass the padded tensor")


_HANDLERS: dict[str, Handler] = {
    "lstm": lstm,
    "gru": partial(_with_one_state, "gru", "tanh"),
    "rnn_tanh": partial(_with_one_state, "rnn", "tanh"),
    "rnn_relu": partial(_with_one_state, "rnn", "relu"),
}
TABLE: dict[str, Handler] = {
    **{f"{name}.input": handler for name, handler in _HANDLERS.items()},
    **{f"narrowcast.{name}": handler for name, handler in _HANDLERS.items()},  # see recurrent_export
    **{f"{name}.data": _packed for name in _HANDLERS},
}
