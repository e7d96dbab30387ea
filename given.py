"""What a quantized model decides itself: the parameters of its tensors, and the groups that compute in INT8.

A group whose last op is ``narrowcast.fake_quantize`` computes a tensor that u8 storage holds exactly, with the
parameters of the model; what only moves such tensors as well. A group that multiplies nothing but such tensors and
weights on an INT8 grid has the model's values in integer arithmetic. Nothing is measured for these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .ir import COMPUTE_KINDS, MOVEMENT_KINDS, Constant, Group, constant_value, dims_of
from .operators.quantization import LONGEST_INT8_SUM, grid_of, weight_channel_axis, weight_scales
from .precision import QParams

# Reasons of decisions about groups that the model gives.
GIVEN_REASON = "INT8: given by the model"


@dataclass(frozen=True)
class Given:
    """What a grouped module gives.

    qparams : u8 parameters by tensor.
    groups : names of the groups that compute in INT8.
    reasons : why the other groups that multiply do not, one sentence each, by name; empty for a model that gives no
        parameters.
    """

    qparams: Mapping[str, QParams] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Given:
        """What the groups, in execution order, give."""
        qparams: dict[str, QParams] = {}
        for group in groups:
            found = _given_qparams(group, qparams)
            if found is not None:
                qparams[group.name] = found
        reasons = {g.name: _obstacle(g, qparams) for g in groups if g.kind in COMPUTE_KINDS} if qparams else {}
        integer = frozenset(name for name, reason in reasons.items() if not reason)
        return cls(qparams, integer, {name: reason for name, reason in reasons.items() if reason})


def _given_qparams(group: Group, known: Mapping[str, QParams]) -> QParams | None:
    if group.kind in MOVEMENT_KINDS:
        read = {known.get(name) for name in group.inputs}
        return read.pop() if len(read) == 1 else None
    grid = grid_of(group.bindings[-1].value)
    return grid.qparams if grid is not None else None


def _obstacle(group: Group, qparams: Mapping[str, QParams]) -> str:
    """Why a group that multiplies is not given as INT8; empty where it is."""
    if group.kind in ("attention", "recurrent"):
        return "the model leaves it in floating point"
    if not all(group.inputs[i] in qparams for i in group.exact_inputs):
        return "the model does not quantize what it multiplies"
    call = group.anchor.value
    if isinstance(call.args[1], Constant):
        weights = constant_value(call.args[1])
        rows = np.moveaxis(weights, weight_channel_axis(call), 0)
        rows = rows.reshape(len(rows), -1)
        if rows.shape[1] > LONGEST_INT8_SUM:
            return f"a sum of {rows.shape[1]} products does not fit 32 bits"
        return "" if weight_scales(rows) is not None else "its weights are not on a symmetric INT8 grid"
    terms = dims_of(call.args[0])[-1]
    if isinstance(terms, int) and terms > LONGEST_INT8_SUM:
        return f"a sum of {terms} products does not fit 32 bits"
    return ""
