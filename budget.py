"""The accuracy budget and its judge: how much worse a program is than FP32, with what certainty.

Both programs run on the same rows, so everything is paired. Scores of 0 and 1 (``top1``, ``agreement`` …) get Tango's
score bound for a difference of paired proportions, everything else a bootstrap over calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from .errors import DataError
from .metrics import Metric, MetricFunction, call_metric, find_metric, metric_name, require_labels, row_scores

Outputs = Sequence[np.ndarray | tuple[np.ndarray, ...]]

DEFAULT_CONFIDENCE = 0.95
RESAMPLES = 2000
# A function of the user's is called twice per resample; this many leave 20 beyond the quantile.
_CALLABLE_RESAMPLES = 400
# Outputs that differ by less, relative to the largest, differ by the order of float32 additions and nothing else.
_ROUNDING = 2e-5
_CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class AccuracyBudget:
    """How much accuracy a program may lose against FP32, on which data.

    max_drop : the largest drop allowed, in the metric's own units (0.005 is half a point of top-1), at least 0.
    data : labelled data, in any form that ``Samples.of`` reads; divided into parts for calibration, for comparing
        plans and for verification.
    metric : the name of one of ``metrics.METRICS``, or a function ``(outputs, labels) -> float`` of NumPy arrays of all
        rows (a tuple of arrays where the model has several outputs), where higher is better unless its attribute
        ``lower_is_better`` is true. A name refers to the model's first output.
    confidence : one-sided confidence with which the drop must be shown to be within ``max_drop``, 0.5 <= confidence <
        1; None: the measured drop itself is judged.
    relative : whether ``max_drop`` is a fraction of the FP32 program's value.
    calibration : separate data for calibration and for comparing plans; then all of ``data`` verifies.

    Raises
    ------
    DataError : a value out of range, no data, an unknown metric.
    """

    max_drop: float
    data: Any = None
    metric: str | MetricFunction | None = None
    confidence: float | None = DEFAULT_CONFIDENCE
    relative: bool = False
    calibration: Any = None

    def __post_init__(self) -> None:
        checks: list[Callable[[], object]] = [self._check_max_drop, self._check_confidence, self._check_data,
                                              lambda: find_metric(self.metric)]
        found = []
        for check in checks:
            try:
                check()
            except DataError as error:
                found.append(error)
        if found:
            raise DataError.collect(found)

    def _check_max_drop(self) -> None:
        if not _is_number(self.max_drop) or not (math.isfinite(self.max_drop) and self.max_drop >= 0):
            raise DataError("max_drop is not a usable number", found=repr(self.max_drop),
                            expected="a finite number, at least 0",
                            hint="0.005 with the metric top1 allows half a point")

    def _check_confidence(self) -> None:
        if self.confidence is not None and not (_is_number(self.confidence) and 0.5 <= self.confidence < 1):
            raise DataError("confidence is not a usable number", found=repr(self.confidence),
                            expected="0.5 <= confidence < 1, or None to judge the measured drop itself")

    def _check_data(self) -> None:
        if self.data is None:
            raise DataError("an accuracy budget needs data, and nothing is ever calibrated on random numbers",
                            expected="inputs of the model, with labels where the metric needs them",
                            hint="pass data=: a DataLoader or another iterable of (inputs, labels) batches, a tuple of "
                                 "arrays (x, y), or a list of samples")


@dataclass(frozen=True)
class Measurement:
    """FP32 and compiled program on the same rows.

    metric : its name.
    baseline, compiled : the metric's value of the FP32 and of the compiled program.
    drop : how much worse the compiled program is; positive is worse, whichever way the metric points. A fraction of
        the baseline if ``relative``.
    lower, upper : one-sided bounds of the drop, each at ``confidence``.
    interval : the two-sided interval of the drop at ``confidence``.
    samples : the number of calls compared; rows of one call (the steps of a sequence) count as one, since they depend
        on each other.
    floor : the least bound that so many samples can show: that of a program no score of which differs. 0 where scores
        are not 0 or 1.
    samples_needed : about how many rows would show that the drop is within the budget, if the drop is what was
        measured; None where it is shown already, where it is not within, or where no budget was given.
    identical : whether the outputs differ by float32 rounding at most.
    """

    metric: str
    baseline: float
    compiled: float
    drop: float
    lower: float
    upper: float
    interval: tuple[float, float]
    confidence: float
    samples: int
    relative: bool = False
    floor: float = 0.0
    samples_needed: int | None = None
    identical: bool = False


def within(measurement: Measurement, budget: AccuracyBudget) -> bool:
    """Whether the measurement shows that the budget holds.

    It does where the upper bound (without a confidence: the drop itself) is at most ``max_drop``. A program whose
    outputs are those of FP32 up to float32 rounding is within every budget: there is nothing to infer from a sample.
    """
    judged = measurement.drop if budget.confidence is None else measurement.upper
    return measurement.identical or judged <= budget.max_drop


def measure(metric: str | MetricFunction, fp32_outputs: Outputs, compiled_outputs: Outputs,
            labels: Sequence[np.ndarray | None], *, confidence: float | None = DEFAULT_CONFIDENCE,
            relative: bool = False, max_drop: float | None = None, seed: int = 0) -> Measurement:
    """Compare two programs on the same samples.

    Parameters
    ----------
    metric : a name or a function, as in ``AccuracyBudget``.
    fp32_outputs, compiled_outputs : the outputs for each sample, one array or a tuple of them; rows are the first dim.
    labels : the labels of each sample (``Samples.labels``).
    confidence, relative, max_drop : as in ``AccuracyBudget``; without a confidence the bounds are at 0.95. ``max_drop``
        serves ``samples_needed`` only.
    seed : of the bootstrap.

    Raises
    ------
    DataError : labels missing or unfit, a metric that raises or is not a finite number, nothing to compare, a
        relative drop from a baseline of 0.

    Sources: Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design", Statistics in Medicine 17 (1998); where no row differs, the exact binomial bound. Efron and Tibshirani, "An
    Introduction to the Bootstrap" (1993), percentile bounds, widened for few rows as in Hesterberg, "What
    Teachers Should Know About the Bootstrap" (2015). For scores of 0 and 1 a relative drop takes the baseline as known.
    """
    found = find_metric(metric)
    require_labels(metric, labels)
    pair = _Pair.of(fp32_outputs, compiled_outputs, labels)
    level = DEFAULT_CONFIDENCE if confidence is None else confidence
    rng = np.random.default_rng(seed)
    baseline, compiled, quantile, floor, n = (
        _compare_scores(found, pair, relative, level, rng) if isinstance(found, Metric)
        else _compare_calls(found, pair, relative, level, rng))
    drop = float(_drop(np.array(baseline), np.array(compiled), getattr(found, "lower_is_better", False), relative))
    tail = (1 - level) / 2
    result = Measurement(
        metric=metric_name(metric), baseline=baseline, compiled=compiled, drop=drop,
        lower=min(quantile(1 - level), drop), upper=max(quantile(level), drop),
        interval=(quantile(tail), quantile(1 - tail)), confidence=level, samples=n, relative=relative, floor=floor,
        identical=pair.identical)
    needed = _samples_needed(result, max_drop)
    return Measurement(**{**result.__dict__, "samples_needed": needed})


Quantile = Callable[[float], float]


@dataclass(frozen=True)
class _Pair:
    """Outputs of both programs and labels, all samples concatenated.

    rows : for each sample, the number of rows of each array (outputs, then labels).
    """

    fp32: tuple[np.ndarray, ...]
    compiled: tuple[np.ndarray, ...]
    labels: np.ndarray | None
    rows: np.ndarray

    @classmethod
    def of(cls, fp32: Outputs, compiled: Outputs, labels: Sequence[np.ndarray | None]) -> _Pair:
        if not len(fp32) == len(compiled) == len(labels) or not len(fp32):
            raise DataError("there is nothing to compare", expected="outputs of both programs and labels per sample",
                            found=f"{len(fp32)} and {len(compiled)} outputs, {len(labels)} labels",
                            hint="pass more data")
        columns = [list(zip(*map(_arrays, outputs), strict=True)) for outputs in (fp32, compiled)]
        shapes = [[[a.shape for a in column] for column in side] for side in columns]
        if shapes[0] != shapes[1]:
            raise DataError("the two programs' outputs differ in shape", found=shapes[1][0][0],
                            expected=shapes[0][0][0])
        present = [np.atleast_1d(label) for label in labels if label is not None]
        labelled = [present] if len(present) == len(labels) else []
        return cls(tuple(map(_concatenate, columns[0])), tuple(map(_concatenate, columns[1])),
                   _concatenate(present) if labelled else None,
                   np.array([[len(a) for a in column] for column in [*columns[0], *labelled]]).T)

    @property
    def identical(self) -> bool:
        return all(np.allclose(a, b, rtol=0, atol=_ROUNDING * float(np.abs(b).max(initial=0)))
                   for a, b in zip(self.compiled, self.fp32, strict=True))

    def by_call(self, scores: np.ndarray) -> np.ndarray:
        """Scores per call instead of per row, such that their mean stays: rows of one call (the steps of a sequence)
        depend on each other, calls do not."""
        counts = self.rows[:, 0]
        if (counts == 1).all():
            return scores
        sums = np.add.reduceat(scores, np.cumsum(counts) - counts)
        return sums * len(counts) / counts.sum()

    def resampler(self, rng: np.random.Generator) -> tuple[int, Callable[[], list[np.ndarray]]]:
        """How many calls there are, and a function that draws as many with replacement: row indices per array."""
        n = len(self.rows)
        if (self.rows == 1).all():
            def draw_rows() -> list[np.ndarray]:
                return [rng.integers(0, n, n)] * self.rows.shape[1]
            return n, draw_rows
        ends = np.cumsum(self.rows, axis=0)

        def draw_samples() -> list[np.ndarray]:
            drawn = rng.integers(0, n, n)
            return [np.concatenate([np.arange(ends[i, k] - self.rows[i, k], ends[i, k]) for i in drawn])
                    for k in range(self.rows.shape[1])]
        return n, draw_samples


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _arrays(outputs: np.ndarray | tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(np.atleast_1d(np.asarray(a)) for a in (outputs if isinstance(outputs, tuple | list) else (outputs,)))


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    try:
        return np.concatenate(arrays)
    except ValueError as error:
        raise DataError("the samples' outputs or labels differ in shape", found=sorted({a.shape for a in arrays})[:4],
                        expected="one shape but for the first dim", hint="pass samples of one shape") from error


def _drop(baseline: np.ndarray, compiled: np.ndarray, lower_is_better: bool, relative: bool) -> np.ndarray:
    drop = compiled - baseline if lower_is_better else baseline - compiled
    if not relative:
        return drop
    if not np.all(np.abs(baseline) > 0):
        raise DataError("a relative drop is undefined, because FP32 itself scores 0", found=float(np.min(baseline)),
                        hint="use relative=False, or another metric")
    return drop / np.abs(baseline)


def _compare_scores(metric: Metric, pair: _Pair, relative: bool, level: float, rng: np.random.Generator,
                    ) -> tuple[float, float, Quantile, float, int]:
    """Baseline, compiled value, the bound of the drop at a level, the bound's floor, number of calls."""
    before = row_scores(metric, pair.fp32[0], pair.fp32[0], pair.labels)
    after = row_scores(metric, pair.compiled[0], pair.fp32[0], pair.labels)
    means = metric.aggregate(np.array([before.mean(), after.mean()]))
    before, after = pair.by_call(before), pair.by_call(after)
    n = len(before)
    if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
        lost, gained = int((before > after).sum()), int((after > before).sum())
        _drop(means[0], means[1], metric.lower_is_better, relative)
        scale = float(means[0]) if relative else 1.0

        def score_bound(q: float) -> float:
            bound = paired_upper_bound(lost, gained, n, q) if q >= 0.5 else -paired_upper_bound(gained, lost, n, 1 - q)
            return bound / scale
        return float(means[0]), float(means[1]), score_bound, paired_upper_bound(0, 0, n, level) / scale, n
    resampled = metric.aggregate(_resampled_means(np.stack([before, after]), rng))
    drops = _drop(resampled[0], resampled[1], metric.lower_is_better, relative)
    return float(means[0]), float(means[1]), _bootstrap_quantile(drops, n), 0.0, n


