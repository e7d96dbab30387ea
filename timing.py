"""Fair timing on a noisy machine: the candidates take turns, and medians are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Seconds between candidates: ONNX Runtime's threads spin for more than 20 ms after a call.
PAUSE = 0.1


@dataclass(frozen=True)
class Spread:
    """Seconds per call: median, 10th and 90th percentile and minimum over the rounds."""

    median: float
    p10: float
    p90: float
    minimum: float


def interleave(
    calls: Mapping[str, Callable[[], Any]], rounds: int = 50, warmup: int = 5, *, pause: float = PAUSE
) -> dict[str, Spread]:
    """Call every candidate once per round, in turn, so that drifts of the machine hit all alike.

    Before each candidate is a pause in which the others' threads, which spin for a while after a call, go to sleep;
    none is needed where the candidates share their threads. Then it is called twice and the second call is timed: the
    first wakes its own threads and brings its data back into the caches.
    """
    for _ in range(warmup):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if pause:
                time.sleep(pause)
            call()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {
        name: Spread(float(np.median(t)), float(np.percentile(t, 10)), float(np.percentile(t, 90)), min(t))
        for name, t in times.items()
    }
