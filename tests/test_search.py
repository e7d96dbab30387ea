"""The search's logic on made-up networks: nothing is compiled, a plan's drop follows from its precisions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from narrowcast import search
from narrowcast.assignment import GroupOptions, Problem
from narrowcast.budget import AccuracyBudget, Measurement
from narrowcast.precision import Decision, Precision, PrecisionPlan, QParams
from narrowcast.samples import Sample, Samples
from narrowcast.search import MAX_ROUNDS, Candidate, PlanSearch, run_samples, shares, weight_bytes

FP32, INT8 = Precision.FP32, Precision.INT8
SELECTION, VERIFICATION = (Samples((Sample((np.zeros(1),)),) * n) for n in (1, 2))


@dataclass(frozen=True)
class Executable:
    """Stands for a program; ``plan`` None is the FP32 reference."""

    plan: PrecisionPlan | None


@dataclass
class Bench:
    """A search over a chain of convolutions, its noise known, and what was emitted.

    noise : of each convolution in INT8, which takes 20 us instead of 60.
    drop : from a plan's noise to its drop on the selection samples.
    margin : what the verification's upper bound adds; its drop is that of the selection times ``shift``.
    """

    noise: tuple[float, ...]
    drop: Callable[[float], float]
    margin: float = 0.0
    shift: float = 1.0
    samples_needed: int | None = None
    emitted: list[PrecisionPlan] = field(default_factory=list)

    def noise_of(self, plan: PrecisionPlan) -> float:
        return sum(n for n, d in zip(self.noise, plan.decisions, strict=True) if d.precision is INT8)

    def emit(self, plan: PrecisionPlan) -> Executable:
        self.emitted.append(plan)
        return Executable(plan)

    def measure(self, metric: str, reference: Executable, outputs: Executable, labels: list[Any],
                **options: Any) -> Measurement:
        assert reference.plan is None and outputs.plan is not None
        noise = self.noise_of(outputs.plan)
        on_verification = len(labels) == len(VERIFICATION)
        drop = self.drop(noise) * (self.shift if on_verification else 1.0)
        upper = drop + self.margin
        return Measurement(metric, 1.0, 1.0 - drop, drop, drop, upper, (drop, upper), options["confidence"] or 0.95,
                           len(labels), identical=noise == 0,
                           samples_needed=self.samples_needed if on_verification else None)

    def problem(self, forced: dict[str, Precision]) -> Problem:
        names = [f"conv{i}" for i in range(len(self.noise))]
        groups = tuple(
            GroupOptions(name, "conv", {FP32: 60.0, INT8: 20.0}, (read,), (read,), {INT8: noise}, macs=100)
            for name, read, noise in zip(names, ["x", *names], self.noise, strict=False))
        return Problem(groups, (names[-1],), frozenset({"x", *names}), forced=forced)

    def search(self, max_drop: float, forced: dict[str, Precision] | None = None,
               confidence: float | None = 0.95) -> PlanSearch:
        problem = self.problem(forced or {})
        budget = AccuracyBudget(max_drop, data=[0], metric="cosine", confidence=confidence)
        return PlanSearch(problem, dict.fromkeys(problem.floats, QParams(0.1, 0)), lambda plan: plan,
                          self.emit, Executable(None), budget, SELECTION, VERIFICATION, 0,  # type: ignore[arg-type]
                          lambda phase, done, total: None)

    def run(self, *arguments: Any, **options: Any) -> tuple[set[int], bool, PlanSearch, Measurement]:
        """Indices of the convolutions that ended in INT8, whether inside the budget, the search, the measurement."""
        found = self.search(*arguments, **options)
        candidate, measured, kept = found.run()
        assert isinstance(candidate, Candidate) and candidate.plan in self.emitted
        assert len({p.key for p in self.emitted}) == len(self.emitted) == found.rounds, "no plan is emitted twice"
        narrow = {i for i, d in enumerate(candidate.plan.decisions) if d.precision is INT8}
        return narrow, kept, found, measured


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    def make(*noise: float, drop: Callable[[float], float] = lambda noise: noise, **options: Any) -> Bench:
        bench = Bench(noise, drop, **options)
        monkeypatch.setattr(search, "run_samples", lambda executable, *arguments: executable)
        monkeypatch.setattr(search, "measure", bench.measure)
        return bench

    return make


def test_the_fastest_is_taken_where_it_is_inside(bench: Callable[..., Bench]) -> None:
    narrow, kept, found, _ = bench(1, 4, 16).run(21.0)
    assert (narrow, kept, found.rounds, found.notes) == ({0, 1, 2}, True, 1, [])


@pytest.mark.parametrize("max_drop", [1.0, 3.0, 4.0, 5.0, 6.0, 12.0, 16.0, 17.0, 20.5])
def test_the_bound_is_narrowed_to_the_fastest_inside(bench: Callable[..., Bench], max_drop: float) -> None:
    noise = (1.0, 4.0, 16.0)
    made = bench(*noise)
    narrow, kept, found, measured = made.run(max_drop)
    most = max(len(s) for n in range(4) for s in itertools.combinations(noise, n) if sum(s) <= max_drop)
    assert kept and measured.drop <= max_drop and found.rounds <= MAX_ROUNDS
    assert len(narrow) == most, "each INT8 convolution saves the same"


def test_fp32_is_what_is_left(bench: Callable[..., Bench]) -> None:
    narrow, kept, found, measured = bench(1, 4, 16).run(0.0)
    assert (narrow, kept, measured.drop) == (set(), True, 0.0)
    assert {d.precision for d in bench(1.0).search(0.0).run()[0].plan.decisions} == {FP32}
    assert found.rounds > 1


def test_verification_decides(bench: Callable[..., Bench]) -> None:
    """The selection samples see half of the drop, so plans that pass there are refused and the search goes on."""
    made = bench(1, 4, 16, shift=2.0)
    narrow, kept, found, measured = made.run(10.0)
    assert kept and measured.upper <= 10.0 and narrow == {0, 1}
    unbounded = bench(1, 4, 16).run(10.0)[2]
    assert found.rounds >= unbounded.rounds


def test_the_upper_bound_is_judged_unless_there_is_no_confidence(bench: Callable[..., Bench]) -> None:
    assert bench(1, 4, margin=3.0).run(5.0)[0] == {0}
    assert bench(1, 4, margin=3.0).run(5.0, confidence=None)[0] == {0, 1}


def test_too_few_samples_are_noted(bench: Callable[..., Bench]) -> None:
    found = bench(1, 4, margin=3.0, samples_needed=900).run(5.0)[2]
    assert found.notes == ["a plan with a measured drop of 5 was given up because 2 verification samples do not prove "
                           "the budget with confidence 0.95; about 900 would"]


@pytest.mark.parametrize("on", ["selection", "verification"])
def test_rounds_are_bounded(bench: Callable[..., Bench], on: str) -> None:
    """Every plan but FP32 is a little outside, so that each correction is the smallest."""
    def drop(noise: float) -> float:
        return 1.01 if noise else 0.0

    noise = [1.3**i for i in range(40)]
    made = bench(*noise, drop=drop) if on == "selection" else bench(*noise, drop=lambda n: drop(n) / 2, shift=2.0)
    narrow, kept, found, _ = made.run(1.0)
    assert kept and narrow == set()
    assert found.rounds <= MAX_ROUNDS + 1, "FP32 comes on top"


def test_a_drop_that_does_not_grow_with_the_noise(bench: Callable[..., Bench]) -> None:
    drops = np.random.default_rng(0).random(64)
    for max_drop in (0.1, 0.5, 0.9):
        made = bench(1, 2, 4, 8, 16, 32, drop=lambda noise: float(drops[int(noise)]) if noise else 0.0)
        _, kept, found, measured = made.run(max_drop)
        assert kept and measured.drop <= max_drop and found.rounds <= MAX_ROUNDS + 1


def test_forced_everywhere_is_tried_once(bench: Callable[..., Bench]) -> None:
    made = bench(1, 4)
    narrow, kept, found, measured = made.run(0.0, forced={"conv0": INT8, "conv1": INT8})
    assert (narrow, kept, found.rounds, measured.drop) == ({0, 1}, False, 1, 5.0)


def test_forced_and_inside(bench: Callable[..., Bench]) -> None:
    narrow, kept, _, _ = bench(1, 4, 16).run(4.5, forced={"conv1": INT8})
    assert kept and narrow == {1}


def test_noise_that_was_predicted_to_be_none(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop without predicted noise leaves nothing to correct: the search ends."""
    made = bench(0.0, drop=lambda noise: 2.0)
    honest = made.measure
    monkeypatch.setattr(search, "measure", lambda *a, **o: replace(honest(*a, **o), identical=False))
    _, kept, found, measured = made.run(1.0, forced={"conv0": INT8})
    assert not kept and measured.drop == 2.0 and found.rounds == 1


