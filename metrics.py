"""Metrics: what accuracy means, as one score per row of a batch, so that two programs can be compared in pairs.

A built-in metric gives a score per row and is the mean of the scores (``rmse``: the root of the mean). A function of
the user's gives one number for many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DataError

# Float32 has 24 bits, about 150 dB: no program is measured to be closer to another than that.
SQNR_CEILING_DB = 150.0

MetricFunction = Callable[[Any, Any], float]
Scores = Callable[[np.ndarray, np.ndarray, Any], np.ndarray]


@dataclass(frozen=True)
class Metric:
    """A built-in metric.

    scores : ``(outputs, reference outputs, labels) -> scores``, arrays whose first dim is the rows; [rows] float64.
    labels : what the labels must be, or None where the metric compares with the FP32 outputs.
    lower_is_better : whether a loss.
    root : whether the metric is the root of the mean score.
    """

    name: str
    scores: Scores
    labels: str | None
    lower_is_better: bool = False
    root: bool = False

    def aggregate(self, means: np.ndarray) -> np.ndarray:
        """The metric from the mean score."""
        return np.sqrt(means) if self.root else means


def _per_row(values: np.ndarray) -> np.ndarray:
    """Mean over all dims but the first."""
    return values.reshape(len(values), -1).mean(axis=1, dtype=np.float64)


def _class_labels(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if labels.ndim == outputs.ndim and labels.shape[-1] == 1:
        labels = labels[..., 0]
    if labels.dtype.kind not in "iu" or labels.shape != outputs.shape[:-1]:
        raise DataError("the labels do not fit the outputs", found=f"labels {labels.shape} of {labels.dtype}",
                        expected=f"class indices {outputs.shape[:-1]} of an integer type", hint="pass an index per row")
    classes = outputs.shape[-1]
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError("a label is not a class of the model", found=f"{labels.min()} … {labels.max()}",
                        expected=f"0 … {classes - 1}", hint="pass class indices in the model's own order")
    return labels.astype(np.int64)


def _top(k: int) -> Scores:
    def scores(outputs: np.ndarray, _: np.ndarray, labels: Any) -> np.ndarray:
        index = _class_labels(outputs, labels)[..., None]
        own = np.take_along_axis(outputs, index, axis=-1)
        earlier = np.arange(outputs.shape[-1]) < index
        ahead = ((outputs > own) | ((outputs == own) & earlier)).sum(axis=-1)
        return _per_row(ahead < k)
    return scores


def _cross_entropy(outputs: np.ndarray, _: np.ndarray, labels: Any) -> np.ndarray:
    index = _class_labels(outputs, labels)[..., None]
    logits = outputs.astype(np.float64)
    top = logits.max(axis=-1, keepdims=True)
    normalizer = np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]
    return _per_row(normalizer - np.take_along_axis(logits, index, axis=-1)[..., 0])


def _same_shape(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if labels.size != outputs.size or len(labels) != len(outputs):
        raise DataError("the labels do not fit the outputs", found=f"labels {labels.shape}", expected=outputs.shape,
                        hint="pass one label per value of the output")
    return labels.reshape(outputs.shape)


def _binary_accuracy(outputs: np.ndarray, _: np.ndarray, labels: Any) -> np.ndarray:
    return _per_row((outputs >= 0.5) == (_same_shape(outputs, labels) >= 0.5))


def _squared_error(outputs: np.ndarray, _: np.ndarray, labels: Any) -> np.ndarray:
    return _per_row(np.square(outputs.astype(np.float64) - _same_shape(outputs, labels)))


def _agreement(outputs: np.ndarray, reference: np.ndarray, _: Any) -> np.ndarray:
    if outputs.shape[-1] < 2 or outputs.ndim < 2:
        return _per_row((outputs >= 0.5) == (reference >= 0.5))
    return _per_row(outputs.argmax(axis=-1) == reference.argmax(axis=-1))


def _cosine(outputs: np.ndarray, reference: np.ndarray, _: Any) -> np.ndarray:
    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (outputs, reference))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    same = (a == b).all(axis=1)
    return np.where(same, 1.0, (a * b).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny))


def _sqnr(outputs: np.ndarray, reference: np.ndarray, _: Any) -> np.ndarray:
    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (outputs, reference))
    signal, noise = np.square(b).sum(axis=1), np.square(a - b).sum(axis=1)
    floor = 10.0 ** (-SQNR_CEILING_DB / 10)
    ratio = np.maximum(noise, floor * signal) / np.where(signal > 0, signal, 1.0)
    return np.where(noise == 0, SQNR_CEILING_DB, -10 * np.log10(np.maximum(ratio, floor)))


_CLASSES, _VALUES = "class indices [rows]", "a value per output value"

METRICS: dict[str, Metric] = {m.name: m for m in (
    Metric("top1", _top(1), _CLASSES),
    Metric("top5", _top(5), _CLASSES),
    Metric("cross_entropy", _cross_entropy, _CLASSES, lower_is_better=True),
    Metric("accuracy_binary", _binary_accuracy, _VALUES),
    Metric("frame_accuracy", _binary_accuracy, _VALUES),
    Metric("mse", _squared_error, _VALUES, lower_is_better=True),
    Metric("rmse", _squared_error, _VALUES, lower_is_better=True, root=True),
    Metric("agreement", _agreement, None),
    Metric("cosine", _cosine, None),
    Metric("sqnr", _sqnr, None),
)}
"""The built-in metrics by name.

