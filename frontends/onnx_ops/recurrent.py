"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tvm import relax

from ...ir import Expr, constant, dims_of, is_static
from ...operators.recurrent import DEFAULT_ACTIVATIONS, Activation, Recurrence, expected_dims, misfit
from .. import emit
from .broadcasting import shape_text, stated
from .node import OnnxNode, Results, operator

# Operands by input; only an LSTM has the last two.
_INPUTS = ("x", "w", "r", "b", "lengths", "h0", "c0", "peepholes")
# The defaults of ONNX's own operators for alpha and beta, as many as each activation takes; None: it has none.
_PARAMETERS: dict[str, tuple[float | None, ...]] = {
    "affine": (1.0, 0.0), "elu": (1.0,), "hardsigmoid": (0.2, 0.5), "leakyrelu": (0.01,), "relu": (),
    "scaledtanh": (None, None), "sigmoid": (), "softplus": (), "softsign": (), "tanh": (), "thresholdedrelu": (1.0,),
}


@operator("LSTM", "GRU", "RNN")
def recurrent(node: OnnxNode) -> Results:
    """A layer over a whole sequence; with ``layout`` 1 the batch comes first, which transposes what goes in and out."""
    form, batch_first = _form(node), bool(node.attribute("layout", 0))
    operands = {name: _operand(node, i, name, batch_first=batch_first)
                for i, name in enumerate(_INPUTS) if node.has(i) and not _is_full_length(node, name)}
    for name in ("x", "w", "r"):
        if name not in operands or len(dims_of(operands[name])) != 3:
            raise node.fault(f"the operand {name} has to have 3 dimensions", expected="X, W and R")
        if name != "x" and not is_static(operands[name]):
            raise node.unsupported("with weights of unknown extents")
    hidden = dims_of(operands["r"])[2]
    if node.attribute("hidden_size", hidden) != hidden:
        raise node.fault("hidden_size is not that of the weights", found=node.attribute("hidden_size"), expected=hidden)
    for name, dims in expected_dims(form, operands).items():
        if name in operands and len(dims_of(operands[name])) == len(dims):
            operands[name] = stated(node, operands[name], dims, f"the operand {name} does not fit the others")
    if wrong := misfit(form, operands):
        raise node.fault(f"the operand {wrong[0]} does not fit the others", found=wrong[1], expected=wrong[2])
    results = emit.recurrent(node.builder, node.name, form, **operands)
    if not batch_first:
        return results
    sequence = node.emit(relax.op.permute_dims(results[0], [2, 0, 1, 3]), "sequence")
    return (sequence, *(node.emit(relax.op.permute_dims(r, [1, 0, 2]), "state") for r in results[1:]))


def _form(node: OnnxNode) -> Recurrence:
    cell, direction = node.op.lower(), node.attribute("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.fault("the direction is unknown", found=direction)
    directions = 2 if direction == "bidirectional" else 1
    return Recurrence(
        cell, directions,
        activations=_activations(node, directions * len(DEFAULT_ACTIVATIONS[cell])),
        reverse=direction == "reverse",
        clip=node.attribute("clip"),
        input_forget=bool(node.attribute("input_forget", 0)),
        linear_before_reset=bool(node.attribute("linear_before_reset", 0)),
    )


def _activations(node: OnnxNode, count: int) -> tuple[Activation, ...]:
    """The activations that are named, with their alphas and betas; none: the defaults."""
    names = [str(a).lower() for a in node.attribute("activations", ())]
    if not names:
        return ()
    if len(names) != count:
        raise node.fault("the number of activations is wrong", found=len(names), expected=count)
    if unknown := [a for a in names if a not in _PARAMETERS]:
        raise node.fault("an activation is unknown", found=unknown, expected=", ".join(_PARAMETERS))
    given = tuple(iter(node.attribute(f"activation_{p}", ())) for p in ("alpha", "beta"))
    return tuple(Activation(name, *_parameters(node, name, given)) for name in names)


def _parameters(node: OnnxNode, name: str, given: tuple[Iterator[float], ...]) -> list[float]:
    """Alpha and beta of an activation: the next ones of the attributes, which list only those that are needed."""
    found = [next(values, default) for values, default in zip(given, _PARAMETERS[name], strict=False)]
    if None in found:
        raise node.fault("an activation lacks its alpha or beta", found=name)
    return [float(value) for value in found if value is not None]


def _is_full_length(node: OnnxNode, name: str) -> bool:
    """Whether the operand is the lengths of sequences that all have every step."""
    index = _INPUTS.index("lengths")
    steps = dims_of(node.expr(0))[1 if node.attribute("layout", 0) else 0]
    return (name == "lengths" and node.is_known(index) and isinstance(steps, int)
            and bool((node.known(index, name) == steps).all()))


def _operand(node: OnnxNode, index: int, name: str, *, batch_first: bool) -> Expr:
    if not batch_first or name not in ("x", "h0", "c0"):
        return node.expr(index)
    value = node.value(index)
    if node.rank(index) != 3:
        raise node.fault(f"the operand {name} has to have 3 dimensions", found=shape_text(node.dims(index)))
    if isinstance(value, np.ndarray):
        return constant(value.transpose(1, 0, 2).astype(np.float32))
    return node.emit(relax.op.permute_dims(value, [1, 0, 2]), name)