def _compare_calls(metric: MetricFunction, pair: _Pair, relative: bool, level: float, rng: np.random.Generator,
                   ) -> tuple[float, float, Quantile, float, int]:
    """As ``_compare_scores``, for a function of the user's."""
    def call(outputs: tuple[np.ndarray, ...], labels: np.ndarray | None) -> float:
        return call_metric(metric, outputs[0] if len(outputs) == 1 else outputs, labels)
    baseline, compiled = call(pair.fp32, pair.labels), call(pair.compiled, pair.labels)
    n, draw = pair.resampler(rng)
    resamples = max(_CALLABLE_RESAMPLES, min(RESAMPLES, math.ceil(20 / (1 - level))))
    values = np.empty((2, resamples))
    for i in range(resamples):
        rows = draw()
        labels = None if pair.labels is None else pair.labels[rows[-1]]
        for side, outputs in enumerate((pair.fp32, pair.compiled)):
            values[side, i] = call(tuple(a[r] for a, r in zip(outputs, rows, strict=False)), labels)
    drops = _drop(values[0], values[1], getattr(metric, "lower_is_better", False), relative)
    return baseline, compiled, _bootstrap_quantile(drops, n), 0.0, n


def _resampled_means(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means [2, RESAMPLES] of scores [2, rows], both sides resampled alike."""
    n = scores.shape[1]
    step = max(1, _CHUNK // n)
    parts = []
    for start in range(0, RESAMPLES, step):
        drawn = rng.integers(0, n, (min(step, RESAMPLES - start), n))
        parts.append(np.stack([side[drawn].mean(axis=1) for side in scores]))
    return np.concatenate(parts, axis=1)


def _bootstrap_quantile(drops: np.ndarray, n: int) -> Quantile:
    """Percentiles of resampled drops, widened to Student's t; infinite for a single row."""
    def quantile(level: float) -> float:
        if n < 2:
            return math.copysign(math.inf, level - 0.5)
        widened = stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf(level, n - 1))
        return float(np.quantile(drops, widened))
    return quantile


