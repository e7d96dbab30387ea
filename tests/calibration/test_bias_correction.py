"""Bias correction undoes the mean error of INT8, channel by channel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import narrowcast as nc
from narrowcast.backends.target import Target
from narrowcast.calibration.bias_correction import estimate_corrections
from narrowcast.calibration.calibrators import MinMax, calibrate
from narrowcast.calibration.evaluator import Evaluator
from narrowcast.calibration.statistics import Statistics
from narrowcast.frontends import import_model
from narrowcast.ir import groups_of
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement


class Net(torch.nn.Module):
    """A convolution without bias, a depthwise one and a linear layer on inputs far from zero mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, bias=False)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, groups=8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.depthwise(torch.relu(self.conv(x)))).mean((2, 3)))


@pytest.fixture(scope="module")
def data() -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(0)
    return [(3 + rng.standard_normal((1, 3, 12, 12), dtype=np.float32),) for _ in range(12)]


def test_corrections_are_the_mean_errors(data: list[tuple[np.ndarray, ...]]) -> None:
    mod = run_pipeline(import_model(Net().eval(), data[0]).mod)
    evaluator, statistics = Evaluator(mod), Statistics()
    for sample in data:
        evaluator.visit(sample, statistics.observe)
    qparams = calibrate(groups_of(mod), statistics, MinMax())
    corrections = estimate_corrections(evaluator, data, qparams)
    assert {n: len(c) for n, c in corrections.items()} == {"conv": 8, "depthwise": 8, "head": 4}
    assert max(abs(c) for c in corrections["conv"]) > 1e-4
    program = evaluator.programs["conv"]
    weights = program.constants[program.weight]  # [8, 3, 3, 3], output channel first
    scale = weights.abs().amax((1, 2, 3), keepdim=True) / 127
    rounding = (torch.round(weights / scale) * scale - weights).sum((1, 2, 3))
    expected = -3 * rounding  # the inputs' mean is 3 and rounding them has no mean
    np.testing.assert_allclose(corrections["conv"], expected, atol=0.15 * float(expected.abs().max()))


@pytest.mark.isa("avx512_vnni")
def test_the_program_loses_less_and_agrees_with_the_evaluator(
    data: list[tuple[np.ndarray, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net().eval()
    with torch.no_grad():
        exact = np.concatenate([net(torch.from_numpy(x)).numpy() for x, in data])

    def error() -> tuple[float, nc.Program]:
        program = nc.compile(net, "cpu", None, precision="int8", data=data, example_inputs=data[0])
        return float(np.abs((np.concatenate([program(x) for x, in data]) - exact).mean(axis=0)).max()), program

    corrected, program = error()
    assert any(d.correction for d in program.plan.decisions)
    mod = run_pipeline(import_model(net, data[0]).mod)
    agreements = kernel_agreement(mod, program.plan, Target.parse("cpu"), data[0])
    assert [a.detail for a in agreements if not a.ok] == []
    monkeypatch.setattr("narrowcast.compiler.estimate_corrections", lambda *a, **k: {})
    assert corrected < 0.7 * error()[0]