* ``top1``, ``top5``: whether the label is among the 1 or 5 largest outputs (ties go to the smaller index).
* ``cross_entropy``: natural logarithm, the outputs are logits; a loss.
* ``accuracy_binary`` and ``frame_accuracy`` (the same): outputs and labels on the same side of 0.5, per value.
* ``mse``, ``rmse``: against labels of the output's shape; losses.
* ``agreement``: the same largest output as the FP32 program (the same side of 0.5 for a single output).
* ``cosine``: of the output and the FP32 program's.
* ``sqnr``: the power of the FP32 output over that of the difference, in dB, at
  most 150, which is therefore the baseline: a drop of 120 dB is an SQNR of 30 dB.

The rows of more than one value (a sequence's steps, say) are averaged first: rows are what is independent.
"""


def find_metric(metric: str | MetricFunction | None) -> Metric | MetricFunction:
    """The built-in metric of that name, or the callable itself; DataError for anything else."""
    if isinstance(metric, str) and metric in METRICS:
        return METRICS[metric]
    if callable(metric):
        return metric
    raise DataError("there is no such metric", found=repr(metric), expected=", ".join(METRICS),
                    hint="name one of these, or pass a function (outputs, labels) -> float")


def metric_name(metric: str | MetricFunction) -> str:
    """What a report calls the metric."""
    return metric if isinstance(metric, str) else str(getattr(metric, "__name__", type(metric).__name__))


def require_labels(metric: str | MetricFunction, labels: Sequence[np.ndarray | None]) -> None:
    """DataError where a built-in metric needs labels and there are none."""
    found = find_metric(metric)
    if isinstance(found, Metric) and found.labels is not None and any(label is None for label in labels):
        raise DataError(f"the metric {found.name!r} needs labels, and the data has none", expected=found.labels,
                        hint="pass data= with labels, or a metric that compares with FP32: agreement, cosine, sqnr")


def row_scores(metric: Metric, outputs: np.ndarray, reference: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
    """Scores per row [rows], float64; DataError where a score is not a number or the labels do not fit."""
    scores = metric.scores(outputs, reference, labels)
    if not np.isfinite(scores).all():
        raise DataError(f"the metric {metric.name!r} is not a finite number",
                        found=f"{int((~np.isfinite(scores)).sum())} of {len(scores)} rows",
                        hint="look for NaN or infinity in the model's outputs")
    return scores


def call_metric(metric: MetricFunction, outputs: Any, labels: Any) -> float:
    """What the user's function returns, as a finite float; DataError where it raises or returns anything else."""
    name = metric_name(metric)
    try:
        value = metric(outputs, labels)
    except Exception as error:
        raise DataError(f"the metric {name!r} raised an error", found=f"{type(error).__name__}: {error}",
                        hint="it is called as metric(outputs, labels) with NumPy arrays of all rows") from error
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"the metric {name!r} did not return a number",
                        found=f"{type(value).__name__}: {value!r}"[:200], expected="one finite number") from error
    if array.size != 1 or not np.isfinite(array).all():
        raise DataError(f"the metric {name!r} did not return one finite number",
                        found=f"shape {array.shape}" if array.size != 1 else float(array.reshape(())),
                        expected="one finite number", hint="higher is better, unless metric.lower_is_better is True")
    return float(array.reshape(()))
