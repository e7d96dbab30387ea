"""From statistics to quantization parameters: which range of a tensor the 256 levels cover.

Levels spent on rare large values are lost for the many small ones; values outside the range saturate. The
calibrators weigh this differently. ``MeanSquaredError`` is the default (``DEFAULT``): it minimises the very quantity
that the noise model of ``sensitivity.py`` propagates, and is never worse by it than the two others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

import numpy as np

from ..errors import DataError
from ..ir import MOVEMENT_KINDS, Group
from ..precision import QParams
from .statistics import TensorStatistics


class Calibrator(Protocol):
    """Chooses the affine u8 parameters of a tensor."""

    def __call__(self, statistics: TensorStatistics) -> QParams:
        """The parameters; the range they cover always contains 0."""
        ...


@dataclass(frozen=True)
class MinMax:
    """The whole range that was seen: nothing of the calibration data saturates."""

    def __call__(self, statistics: TensorStatistics) -> QParams:
        return QParams.from_range(statistics.minimum, statistics.maximum)


@dataclass(frozen=True)
class Percentile:
    """The range that holds ``p`` percent of the values, half of the rest cut off on each side.

    The bounds are resolved to a bin of the histogram. DataError unless 50 < p <= 100.
    """

    p: float = 99.99

    def __post_init__(self) -> None:
        if not 50 < self.p <= 100:
            raise DataError("an unusable percentile", found=self.p, expected="above 50, at most 100")

    def __call__(self, statistics: TensorStatistics) -> QParams:
        centres, counts = statistics.occupied()
        cumulative = np.cumsum(counts)
        tail = statistics.count * (100.0 - self.p) / 200.0
        bounds = np.array([np.searchsorted(cumulative, tail, side="right"),
                           np.searchsorted(cumulative, statistics.count - tail, side="left")])
        first, last = centres[np.minimum(bounds, len(centres) - 1)]
        low = max(first - statistics.bin_width / 2, statistics.minimum)
        high = min(last + statistics.bin_width / 2, statistics.maximum)
        return QParams.from_range(low, high)


@dataclass(frozen=True)
class MeanSquaredError:
    """The range with the least mean squared quantization error on the histogram.

    Both ends shrink together first, then each alone around the best, each over ``steps`` fractions of the range seen.
    The search covers the whole range, so the result is never worse than ``MinMax``.
    (Choukroun et al. 2019, Low-bit quantization of neural networks for efficient inference.)
    """

    steps: int = 24
    smallest: float = 0.05

    def __call__(self, statistics: TensorStatistics) -> QParams:
        low, high = min(statistics.minimum, 0.0), max(statistics.maximum, 0.0)
        fractions = np.geomspace(self.smallest, 1.0, self.steps)
        centres, counts = statistics.occupied()

        def best(ranges: list[tuple[float, float]]) -> tuple[float, float]:
            errors = [squared_error(QParams.from_range(*r), centres, counts) for r in ranges]
            return ranges[int(np.argmin(errors))]

        joint = best([(low * f, high * f) for f in fractions[::-1]])
        lower = best([joint, *((max(joint[0] * f, low), joint[1]) for f in (*fractions, *(1 / fractions)))])
        return QParams.from_range(*best([lower, *((lower[0], min(lower[1] * f, high))
                                                  for f in (*fractions, *(1 / fractions)))]))


def squared_error(qparams: QParams, values: np.ndarray, counts: np.ndarray | float = 1.0) -> float:
    """The sum of squared differences that storing ``values`` in u8 makes, weighted by ``counts``."""
    levels = np.clip(np.rint(values / qparams.scale) + qparams.zero_point, 0, 255)
    return float((counts * np.square((levels - qparams.zero_point) * qparams.scale - values)).sum())


DEFAULT: Calibrator = MeanSquaredError()


def calibrate(groups: Iterable[Group], statistics: Mapping[str, TensorStatistics],
              calibrator: Calibrator = DEFAULT, given: Mapping[str, QParams] | None = None) -> dict[str, QParams]:
    """The parameters of every tensor that has statistics, by name, such that movement groups can keep levels.

    given : parameters that a quantized model brings; they are kept.
    What a movement group with one input writes has its input's parameters. The inputs of one with several (concat)
    and its output share parameters where that makes no input's scale more than twice its own (one bit).
    """
    classes: dict[str, tuple[str, ...]] = {name: (name,) for name in statistics}
    fixed = given or {}
    chosen = {name: fixed[name] if name in fixed else calibrator(s) for name, s in statistics.items()}
    for group in groups:
        names = dict.fromkeys((*group.inputs, group.name))
        if group.kind not in MOVEMENT_KINDS or not all(n in statistics and n not in fixed for n in names):
            continue
        sources = tuple(dict.fromkeys(member for name in group.inputs for member in classes[name]))
        shared = calibrator(_together([statistics[s] for s in sources])) if len(sources) > 1 else chosen[sources[0]]
        if shared.scale <= 2 * min(chosen[n].scale for n in group.inputs):
            members = (*sources, group.name)
            for name in [n for n in statistics if n in members or set(classes[n]) & set(sources)]:
                classes[name], chosen[name] = sources, shared
    return chosen


def _together(statistics: list[TensorStatistics]) -> TensorStatistics:
    """The statistics of several tensors as if they were one, without channels."""
    plain = [replace(s, channel_absmax=np.array([s.absmax], np.float32)) for s in statistics]
    return reduce(lambda a, b: a.merged(b), plain)
