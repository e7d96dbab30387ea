"""The choice of schedules by measuring. What is measured is made up: only the choice counts here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast.backends import tuning
from narrowcast.backends.costs import CostTable, Progress, cost_key, time_kernels
from narrowcast.backends.cpu.build import run_kernel
from narrowcast.backends.cpu.emit import emit
from narrowcast.backends.cpu.kernel import MOST_SCHEDULES, Kernel, KernelRequest
from narrowcast.backends.target import Target
from narrowcast.backends.tuning import Choice, Tuner
from narrowcast.errors import PlanError
from narrowcast.ir import constant
from narrowcast.precision import FLOAT32, Precision

from .cpu.groups import group_of

TARGET = Target.parse("cpu", threads=2)


def linear(rows: int, depth: int, columns: int) -> KernelRequest:
    """A product with constant weights, in FP32."""
    weights = np.random.default_rng(0).standard_normal((depth, columns), dtype=np.float32)
    group = group_of("matmul", [(rows, depth)], lambda b, p: b.emit(relax.op.matmul(p[0], constant(weights)), "layer"))
    return KernelRequest(group, Precision.FP32, (FLOAT32,), (FLOAT32,))


def emitted(request: KernelRequest) -> Kernel:
    return emit(request, TARGET.capabilities, TARGET.threads)


@pytest.fixture
def preferred(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Times that are given in place of measured ones: schedule 2 of every kernel is the fastest. What was asked for."""
    asked: list[list[float]] = []

    def times(kernels: Sequence[Kernel], target: Target, extents: object) -> list[float]:
        seen: dict[tuple[str, ...], itertools.count[int]] = {}
        places = [next(seen.setdefault(k.schedules, itertools.count())) for k in kernels]
        asked.append([1.0 if place == 2 else 5.0 + place for place in places])
        return asked[-1]

    monkeypatch.setattr(tuning, "time_kernels", times)
    return asked


def tuner(path: Path, progress: Progress = lambda done, total: None) -> Tuner:
    return Tuner(CostTable(path), TARGET, emitted, progress)


@settings(deadline=None, max_examples=8)
@given(rows=st.integers(1, 70), depth=st.integers(1, 70), columns=st.integers(1, 140))
def test_every_schedule_computes_the_same(rows: int, depth: int, columns: int) -> None:
    request = linear(rows, depth, columns)
    kernel = emitted(request)
    assert len(kernel.schedules) == len(set(kernel.schedules)) <= MOST_SCHEDULES
    x = np.random.default_rng(1).standard_normal((rows, depth), dtype=np.float32)
    weights = np.random.default_rng(0).standard_normal((depth, columns), dtype=np.float32)
    bound = depth * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(weights))
    for schedule in range(len(kernel.schedules)):
        chosen = KernelRequest(request.group, Precision.FP32, (FLOAT32,), (FLOAT32,), schedule=schedule)
        (y,) = run_kernel(chosen, emitted(chosen), [x], TARGET.tvm_target())
        assert (np.abs(y - x.astype(np.float64) @ weights) <= bound).all(), kernel.schedules[schedule]


def test_a_schedule_that_there_is_not_is_refused() -> None:
    request = linear(64, 64, 64)
    missing = KernelRequest(request.group, Precision.FP32, (FLOAT32,), (FLOAT32,), schedule=MOST_SCHEDULES)
    with pytest.raises(PlanError, match="layer: the kernel has no such schedule"):
        emitted(missing)


def test_the_fastest_is_chosen_and_kept(tmp_path: Path, preferred: list[list[float]]) -> None:
    path, seen = tmp_path / "costs.json", []
    requests = [linear(64, 64, 96), linear(48, 32, 64), linear(64, 64, 96)]
    first = tuner(path, lambda done, total: seen.append((done, total))).choose(requests)
    assert [(c.schedule, c.model_us, c.fastest_us) for c in first if c] == [(2, 5.0, 1.0)] * 3
    assert first[0] == first[2] != first[1], "kernels of equal code are compared once"
    assert sum(map(len, preferred)) == sum(len(emitted(r).schedules) for r in requests[:2]) and seen == [(2, 2)]
    assert tuner(path).choose(requests) == first and len(preferred) == 1, "the second table read the first one's file"
    assert json.loads(path.read_text())["microseconds"] == {}


def test_another_ranking_is_compared_anew(tmp_path: Path, preferred: list[list[float]]) -> None:
    path, request = tmp_path / "costs.json", linear(64, 64, 96)
    CostTable(path).keep_race(cost_key(emitted(request), TARGET), {"a schedule of an older version": 1.0})
    assert [c.schedule for c in tuner(path).choose([request]) if c] == [2] and len(preferred) == 1


def test_kernels_without_a_choice_are_left_alone(tmp_path: Path, preferred: list[list[float]]) -> None:
    group = group_of("elementwise", [(4, 5)], lambda b, p: b.emit(relax.op.abs(p[0]), "layer"))
    request = KernelRequest(group, Precision.FP32, (FLOAT32,), (FLOAT32,))
    assert tuner(tmp_path / "costs.json").choose([request]) == [None] and preferred == []


def test_interrupted_comparisons_are_kept(tmp_path: Path, preferred: list[list[float]],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_TOGETHER", 1)
    path, requests = tmp_path / "costs.json", [linear(64, 64, 96), linear(48, 32, 64)]

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuner(path, interrupt).choose(requests)
    assert len(preferred) == 1
    assert [c.schedule for c in tuner(path).choose(requests) if c] == [2, 2] and len(preferred) == 2


def test_costs_and_comparisons_are_in_one_file(tmp_path: Path, preferred: list[list[float]]) -> None:
    path, request = tmp_path / "costs.json", linear(64, 64, 96)
    (choice,) = tuner(path).choose([request])
    assert isinstance(choice, Choice)
    CostTable(path).measure([emitted(request)], TARGET)
    assert tuner(path).choose([request]) == [choice] and len(CostTable(path)) == len(preferred) == 1


def test_kernels_are_timed_in_the_order_they_are_given() -> None:
    small, large = emitted(linear(4, 8, 16)), emitted(linear(256, 512, 512))
    times = time_kernels([large, small, large], TARGET)
    assert times[1] < min(times[0], times[2])


def test_what_is_hardly_faster_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = linear(64, 64, 96)
    for last, expected in ((98.0, 0), (90.0, len(emitted(request).schedules) - 1)):
        monkeypatch.setattr(tuning, "time_kernels",
                            lambda kernels, *_, last=last: [100.0] * (len(kernels) - 1) + [last])
        (choice,) = tuner(tmp_path / f"{last}.json").choose([request])
        assert choice is not None and (choice.schedule, choice.fastest_us) == (expected, last if expected else 100.0)
