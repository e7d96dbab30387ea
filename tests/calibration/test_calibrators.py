from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast.calibration.calibrators import (
    DEFAULT,
    Calibrator,
    MeanSquaredError,
    MinMax,
    Percentile,
    calibrate,
    squared_error,
)
from narrowcast.calibration.statistics import TensorStatistics
from narrowcast.errors import DataError
from narrowcast.ir import GraphBuilder, Group
from narrowcast.precision import QParams


def range_of(calibrator: Calibrator, values: np.ndarray) -> tuple[float, float]:
    q = calibrator(TensorStatistics.of("x", values))
    return -q.zero_point * q.scale, (255 - q.zero_point) * q.scale


def heavy_tailed(seed: int = 0, size: int = 20_000) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, size).astype(np.float32)


def test_min_max_covers_everything() -> None:
    x = heavy_tailed()
    low, high = range_of(MinMax(), x)
    step = (high - low) / 255
    assert low <= x.min() + step / 2 and high >= x.max() - step / 2
    assert range_of(MinMax(), np.abs(x))[0] == 0.0


def test_percentile_cuts_the_tails() -> None:
    x = np.arange(-5000, 5001, dtype=np.float32)
    low, high = range_of(Percentile(90.0), x)
    step, width = (high - low) / 255, TensorStatistics.of("x", x).bin_width
    assert low == pytest.approx(-4500, abs=step + width) and high == pytest.approx(4500, abs=step + width)
    assert range_of(Percentile(100.0), x) == pytest.approx(range_of(MinMax(), x))
    with pytest.raises(DataError, match="percentile"):
        Percentile(20.0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["heavy", "relu", "shifted", "spike"]))
def test_mean_squared_error_is_the_best_on_the_data_themselves(seed: int, shape: str) -> None:
    x = heavy_tailed(seed, 4000)
    x = {"heavy": x, "relu": np.maximum(x, 0), "shifted": x + 3, "spike": np.append(x, np.float32(500))}[shape]
    statistics = TensorStatistics.of("x", x)
    # the histogram stands for the data up to half a bin, far below a quantization step
    slack = 1 + 4 * statistics.bin_width / MeanSquaredError()(statistics).scale
    ours = squared_error(MeanSquaredError()(statistics), x)
    for other in (MinMax(), Percentile(99.9)):
        assert ours <= slack * squared_error(other(statistics), x)


def test_mean_squared_error_finds_the_best_clipping() -> None:
    x = np.random.default_rng(1).laplace(size=50_000).astype(np.float32)
    x[:50] *= 3
    statistics = TensorStatistics.of("x", x)
    ours = squared_error(DEFAULT(statistics), x)
    dense = min(squared_error(QParams.from_range(-clip, clip), x) for clip in np.linspace(2, statistics.absmax, 150))
    assert ours <= 1.05 * dense  # the search is coarser than the dense one, near a flat minimum
    assert ours < 0.96 * squared_error(MinMax()(statistics), x)


@pytest.mark.parametrize("calibrator", [MinMax(), Percentile(), MeanSquaredError()])
def test_degenerate_data(calibrator: Calibrator) -> None:
    for values in (np.zeros(5), np.full(5, 3.0), np.full(5, -3.0), np.float64([1e-38, 0.0])):
        q = calibrator(TensorStatistics.of("x", values))
        levels = np.clip(np.rint(values / q.scale) + q.zero_point, 0, 255)
        np.testing.assert_allclose((levels - q.zero_point) * q.scale, values, atol=q.scale)


def group(kind: str, name: str, *inputs: str) -> Group:
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    builder = GraphBuilder([x])
    return Group(name, kind, builder.finish([builder.emit(relax.op.negative(x), name)]), inputs)


def test_movement_keeps_parameters() -> None:
    statistics = {name: TensorStatistics.of(name, heavy_tailed(i)) for i, name in enumerate("abc")}
    statistics["b"] = TensorStatistics.of("b", np.float32([[-1.0, 1.0]]))
    found = calibrate([group("movement", "b", "a"), group("elementwise", "c", "b")], statistics)
    assert found["a"] == found["b"] == DEFAULT(statistics["a"])
    assert found["c"] == DEFAULT(statistics["c"])


@pytest.mark.parametrize(("factor", "shares"), [(1.5, True), (8.0, False)])
def test_concat_shares_parameters_of_similar_ranges(factor: float, shares: bool) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (100, 4)).astype(np.float32)
    arrays = {"a": x, "moved": x, "b": x[:, :3] * np.float32(factor)}
    statistics = {name: TensorStatistics.of(name, array) for name, array in arrays.items()}
    statistics["both"] = TensorStatistics.of("both", np.concatenate([x, arrays["b"]], axis=1))
    groups = [group("movement", "moved", "a"), group("movement", "both", "moved", "b")]
    found = calibrate(groups, statistics, MinMax())
    assert found["a"] == found["moved"]
    assert (found["moved"] == found["b"] == found["both"]) is shares
    if not shares:
        assert found["a"] == MinMax()(statistics["a"]) and found["b"] == MinMax()(statistics["b"])
