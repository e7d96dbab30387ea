"""Recurrent layers kept whole by ``torch.export``, so that the number of their steps may be dynamic.

PyTorch takes its own operators apart step by step while it traces them, which fixes the number of steps. Meanwhile
calls of them become calls of operators of our own, which PyTorch knows by the shapes of their results only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...errors import ImportModelError

NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_PARAMETERS = ("Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
               "bool batch_first")
# Keeps the definitions alive.
_LIBRARY = torch.library.Library("narrowcast", "FRAGMENT")


def _results(x: torch.Tensor, states: torch.Tensor | Sequence[torch.Tensor], params: Sequence[torch.Tensor],
             has_biases: bool, layers: int, dropout: float, train: bool, bidirectional: bool,
             batch_first: bool) -> tuple[torch.Tensor, ...]:
    """Tensors of the results' shapes: the sequence, and the last states."""
    last = [states] if isinstance(states, torch.Tensor) else list(states)
    width = last[0].shape[-1] * (2 if bidirectional else 1)
    return (x.new_empty((*x.shape[:2], width)), *(s.new_empty(s.shape) for s in last))


def _define(name: str) -> torch._ops.OpOverload:
    states, results = ("Tensor[]", 3) if name == "lstm" else ("Tensor", 2)
    _LIBRARY.define(f"{name}(Tensor input, {states} hx, {_PARAMETERS}) -> ({', '.join(['Tensor'] * results)})")
    _LIBRARY.impl(name, getattr(torch, name), "CompositeExplicitAutograd")
    torch.library.register_fake(f"narrowcast::{name}", _results, lib=_LIBRARY)
    return getattr(torch.ops.narrowcast, name).default


_KEPT: dict[Any, torch._ops.OpOverload] = {getattr(torch._VF, name): _define(name) for name in NAMES}


class WholeRecurrentLayers(TorchFunctionMode):
    """While it is entered, recurrent layers are calls of ``torch.ops.narrowcast``. ImportModelError for packed
    sequences, which PyTorch cannot export."""

    def __torch_function__(self, func: Callable[..., Any], types: object, args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is torch._VF._pack_padded_sequence:
            raise ImportModelError("a packed sequence has no translation: its size depends on the data",
                                   hint="pass the padded tensor to the recurrent layer")
        return _KEPT.get(func, func)(*args, **(kwargs or {}))
