"""Streaming statistics of a network's tensors: bounded memory, mergeable, the same in whatever order data arrive.

The histogram's bins are ``[i * w, (i + 1) * w)`` for i in -H…H-1 with a width w that is a power of two, always the
smallest that holds the data. Where larger values arrive w is doubled and neighbouring bins are added; since
``floor(floor(x / w) / 2) = floor(x / 2w)``, growing and merging give exactly the counts that the final width would
have given from the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import DataError

HALF_BINS = 4096
_SMALLEST_EXPONENT = -140  # of the bin width, where data are all zero or denormal


@dataclass(frozen=True)
class TensorStatistics:
    """What is known of the values of one tensor.

    name : the tensor's name.
    count : number of elements seen; 0 makes everything else meaningless.
    minimum, maximum : their range.
    exponent : the histogram's bin width is ``2 ** exponent``.
    histogram : int64 [2 * HALF_BINS], the counts of the bins in ascending order.
    channel_absmax : float32 [last axis], the largest magnitude per channel; [1], of all, where the last axis is a
        symbolic dim, whose extent changes between samples.
    total, total_squares : sums, float64, for the mean and the standard deviation.
    """

    name: str
    count: int
    minimum: float
    maximum: float
    exponent: int
    histogram: np.ndarray
    channel_absmax: np.ndarray
    total: float
    total_squares: float

    @classmethod
    def of(cls, name: str, values: torch.Tensor | np.ndarray) -> TensorStatistics:
        """The statistics of one array [..., channels] of floats; DataError, naming the tensor, for NaN or infinity
        and for an empty array."""
        array = np.asarray(values.detach() if isinstance(values, torch.Tensor) else values, dtype=np.float32)
        if array.size == 0:
            raise DataError("there are no values to take statistics of", layer=name, found=array.shape)
        low, high = float(array.min()), float(array.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise DataError("the values are not finite", layer=name, found=_describe_non_finite(array),
                            hint="look for NaN or infinity in the data, or for an overflow in the layer's inputs")
        exponent = _exponent_for(max(abs(low), abs(high)))
        bins = np.floor(array.ravel() * np.float64(2.0) ** -exponent).astype(np.int64) + HALF_BINS
        channels = array.reshape(-1, array.shape[-1] if array.ndim else 1)
        wide = array.astype(np.float64)
        return cls(name=name, count=array.size, minimum=low, maximum=high, exponent=exponent,
                   histogram=np.bincount(bins, minlength=2 * HALF_BINS),
                   channel_absmax=np.abs(channels).max(axis=0), total=float(wide.sum()),
                   total_squares=float(np.square(wide).sum()))

    def merged(self, other: TensorStatistics) -> TensorStatistics:
        """The statistics of the values of both."""
        channels = (self.channel_absmax, other.channel_absmax)
        if channels[0].shape != channels[1].shape:
            channels = (channels[0].max(keepdims=True), channels[1].max(keepdims=True))
        exponent = max(self.exponent, other.exponent)
        return TensorStatistics(
            name=self.name, count=self.count + other.count, minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum), exponent=exponent,
            histogram=_widened(self, exponent) + _widened(other, exponent),
            channel_absmax=np.maximum(*channels),
            total=self.total + other.total, total_squares=self.total_squares + other.total_squares)

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def std(self) -> float:
        """The standard deviation of all elements seen."""
        return math.sqrt(max(self.total_squares / self.count - self.mean**2, 0.0))

    @property
    def absmax(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def bin_width(self) -> float:
        return 2.0**self.exponent

    def occupied(self) -> tuple[np.ndarray, np.ndarray]:
        """Centres (float64) and counts of the bins that are not empty; the centres stay inside the range seen, and
        where the bin that begins at 0 holds nothing but zeros its centre is 0."""
        index = np.flatnonzero(self.histogram)
        centres = (index - HALF_BINS + 0.5) * self.bin_width
        return np.clip(centres, self.minimum, self.maximum), self.histogram[index]


def _describe_non_finite(array: np.ndarray) -> str:
    return f"{int(np.isnan(array).sum())} NaN and {int(np.isinf(array).sum())} infinite of {array.size} values"


def _exponent_for(absmax: float) -> int:
    """The smallest exponent e with ``absmax < HALF_BINS * 2**e``."""
    _, exponent = math.frexp(absmax)
    return max(exponent - HALF_BINS.bit_length() + 1, _SMALLEST_EXPONENT)


def _widened(statistics: TensorStatistics, exponent: int) -> np.ndarray:
    shift = min(exponent - statistics.exponent, 62)
    if shift == 0:
        return statistics.histogram
    index = np.flatnonzero(statistics.histogram)
    wider = np.zeros_like(statistics.histogram)
    np.add.at(wider, ((index - HALF_BINS) >> shift) + HALF_BINS, statistics.histogram[index])
    return wider


class Statistics(Mapping[str, TensorStatistics]):
    """The statistics of many tensors by name, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._tensors: dict[str, TensorStatistics] = {}

    def observe(self, name: str, values: torch.Tensor | np.ndarray) -> None:
        """Add the values of one tensor from one sample; DataError as ``TensorStatistics.of``."""
        self._add(TensorStatistics.of(name, values))

    def merge(self, other: Statistics) -> None:
        """Add everything that ``other`` has seen."""
        for statistics in other.values():
            self._add(statistics)

    def _add(self, statistics: TensorStatistics) -> None:
        known = self._tensors.get(statistics.name)
        self._tensors[statistics.name] = known.merged(statistics) if known else statistics

    def __getitem__(self, name: str) -> TensorStatistics:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
