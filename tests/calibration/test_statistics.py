from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.calibration.statistics import HALF_BINS, Statistics, TensorStatistics
from narrowcast.errors import DataError

CHUNKS = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(-20, 20)), min_size=1,
                  max_size=6)


def chunk(seed: int, rows: int, exponent: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, 3)) * 2.0**exponent).astype(np.float32)


def assert_same(a: TensorStatistics, b: TensorStatistics) -> None:
    assert (a.count, a.minimum, a.maximum, a.exponent) == (b.count, b.minimum, b.maximum, b.exponent)
    np.testing.assert_array_equal(a.histogram, b.histogram)
    np.testing.assert_array_equal(a.channel_absmax, b.channel_absmax)


@settings(max_examples=20, deadline=None)
@given(CHUNKS)
def test_streaming_merging_and_all_at_once_agree_exactly(parts: list[tuple[int, int, int]]) -> None:
    arrays = [chunk(*p) for p in parts]
    whole = TensorStatistics.of("x", np.concatenate(arrays))
    forward, backward, halves = Statistics(), Statistics(), Statistics()
    for array in arrays:
        forward.observe("x", array)
    for array in reversed(arrays):
        other = Statistics()
        other.observe("x", torch.from_numpy(array))
        backward.merge(other)
    for half in (arrays[::2], arrays[1::2]):
        if half:
            halves.observe("x", np.concatenate(half))
    for streamed in (forward, backward, halves):
        assert_same(streamed["x"], whole)
        assert streamed["x"].std == pytest.approx(whole.std, rel=1e-9)


def test_describes_the_data() -> None:
    x = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    found = TensorStatistics.of("x", x)
    assert (found.count, found.minimum, found.maximum) == (350, x.min(), x.max())
    assert found.histogram.sum() == 350 and found.histogram.shape == (2 * HALF_BINS,)
    np.testing.assert_array_equal(found.channel_absmax, np.abs(x).max(axis=0))
    assert found.mean == pytest.approx(x.mean(dtype=np.float64))
    assert found.std == pytest.approx(x.std(dtype=np.float64))
    centres, counts = found.occupied()
    exact = np.bincount(np.floor(x / found.bin_width).astype(int).ravel() + HALF_BINS, minlength=2 * HALF_BINS)
    np.testing.assert_array_equal(counts, exact[exact > 0])
    assert centres.min() >= x.min() and centres.max() <= x.max()


def test_zeros_then_values() -> None:
    streamed = Statistics()
    streamed.observe("x", np.zeros((4, 2), np.float32))
    streamed.observe("x", np.float32([[1e-30, -3e30]]))
    found = streamed["x"]
    assert found.histogram.sum() == 10 and found.histogram[HALF_BINS] == 9
    assert found.absmax == np.float32(3e30)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_name_the_tensor(bad: float) -> None:
    x = np.zeros((3, 3), np.float32)
    x[1, 1] = bad
    with pytest.raises(DataError, match=r"(?s)layer3\.conv.*not finite.*of 9 values"):
        Statistics().observe("layer3.conv", x)


def test_empty_arrays_are_refused() -> None:
    with pytest.raises(DataError, match="no values"):
        TensorStatistics.of("x", np.zeros((0, 3), np.float32))


def test_a_last_axis_of_changing_extent_counts_as_one_channel() -> None:
    streamed = Statistics()
    for values in ([[1, -5, 2]], [[3, 1, 4, 0]], [[0, 6, 0]]):
        streamed.observe("x", np.array(values, np.float32))
    assert streamed["x"].channel_absmax.tolist() == [6.0] and streamed["x"].count == 10
