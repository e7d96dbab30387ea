"""The choice between a kernel's schedules by measuring: the few that the model ranks best run on this machine, in
turns, and the fastest is taken where it is faster than the model's own by more than noise. Comparisons are kept
beside the costs, so that a kernel is compared once and every later compilation makes the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..dims import NO_SYMBOLS
from .costs import CostTable, Progress, cost_key, time_kernels
from .cpu.emit import emit
from .cpu.kernel import Kernel, KernelRequest
from .target import Target

# Kernels whose schedules are compiled, and timed in turns, together.
_TOGETHER = 5
# Of the time of the model's own schedule, what a faster one takes at most.
_FASTER = 0.97

@dataclass(frozen=True)
class Choice:
    """The schedule of a kernel that was measured to be the fastest; the model's own unless another is clearly faster.

    key : what the comparison is kept under: equal for kernels that differ in names and values only.
    schedule : its place in the model's ranking.
    model_us, fastest_us : measured microseconds of the model's own choice, and of this one.
    """

    key: str
    schedule: int
    model_us: float
    fastest_us: float


@dataclass
class Tuner:
    """Finds the fastest schedules of kernels.

    kernel : the kernel of a request; the caller may keep what it gives.
    extents : of the kernels' symbols, by name: what they are timed at.
    progress : called with the kernels compared and in all.
    """

    table: CostTable
    target: Target
    kernel: Callable[[KernelRequest], Kernel]
    progress: Progress
    extents: Mapping[str, int] = field(default_factory=lambda: NO_SYMBOLS)

    def choose(self, requests: Sequence[KernelRequest]) -> list[Choice | None]:
        """The choice for every request; None where a kernel has one schedule, or no multiply-adds.

        What the table lacks is measured, and kept as soon as it is.
        """
        kernels = [self.kernel(replace(request, schedule=0)) for request in requests]
        keys = [cost_key(k, self.target, self.extents) if len(k.schedules) > 1 and k.macs else None for k in kernels]
        self._compare({key: (request, kernel.schedules)
                       for key, request, kernel in zip(keys, requests, kernels, strict=True)
                       if key is not None and self.table.race(key, kernel.schedules) is None})
        return [None if key is None else self._fastest(key, kernel)
                for key, kernel in zip(keys, kernels, strict=True)]

    def _compare(self, wanted: Mapping[str, tuple[KernelRequest, tuple[str, ...]]]) -> None:
        items = list(wanted.items())
        for start in range(0, len(items), _TOGETHER):
            part = items[start:start + _TOGETHER]
            candidates = [(key, name, self._candidate(request, i))
                          for key, (request, schedules) in part for i, name in enumerate(schedules)]
            times = time_kernels([kernel for *_, kernel in candidates], self.target, self.extents)
            races: dict[str, dict[str, float]] = {}
            for (key, name, _), time in zip(candidates, times, strict=True):
                races.setdefault(key, {})[name] = time
            for key, race in races.items():
                self.table.keep_race(key, race)
            self.progress(start + len(part), len(items))

    def _candidate(self, request: KernelRequest, schedule: int) -> Kernel:
        return emit(replace(request, schedule=schedule), self.target.capabilities, self.target.threads)

    def _fastest(self, key: str, kernel: Kernel) -> Choice:
        times = self.table.race(key, kernel.schedules)
        assert times is not None, "it was compared"
        best = times.index(min(times)) if min(times) < _FASTER * times[0] else 0
        return Choice(key, best, times[0], times[best])