def test_run_samples_reports_progress() -> None:
    seen: list[tuple[str, int, int]] = []
    samples = Samples(tuple(Sample((np.array([float(i)]),)) for i in range(130)))
    outputs = run_samples(lambda inputs: [2 * inputs[0], inputs[0]], samples,  # type: ignore[arg-type]
                          lambda *event: seen.append(event), "verify")
    assert seen == [("verify", 64, 130), ("verify", 128, 130), ("verify", 130, 130)]
    assert [float(o[0][0]) for o in outputs] == [2.0 * i for i in range(130)] and isinstance(outputs[0], tuple)


def test_shares_and_sizes() -> None:
    def decision(name: str, precision: Precision, macs: int) -> Decision:
        return Decision(name, "conv", precision, "", macs=macs)

    plan = PrecisionPlan((decision("a", INT8, 60), decision("b", INT8, 15), decision("c", FP32, 25)))
    assert shares(plan) == {"int8": 0.75, "fp32": 0.25}
    assert shares(PrecisionPlan((decision("a", FP32, 0),))) == {}
    assert weight_bytes([np.zeros(3, np.float32), np.zeros(5, np.int8)]) == 17


def test_room_that_the_verification_leaves_is_used(bench: Callable[..., Bench]) -> None:
    """The selection samples see ten times the drop that the larger part sees."""
    narrow, kept, found, measured = bench(1, 4, 16, 32, shift=0.1).run(2.5)
    assert kept and measured.drop <= 2.5 and found.rounds <= MAX_ROUNDS
    assert narrow >= {0, 1}, "by the selection samples only the first is inside"


def test_what_was_kept_stays_where_a_faster_one_is_refused(bench: Callable[..., Bench]) -> None:
    made = bench(1, 4, 16, drop=lambda noise: 0.1 if noise <= 1 else 50.0)
    narrow, kept, _, measured = made.run(1.0)
    assert (narrow, kept) == ({0}, True) and measured.drop == 0.1
