"""Candidates take turns and are timed on their second call of a turn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from narrowcast import timing


def test_candidates_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    clock = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    result = timing.interleave({n: lambda n=n: calls.append(n) for n in "ab"}, rounds=3, warmup=2, pause=0.0)
    assert calls == ["a", "b"] * 2 + ["a", "a", "b", "b"] * 3
    assert result["a"] == result["b"] == timing.Spread(1.0, 1.0, 1.0, 1.0)


def test_spread_is_of_the_timed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call k of the clock is at k**2, so the rounds take 1, 5, 9, … ."""
    ticks = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(ticks) ** 2))
    spread = timing.interleave({"a": lambda: None}, rounds=11, warmup=0, pause=0.0)["a"]
    times = np.arange(11) * 4.0 + 1
    assert spread == timing.Spread(21.0, float(np.percentile(times, 10)), float(np.percentile(times, 90)), 1.0)
