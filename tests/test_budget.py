"""The budget's judge: metrics against definitions, bounds against their coverage, and every bad metric."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from narrowcast.budget import RESAMPLES, AccuracyBudget, measure, paired_upper_bound, within
from narrowcast.errors import DataError
from narrowcast.metrics import METRICS, find_metric, row_scores

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(200, 10)).astype(np.float32)
LABELS = np.where(RNG.random(200) < 0.7, LOGITS.argmax(1), RNG.integers(0, 10, 200))


def per_row(outputs):
    return list(outputs[:, None]) if outputs.ndim == 1 else [o[None] for o in outputs]


def compare(metric, before, after, labels=None, **options):
    rows = [None] * len(before) if labels is None else [np.asarray(y)[None] for y in labels]
    return measure(metric, per_row(before), per_row(after), rows, **options)


def test_classification_metrics_equal_their_definitions():
    scores = {m: row_scores(METRICS[m], LOGITS, LOGITS, LABELS) for m in ("top1", "top5", "cross_entropy")}
    order = np.argsort(-LOGITS, axis=1)
    np.testing.assert_array_equal(scores["top1"], order[:, 0] == LABELS)
    np.testing.assert_array_equal(scores["top5"], (order[:, :5] == LABELS[:, None]).any(1))
    torch_loss = torch.nn.functional.cross_entropy(torch.from_numpy(LOGITS).double(), torch.from_numpy(LABELS),
                                                   reduction="none")
    np.testing.assert_allclose(scores["cross_entropy"], torch_loss.numpy(), rtol=100 * np.finfo(np.float64).eps)


def test_ties_go_to_the_smaller_index():
    tied = np.zeros((2, 10), np.float32)
    np.testing.assert_array_equal(row_scores(METRICS["top1"], tied, tied, np.array([0, 1])), [1, 0])
    np.testing.assert_array_equal(row_scores(METRICS["top5"], tied, tied, np.array([4, 5])), [1, 0])


def test_comparisons_with_fp32():
    noise = LOGITS + np.float32(0.1) * RNG.normal(size=LOGITS.shape).astype(np.float32)
    cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(noise).double(), torch.from_numpy(LOGITS).double())
    np.testing.assert_allclose(row_scores(METRICS["cosine"], noise, LOGITS, None), cosine.numpy(), rtol=1e-14)
    sqnr = row_scores(METRICS["sqnr"], noise, LOGITS, None)
    expected = 10 * np.log10((LOGITS.astype(float) ** 2).sum(1) / ((noise.astype(float) - LOGITS) ** 2).sum(1))
    np.testing.assert_allclose(sqnr, expected, rtol=1e-12)
    same = measure("sqnr", [LOGITS], [LOGITS], [None])
    assert same.baseline == same.compiled == 150.0 and same.identical
    np.testing.assert_array_equal(row_scores(METRICS["agreement"], noise, LOGITS, None),
                                  noise.argmax(1) == LOGITS.argmax(1))
    single = np.array([[0.4], [0.6]], np.float32)
    np.testing.assert_array_equal(row_scores(METRICS["agreement"], 1 - single, single, None), [0, 0])


def test_frame_accuracy_and_errors_average_within_the_row():
    outputs = np.array([[0.1, 0.9, 0.5], [0.2, 0.3, 0.4]], np.float32)
    labels = np.array([[0, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(row_scores(METRICS["frame_accuracy"], outputs, outputs, labels), [2 / 3, 2 / 3])
    result = measure("rmse", [outputs], [outputs * 0], [labels])
    assert result.baseline == pytest.approx(np.sqrt(((outputs.astype(float) - labels) ** 2).mean()), rel=1e-12)
    assert result.compiled == pytest.approx(np.sqrt(2 / 6), rel=1e-12)
    assert result.drop == pytest.approx(result.compiled - result.baseline)


def restricted_score(lost, gained, n, delta):
    """The score statistic by brute force: the nuisance probability maximizes the likelihood on a fine grid."""
    grid = np.linspace(max(0, -delta), (1 - delta) / 2, 200_001)[1:-1]
    likelihood = (lost * np.log(grid + delta) + gained * np.log(grid)
                  + (n - lost - gained) * np.log(1 - 2 * grid - delta))
    q = grid[np.argmax(likelihood)]
    return (lost - gained - n * delta) / math.sqrt(n * (2 * q + delta * (1 - delta)))


@pytest.mark.parametrize(("lost", "gained", "n"), [(5, 3, 100), (20, 1, 60), (2, 9, 400)])
def test_paired_bound_inverts_the_score_test(lost, gained, n):
    bound = paired_upper_bound(lost, gained, n, 0.95)
    assert restricted_score(lost, gained, n, bound) == pytest.approx(-stats.norm.ppf(0.95), abs=2e-3)


@pytest.mark.parametrize(("p_lost", "p_gained"), [(0.01, 0.01), (0.03, 0.01), (0.1, 0.05), (0.002, 0.0)])
def test_paired_bound_covers(p_lost, p_gained):
    n, covered = 250, 0.0
    for lost in range(60):
        for gained in range(60):
            weight = stats.multinomial.pmf([lost, gained, n - lost - gained], n,
                                           [p_lost, p_gained, 1 - p_lost - p_gained])
            if weight > 1e-7 and paired_upper_bound(lost, gained, n, 0.95) >= p_lost - p_gained:
                covered += weight
    assert covered > 0.93, "a score bound's coverage swings around its nominal 0.95 by a point or two"
    assert p_lost < 0.03 or covered < 0.97, "and is not simply wide"


def test_paired_bound_at_the_edges():
    assert paired_upper_bound(0, 0, 300, 0.95) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert paired_upper_bound(7, 0, 7, 0.95) == 1.0
    assert paired_upper_bound(3, 3, 100, 0.5) == 0.0
    assert paired_upper_bound(0, 5, 100, 0.95) < 0
    bounds = [paired_upper_bound(k, 2, 100, 0.95) for k in range(8)]
    assert bounds == sorted(bounds)


def test_top1_is_paired_and_its_drop_is_positive_when_worse():
    after = LOGITS.copy()
    changed = np.flatnonzero(LOGITS.argmax(1) == LABELS)[:4]
    after[changed] = -after[changed]
    result = compare("top1", LOGITS, after, LABELS, max_drop=0.03)
    assert result.drop == pytest.approx(0.02) and result.samples == 200
    assert result.upper == pytest.approx(paired_upper_bound(4, 0, 200, 0.95))
    assert result.lower == pytest.approx(-paired_upper_bound(0, 4, 200, 0.95))
    assert result.interval[0] < result.lower < result.drop < result.upper < result.interval[1]
    relative = compare("top1", LOGITS, after, LABELS, relative=True)
    assert relative.drop == pytest.approx(0.02 / result.baseline)
    assert relative.upper == pytest.approx(result.upper / result.baseline)
    assert compare("top1", after, LOGITS, LABELS).drop == pytest.approx(-0.02)


def test_bootstrap_bound_is_the_t_bound_of_the_mean():
    noise = RNG.normal(size=(400, 1)).astype(np.float32)
    targets = np.zeros((400, 1))
    result = compare("mse", noise, noise * 1.1, targets)
    differences = (noise.astype(float) ** 2 * (1.1**2 - 1)).ravel()
    error = differences.std(ddof=1) / 20
    # A resampled 95 % quantile has a standard error of 2.1 sd / sqrt(resamples); skewness shifts it a little.
    tolerance = 5 * 2.1 * error / math.sqrt(RESAMPLES) + 0.1 * error
    assert result.drop == pytest.approx(differences.mean(), rel=1e-5)
    assert result.upper == pytest.approx(differences.mean() + stats.t.ppf(0.95, 399) * error, abs=tolerance)
    assert result.lower == pytest.approx(differences.mean() - stats.t.ppf(0.95, 399) * error, abs=tolerance)
    assert compare("mse", noise, noise * 1.1, targets) == result, "the same answer every time"


def test_few_rows_give_wide_bounds_and_one_row_none():
    before = np.ones((1, 1), np.float32)
    assert compare("mse", before, before * 1.5, np.zeros((1, 1))).upper == math.inf
    outputs = np.linspace(1, 2, 5, dtype=np.float32)[:, None]
    few = compare("mse", outputs, outputs * 1.1, np.zeros((5, 1)))
    many = compare("mse", outputs.repeat(20, 0), outputs.repeat(20, 0) * 1.1, np.zeros((100, 1)))
    assert few.upper - few.drop > 4 * (many.upper - many.drop)


def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).mean()


def test_a_function_agrees_with_the_built_in_metric():
    after = LOGITS + RNG.normal(size=LOGITS.shape).astype(np.float32)
    own, built_in = compare(accuracy, LOGITS, after, LABELS), compare("top1", LOGITS, after, LABELS)
    assert (own.baseline, own.compiled, own.samples) == (built_in.baseline, built_in.compiled, 200)
    assert own.metric == "accuracy"
    assert own.upper - own.drop == pytest.approx(built_in.upper - built_in.drop, rel=0.25)


def test_a_function_gets_all_rows_and_says_which_way_is_better():
    def loss(outputs, labels):
        assert outputs[0].shape == (200, 10) and outputs[1].shape == (200,) and labels is None
        return torch.tensor(float(outputs[1].mean()))
    loss.lower_is_better = True
    extra = np.ones(1, np.float32)
    result = measure(loss, [(row[None], extra) for row in LOGITS], [(row[None], extra * 2) for row in LOGITS],
                     [None] * 200)
    assert result.drop == 1.0 and result.upper == pytest.approx(1.0)


def test_samples_are_resampled_whole_where_rows_do_not_match():
    before, labels = [LOGITS[:50], LOGITS[50:100], LOGITS[100:150]], [np.array([k]) for k in (1, 2, 3)]

    def by_sample(outputs, y):
        assert outputs.shape == (150, 10)
        return float(y.sum() + outputs[::50].shape[0])
    assert measure(by_sample, before, before, labels).samples == 3


@pytest.mark.parametrize(("metric", "text"), [
    (lambda o, y: float("nan"), "one finite number"),
    (lambda o, y: float("inf"), "one finite number"),
    (lambda o, y: o.max(axis=1), "one finite number"),
    (lambda o, y: None, "one finite number"),
    (lambda o, y: "good", "did not return a number"),
    (lambda o, y: 1 / 0, "ZeroDivisionError"),
    ("accuracy", "no such metric"),
    (None, "no such metric"),
])
def test_unusable_metrics(metric, text):
    with pytest.raises(DataError, match=text):
        compare(metric, LOGITS, LOGITS, LABELS)


@pytest.mark.parametrize(("metric", "labels", "text"), [
    ("top1", None, "needs labels"),
    ("top1", LABELS.astype(np.float32), "labels do not fit"),
    ("top1", np.full(200, 10), "not a class of the model"),
    ("cross_entropy", np.full(200, -1), "not a class of the model"),
    ("top1", np.zeros((200, 2), int), "labels do not fit"),
    ("mse", LABELS, "labels do not fit"),
])
def test_unusable_labels(metric, labels, text):
    with pytest.raises(DataError, match=text):
        compare(metric, LOGITS, LOGITS, labels)


def test_unusable_outputs():
    with pytest.raises(DataError, match="nothing to compare"):
        measure("top1", [], [], [])
    with pytest.raises(DataError, match="differ in shape"):
        compare("agreement", LOGITS, LOGITS[:, :5])
    with pytest.raises(DataError, match="is not a finite number"):
        compare("cosine", LOGITS, LOGITS * np.float32(np.nan))
    with pytest.raises(DataError, match="relative drop is undefined"):
        compare("mse", np.zeros((4, 1), np.float32), np.ones((4, 1), np.float32), np.zeros((4, 1)), relative=True)


def budget(max_drop, **options):
    return AccuracyBudget(max_drop, data=(LOGITS, LABELS), metric="top1", **options)


def test_judging():
    after = LOGITS.copy()
    changed = np.flatnonzero(LOGITS.argmax(1) == LABELS)[0]
    after[changed] = -after[changed]
    result = compare("top1", LOGITS, after, LABELS, max_drop=0.01)
    assert result.drop == pytest.approx(0.005)
    assert not within(result, budget(0.01)), "one of 200 does not show that at most one in a hundred is lost"
    assert within(result, budget(0.01, confidence=None))
    assert within(result, budget(0.03))
    assert result.samples_needed > 200
    scaled = compare("top1", np.tile(LOGITS, (10, 1)), np.tile(after, (10, 1)), np.tile(LABELS, 10), max_drop=0.01)
    assert within(scaled, budget(0.01)) and scaled.samples_needed is None


def test_samples_needed_when_nothing_differed():
    moved = LOGITS * np.float32(1.01)
    result = compare("top1", LOGITS, moved, LABELS, max_drop=0.005)
    n = result.samples_needed
    assert result.drop == 0 and not result.identical and not within(result, budget(0.005))
    assert paired_upper_bound(0, 0, n, 0.95) <= 0.005 < paired_upper_bound(0, 0, n - 1, 0.95)
    assert compare("top1", LOGITS, moved, LABELS, max_drop=0.0).samples_needed is None


def test_the_same_outputs_are_within_a_budget_of_nothing():
    rounding = LOGITS * np.float32(1 + 2**-22)
    assert within(compare("top1", LOGITS, rounding, LABELS), budget(0.0))
    assert not within(compare("top1", LOGITS, LOGITS * np.float32(1.001), LABELS), budget(0.0))


@pytest.mark.parametrize(("options", "text"), [
    ({"max_drop": -0.1}, "max_drop"), ({"max_drop": math.nan}, "max_drop"), ({"max_drop": math.inf}, "max_drop"),
    ({"max_drop": "0.1"}, "max_drop"), ({"max_drop": True}, "max_drop"), ({"confidence": 0.4}, "confidence"),
    ({"confidence": 1.0}, "confidence"), ({"confidence": "high"}, "confidence"), ({"metric": "top2"}, "no such metric"),
    ({"data": None}, r"needs data[\s\S]*pass data="),
])
def test_unusable_budgets(options, text):
    with pytest.raises(DataError, match=text):
        AccuracyBudget(**{"max_drop": 0.01, "data": (LOGITS, LABELS), "metric": "top1", **options})


def test_independent_mistakes_are_reported_together():
    with pytest.raises(DataError) as caught:
        AccuracyBudget(-1, None, "best")
    assert len(caught.value.problems) == 3


def test_find_metric_knows_every_name():
    assert all(find_metric(name) is metric for name, metric in METRICS.items())


def test_the_steps_of_one_call_count_as_one():
    """40 calls of 50 steps, all steps of a call wrong together: as certain as 40 scores, not as 2,000."""
    lost = np.zeros(40)
    lost[:4] = 1
    steps = [np.full(50, 1.0 - x, np.float32) for x in lost]
    ones = [np.ones(50, np.float32) for _ in lost]
    by_step = measure("frame_accuracy", ones, steps, ones)
    by_call = measure("frame_accuracy", [x[:1] for x in ones], [x[:1] for x in steps], [x[:1] for x in ones])
    assert by_step.samples == by_call.samples == 40
    assert by_step.drop == pytest.approx(0.1) and by_call.drop == pytest.approx(0.1)
    assert by_step.upper == pytest.approx(by_call.upper)


def test_calls_of_different_lengths_weigh_by_their_rows():
    outputs = [np.ones(30, np.float32), np.zeros(10, np.float32)]
    labels = [np.ones(30), np.ones(10)]
    found = measure("frame_accuracy", [np.ones(30, np.float32), np.ones(10, np.float32)], outputs, labels)
    assert found.compiled == pytest.approx(0.75) and found.samples == 2
