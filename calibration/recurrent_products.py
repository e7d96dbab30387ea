"""How recurrent layers multiply below FP32, as their kernel does (docs/design.md, "Numerics"): the sequence and the
weights are rounded once, the state at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..operators.quantization import LEAST_STATE, STATE_LEVELS

_EXACT_IN_FLOAT32 = 2**24
_LARGEST_FACTOR = 255
_BFLOAT16_SPACING = 2.0**-7  # the distance of neighbours, relative, at most


@dataclass(frozen=True)
class Rounding:
    """How a state is rounded.

    flips : decides for each element whether it is rounded up or down; None: to nearest even. All results are equally
        legitimate where a state lies between two values, as far as its own rounding errors tell.
    """

    flips: torch.Generator | None = None

    def shift(self, values: torch.Tensor) -> torch.Tensor:
        """What is added to values, in steps, before they are rounded to nearest."""
        if self.flips is None:
            return torch.zeros_like(values)
        return torch.randint(0, 2, values.shape, generator=self.flips).to(values.dtype) - 0.5


@dataclass(frozen=True)
class RoundedProducts:
    """Products of one direction in bfloat16, accumulated in float32; ``w`` and ``r`` are rounded already."""

    w: torch.Tensor
    r: torch.Tensor
    rounding: Rounding = Rounding()

    def of_inputs(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.w.T)

    def of_states(self, h: torch.Tensor, rows: slice) -> torch.Tensor:
        shifted = h * (1 + self.rounding.shift(h) * _BFLOAT16_SPACING)
        return torch.matmul(shifted.bfloat16().float(), self.r[rows].T)


@dataclass(frozen=True)
class IntegerProducts:
    """Products of one direction in INT8: exact sums of levels, scaled in float32. A state has the symmetric scale
    ``absmax / 127`` of its sample at its step.

    w, r : levels as float32 [rows, depth]; w_units, r_units : what a level's product is worth [rows], the sequence's
    scale included.
    """

    w: torch.Tensor
    w_units: torch.Tensor
    r: torch.Tensor
    r_units: torch.Tensor
    rounding: Rounding = Rounding()

    @classmethod
    def of(cls, w: Sequence[np.ndarray], r: Sequence[np.ndarray], x_scale: float,
           rounding: Rounding) -> IntegerProducts:
        """From (levels, scales) of both weights, of one direction."""
        (w_levels, w_units), (r_levels, r_units) = (map(torch.from_numpy, pair) for pair in (w, r))
        return cls(w_levels.float(), w_units * x_scale, r_levels.float(), r_units, rounding)

    def of_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` holds levels without their zero point."""
        return _exact_product(x, self.w) * self.w_units

    def of_states(self, h: torch.Tensor, rows: slice) -> torch.Tensor:
        largest = h.abs().amax(dim=-1, keepdim=True).clamp_min(LEAST_STATE)
        levels = torch.round(h * (STATE_LEVELS / largest) + self.rounding.shift(h))
        return _exact_product(levels, self.r[rows]) * (self.r_units[rows] * (largest * (1.0 / STATE_LEVELS)))


def _exact_product(levels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``levels · weightsᵀ`` of integers, rounded once to float32."""
    if weights.shape[1] * _LARGEST_FACTOR * 128 < _EXACT_IN_FLOAT32:
        return torch.matmul(levels, weights.T)
    return torch.matmul(levels.double(), weights.double().T).float()
