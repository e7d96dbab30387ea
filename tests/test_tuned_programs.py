"""Programs whose schedules were chosen by measuring; the measured times are made up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
from narrowcast.backends import tuning
from narrowcast.backends.cpu.kernel import MOST_SCHEDULES, Kernel
from narrowcast.backends.target import Target
from narrowcast.errors import TargetError
from narrowcast.frontends import import_model
from narrowcast.passes import run_pipeline
from narrowcast.precision import PrecisionPlan
from narrowcast.verification import kernel_agreement

X = np.random.default_rng(0).standard_normal((8, 3, 14, 14)).astype(np.float32)


class Network(nn.Module):
    """A convolution, a product of two tensors and a linear layer: every way to multiply that has schedules."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.act, self.head = nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Linear(48, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 40]."""
        rows = self.act(self.conv(x)).flatten(2).transpose(1, 2)
        return self.head((torch.matmul(rows, rows.transpose(1, 2)) @ rows / 196).mean(1))


@pytest.fixture
def prefer(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Makes one schedule of every kernel the fastest, or the last where a kernel has fewer; how many were compared."""
    def install(schedule: int) -> list[int]:
        compared: list[int] = []

        def times(kernels: Sequence[Kernel], target: Target, extents: object) -> list[float]:
            compared.append(len(kernels))
            found: list[float] = []
            for schedules, group in itertools.groupby(kernels, key=lambda k: k.schedules):
                places = len(list(group))
                best = min(schedule, len(schedules) - 1)
                found += [1.0 if place % len(schedules) == best else 9.0 for place in range(places)]
            return found

        monkeypatch.setattr(tuning, "time_kernels", times)
        return compared
    return install


def schedules(plan: PrecisionPlan) -> dict[str, int]:
    return {d.op: d.schedule for d in plan.decisions if d.macs}


@pytest.mark.parametrize(("precision", "schedule"), [
    ("fp32", 1), ("bf16", 3), ("int8", 2), ("int8", MOST_SCHEDULES - 1)])
def test_the_program_has_the_fastest_schedules(
    precision: str, schedule: int, tmp_path: Path, prefer: Callable[[int], list[int]]
) -> None:
    if precision not in map(str, Target.parse("cpu").precisions()):
        pytest.skip(f"this CPU has no {precision}")
    prefer(schedule)
    network = Network().eval()
    program = nc.compile(network, data=X, precision=precision, num_threads=2, cost_cache=tmp_path / "c.json", tune=True)
    found = schedules(program.plan)
    assert found and set(found.values()) <= set(range(1, schedule + 1)) and schedule in found.values()
    mod = run_pipeline(import_model(network, (torch.tensor(X[:1]),)).mod)
    agreements = kernel_agreement(mod, program.plan, Target.parse("cpu", 2), [X[:1]])
    assert [a for a in agreements if not a.ok] == []
    assert PrecisionPlan.from_json(program.plan.to_json()) == program.plan
    report = program.report
    assert report.tuned > 0 and report.tuned_us is not None and report.model_us == 9 * report.tuned_us
    assert f"schedules of {report.tuned} kernels compared" in str(report)


def test_the_next_compilation_measures_nothing(tmp_path: Path, prefer: Callable[[int], list[int]]) -> None:
    compared = prefer(2)
    steps: list[tuple[str, int, int]] = []
    first, again = (nc.compile(Network().eval(), example_inputs=(X[:1],), cost_cache=tmp_path / "c.json", tune=True,
                               num_threads=2, progress=lambda *step: steps.append(step)) for _ in range(2))
    assert len(compared) == 1 and again.plan == first.plan and set(schedules(first.plan).values()) == {2}
    total = first.report.tuned
    assert [s for s in steps if s[0] == "compare schedules"] == [("compare schedules", total, total)]
    np.testing.assert_array_equal(first(X[:1]), again(X[:1]))


def test_without_tune_nothing_is_read(tmp_path: Path, prefer: Callable[[int], list[int]]) -> None:
    compared = prefer(2)
    cache = tmp_path / "c.json"
    nc.compile(Network().eval(), example_inputs=(X[:1],), cost_cache=cache, tune=True, num_threads=2)
    kept = cache.read_text(encoding="utf-8")
    plain = nc.compile(Network().eval(), example_inputs=(X[:1],), cost_cache=cache, num_threads=2)
    assert set(schedules(plain.plan).values()) == {0} and len(compared) == 1
    assert plain.report.tuned == 0 and plain.report.tuned_us is None and "compared" not in str(plain.report)
    assert cache.read_text(encoding="utf-8") == kept


def test_targets_that_do_not_run_here_are_refused() -> None:
    with pytest.raises(TargetError, match="schedules are compared by running them"):
        nc.compile(Network().eval(), "cpu:znver5", example_inputs=(X[:1],), tune=True)
