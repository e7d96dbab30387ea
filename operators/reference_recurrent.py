"""Reference semantics of the recurrent layers, step by step. How states and inputs are multiplied with weights is open,
so that layers of lower precision are the same code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn import functional
from tvm import relax

from .recurrent import GATES, Activation, Recurrence, operands_of, recurrence_of
from .semantics import Semantics

Tensors = Mapping[str, torch.Tensor]
# A step of a cell: from the gates' products with the input, the hidden and the cell state to the following states.
Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Products(Protocol):
    """How one direction multiplies with its weights w and r."""

    def of_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """``x · wᵀ`` [..., gates·hidden] of inputs [..., input]."""

    def of_states(self, h: torch.Tensor, rows: slice) -> torch.Tensor:
        """``h · r[rows]ᵀ`` [batch, rows] of states [batch, state]."""


@dataclass(frozen=True)
class ExactProducts:
    """Products with weights as they are."""

    w: torch.Tensor
    r: torch.Tensor

    def of_inputs(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.w.T)

    def of_states(self, h: torch.Tensor, rows: slice) -> torch.Tensor:
        return torch.matmul(h, self.r[rows].T)


ACTIVATIONS: dict[str, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, beta: functional.elu(x, alpha),
    "hardsigmoid": lambda x, alpha, beta: (alpha * x + beta).clamp(0, 1),
    "leakyrelu": lambda x, alpha, beta: functional.leaky_relu(x, alpha),
    "relu": lambda x, alpha, beta: torch.relu(x),
    "scaledtanh": lambda x, alpha, beta: alpha * torch.tanh(beta * x),
    "sigmoid": lambda x, alpha, beta: torch.sigmoid(x),
    "softplus": lambda x, alpha, beta: functional.softplus(x, threshold=torch.inf),
    "softsign": lambda x, alpha, beta: functional.softsign(x),
    "tanh": lambda x, alpha, beta: torch.tanh(x),
    "thresholdedrelu": lambda x, alpha, beta: torch.where(x > alpha, x, torch.zeros_like(x)),
}


def _layer(args: Sequence[Any], call: relax.Call) -> tuple[torch.Tensor, ...]:
    tensors: dict[str, torch.Tensor] = dict(zip(operands_of(call), args, strict=True))
    return evaluate_layer(recurrence_of(call), tensors, [ExactProducts(*wr) for wr in zip(tensors["w"], tensors["r"],
                                                                                        strict=True)])


def evaluate_layer(form: Recurrence, tensors: Tensors, products: Sequence[Products]) -> tuple[torch.Tensor, ...]:
    """The results of a layer on operands by name, multiplied by ``products``, one a direction; the rest of its
    arithmetic is that of the operands' type."""
    results = [_direction(form, d, {name: t if name in ("x", "lengths") else t[d] for name, t in tensors.items()}, own)
               for d, own in enumerate(products)]
    states, hidden, cells = (list(values) for values in zip(*results, strict=True))
    outputs = (torch.stack(states, dim=1), torch.stack(hidden), torch.stack(cells))
    return outputs if form.cell == "lstm" else outputs[:2]