def paired_upper_bound(lost: int, gained: int, n: int, confidence: float) -> float:
    """One-sided upper bound of (lost - gained) / n for ``n`` paired scores of 0 and 1.

    Tango's score bound (1998): the difference at which the score statistic, with the nuisance probability at its
    restricted maximum likelihood, equals the normal quantile. Where no pair differs: the exact ``1 - alpha^(1/n)``.
    """
    if lost + gained == 0:
        return float(-math.expm1(math.log1p(-confidence) / n))
    if lost == n:
        return 1.0
    z = float(stats.norm.ppf(confidence))

    def excess(delta: float) -> float:
        b = (2 * n - lost + gained) * delta - lost - gained
        c = -gained * delta * (1 - delta)
        rare = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
        deviation = math.sqrt(max(n * (2 * rare + delta * (1 - delta)), 1e-300))
        return (lost - gained - n * delta) / deviation + z
    estimate = (lost - gained) / n
    return float(optimize.brentq(excess, estimate, 1 - 1e-12)) if z > 0 else estimate


def _samples_needed(result: Measurement, max_drop: float | None) -> int | None:
    """By the normal approximation: the bound's distance from the drop shrinks with the root of the rows."""
    if max_drop is None or result.upper <= max_drop or result.drop >= max_drop or not math.isfinite(result.upper):
        return None
    if result.upper == result.floor:
        return math.ceil(math.log1p(-result.confidence) / math.log1p(-max_drop)) if max_drop < 1 else None
    return math.ceil(result.samples * ((result.upper - result.drop) / (max_drop - result.drop)) ** 2)
