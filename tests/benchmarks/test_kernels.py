"""The kernel benchmark: layers, shares and output."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from narrowcast.backends.target import Target
from narrowcast.benchmarks import kernels
from narrowcast.precision import Precision


def test_resnet50_has_53_convolutions_and_a_classifier() -> None:
    layers = kernels.resnet50()
    assert sum(layer.count for layer in layers if layer.kernel) == 53
    assert sum(layer.count for layer in layers if not layer.kernel) == 1


def test_the_share_weighs_layers_by_their_time() -> None:
    fast = kernels.Result("a", 2, 1_000_000, 10.0, 100.0, 100.0, 1.0)
    slow = kernels.Result("b", 1, 1_000_000, 20.0, 50.0, 100.0, 0.5)
    assert kernels.weighted_share([fast, slow]) == pytest.approx((2 * 10 + 10) / (2 * 10 + 20))


@pytest.mark.isa("avx512_vnni")
def test_layers_are_measured(tmp_path: Path) -> None:
    layers = [kernels.Layer("conv", 6, 8, 16, 3, residual=True), kernels.Layer("dw", 6, 16, 16, 3, 2, 16),
              kernels.Layer("fc", 3, 8, 20, 0, activation="gelu")]
    results = kernels.measure(layers, Precision.INT8, Target.parse("cpu", 1))
    assert [r.macs for r in results] == [36 * 9 * 8 * 16, 9 * 9 * 16, 3 * 8 * 20]
    assert all(r.microseconds > 0 and r.share > 0 for r in results)
    console = Console(file=io.StringIO(), width=120)
    kernels.show(results, "small", console)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(kernels.report_of("small", Precision.INT8, 1, results)), encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8"))["layers"][1]["layer"] == "dw"
