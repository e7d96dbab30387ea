"""Reference semantics of linear attention, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tvm import relax

from .linear_attention import NAME
from .semantics import Semantics


def _linear_attention(args: Sequence[Any], call: relax.Call) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, state, decay, rate = args
    group = q.shape[2] // k.shape[2]
    results = [q.new_zeros(q.shape[0], 0, q.shape[2], v.shape[3])]
    for t in range(q.shape[1]):
        state = state * decay[:, t, :, :, None]
        held = torch.einsum("bhkv,bhk->bhv", state, k[:, t]) if call.attrs["delta"] else 0.0
        written = rate[:, t, :, None] * (v[:, t] - held)
        state = state + k[:, t, :, :, None] * written[:, :, None, :]
        read = torch.einsum("bhkv,bhk->bhv", state.repeat_interleave(group, 1), q[:, t])
        results.append(read[:, None])
    return torch.cat(results, 1), state


TABLE: dict[str, Semantics] = {NAME: _linear_attention}