def _direction(form: Recurrence, direction: int, own: Tensors,
               multiply: Products) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All hidden states, the last one and the last cell state of one direction."""
    x = own["x"]
    order = _order(own, form.is_backward(direction))
    ordered = x.gather(0, order[..., None].expand(x.shape))
    step = _STEPS[form.cell](form, direction, own, multiply)
    biases = own["b"].chunk(2)[0] if "b" in own else x.new_zeros(())
    products = multiply.of_inputs(ordered) + biases
    batch, hidden, state = x.shape[1], own["w"].shape[0] // form.gates, own["r"].shape[1]
    h = own["h0"] if "h0" in own else x.new_zeros(batch, state)
    c = own["c0"] if "c0" in own else x.new_zeros(batch, hidden)
    states = [x.new_zeros(0, batch, state)]
    for index in range(x.shape[0]):
        following, cell = step(products[index], h, c)
        alive = index < own["lengths"][:, None] if "lengths" in own else torch.ones((), dtype=torch.bool)
        h, c = torch.where(alive, following, h), torch.where(alive, cell, c)
        states.append(torch.where(alive, following, torch.zeros_like(following))[None])
    if "lengths" in own:
        h, c = (torch.where(own["lengths"][:, None] > 0, s, torch.zeros_like(s)) for s in (h, c))
    sequence = torch.cat(states)
    return sequence.gather(0, order[..., None].expand(sequence.shape)), h, c


def _order(own: Tensors, backward: bool) -> torch.Tensor:
    """[steps, batch]: which step of the sequence is read (and written) when."""
    steps, batch = own["x"].shape[:2]
    forward = torch.arange(steps)[:, None].expand(steps, batch)
    if not backward:
        return forward
    lengths = own["lengths"].clamp(0, steps) if "lengths" in own else torch.full((batch,), steps)
    return torch.where(forward < lengths, lengths - 1 - forward, forward).long()


def _activation(form: Recurrence, activation: Activation) -> Callable[[torch.Tensor], torch.Tensor]:
    function = ACTIVATIONS[activation.name]
    if form.clip is None:
        return lambda x: function(x, activation.alpha, activation.beta)
    return lambda x: function(x.clamp(-form.clip, form.clip), activation.alpha, activation.beta)  # type: ignore[operator]


def _recurrent_bias(own: Tensors) -> torch.Tensor:
    return own["b"].chunk(2)[1] if "b" in own else own["r"].new_zeros(own["r"].shape[0])


def _lstm(form: Recurrence, direction: int, own: Tensors, multiply: Products) -> Step:
    *gates, last = form.activations_of(direction)
    gate, candidate = (_activation(form, a) for a in gates)
    output = _activation(replace(form, clip=None), last)
    bias = _recurrent_bias(own)
    hidden = own["w"].shape[0] // form.gates
    seen_i, seen_o, seen_f = own.get("peepholes", bias.new_zeros(3 * hidden)).chunk(3)

    def step(products: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, o, f, g = (products + multiply.of_states(h, slice(None)) + bias).chunk(4, dim=-1)
        i = gate(i + seen_i * c)
        f = 1 - i if form.input_forget else gate(f + seen_f * c)
        c = f * c + i * candidate(g)
        h = gate(o + seen_o * c) * output(c)
        return (torch.matmul(h, own["projection"].T) if "projection" in own else h), c

    return step


def _gru(form: Recurrence, direction: int, own: Tensors, multiply: Products) -> Step:
    gate, candidate = (_activation(form, a) for a in form.activations_of(direction))
    hidden, biases = own["w"].shape[0] // form.gates, _recurrent_bias(own).chunk(3)
    gates, last = slice(2 * hidden), slice(2 * hidden, 3 * hidden)

    def step(products: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = products.chunk(3, dim=-1)
        sums = multiply.of_states(h, gates).chunk(2, dim=-1)
        z, r = (gate(p + s + b) for p, s, b in zip(parts[:2], sums, biases, strict=False))
        if form.linear_before_reset:
            seen = r * (multiply.of_states(h, last) + biases[2])
        else:
            seen = multiply.of_states(r * h, last) + biases[2]
        return (1 - z) * candidate(parts[2] + seen) + z * h, c

    return step


def _rnn(form: Recurrence, direction: int, own: Tensors, multiply: Products) -> Step:
    activation, bias = _activation(form, form.activations_of(direction)[0]), _recurrent_bias(own)
    return lambda products, h, c: (activation(products + multiply.of_states(h, slice(None)) + bias), c)


_STEPS: dict[str, Callable[[Recurrence, int, Tensors, Products], Step]] = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}

TABLE: dict[str, Semantics] = {f"narrowcast.{cell}": _layer for cell in GATES}
