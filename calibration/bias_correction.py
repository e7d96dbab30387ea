"""Bias correction: the mean error that INT8 rounding leaves in each output channel, measured and added back.

Rounding weights and clipping activations shifts the mean of a channel; the shift is the same for all inputs, so a
constant undoes it (Nagel et al. 2019, Data-Free Quantization Through Weight Equalization and Bias Correction). It is
measured on FP32 inputs, each group by itself, so that it holds whatever the other groups compute in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ..precision import Precision, QParams, Storage
from .evaluator import Evaluator, Inputs
from .numerics import Stored, as_stored

Progress = Callable[[int, int], None]


@torch.no_grad()
def estimate_corrections(
    evaluator: Evaluator, samples: Sequence[Inputs], qparams: Mapping[str, QParams], *, per_channel: bool = True,
    progress: Progress | None = None,
) -> dict[str, tuple[float, ...]]:
    """What every group with constant weights has to add per output channel when it computes in INT8.

    qparams : the u8 parameters by tensor; groups whose data has none are left out.
    per_channel : whether INT8 weights have a scale per output channel.

    Returns float32 values by group name, in the units of the group's result before its epilogue.
    """
    programs = [p for p in evaluator.programs.values() if p.weight is not None
                and all(p.group.inputs[i] in qparams for i in p.group.exact_inputs)]
    totals: dict[str, torch.Tensor] = {}
    for done, sample in enumerate(samples, 1):
        evaluation = evaluator.evaluate(sample)
        values = evaluation.values
        for program in programs:
            group = program.group
            exact = [as_stored(values[name]) for name in group.inputs]
            stored = [Stored.of(values[name], Storage("uint8", qparams[name])) if i in group.exact_inputs else exact[i]
                      for i, name in enumerate(group.inputs)]
            error = program.at(evaluation.extents).anchor_error(exact, stored, Precision.INT8, per_channel=per_channel)
            totals[group.name] = totals.get(group.name, torch.zeros(())) + error.double()
        if progress is not None:
            progress(done, len(samples))
    return {name: tuple((total / len(samples)).float().tolist()) for name, total in totals.items()}
