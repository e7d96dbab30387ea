"""What the benchmark of whole networks makes of its measurements."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from narrowcast.benchmarks import networks
from narrowcast.timing import Spread


def spread(median: float) -> Spread:
    return Spread(median, median * 0.9, median * 1.1, median * 0.8)


TIMES = {
    "narrowcast int8": spread(0.010), "narrowcast fp32": spread(0.030),
    "openvino int8": spread(0.008), "onnxruntime int8": spread(0.040), "openvino fp32": spread(0.060),
}


def test_ratios_compare_like_with_like() -> None:
    found = networks.ratios(TIMES)
    assert found == {
        "fp32 / openvino fp32": pytest.approx(0.5), "int8 / onnxruntime int8": pytest.approx(0.25),
        "int8 / openvino int8": pytest.approx(1.25),
    }


def test_table_shows_every_measurement() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(networks.table({"net": TIMES}))
    text = console.export_text()
    assert all(name in text for name in TIMES)
    assert "10.00" in text and "9.00 … 11.00" in text and "1.25" in text


def test_report_is_json_with_machine_and_versions() -> None:
    found = json.loads(json.dumps(networks.report({"net": TIMES}, threads=2)))
    assert found["machine"]["threads"] == 2 and found["machine"]["cpu"]
    assert found["versions"]["torch"]
    assert found["networks"]["net"]["seconds"]["narrowcast int8"]["median"] == 0.010
    assert found["networks"]["net"]["ratios"]["int8 / openvino int8"] == pytest.approx(1.25)


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_drawn_inputs_have_batch_1_and_follow_the_seed(name: str) -> None:
    draw = networks.NETWORKS[name].draw
    first, same = (draw(np.random.default_rng(4)) for _ in range(2))
    assert all(len(array) == 1 for array in first)
    for array, again in zip(first, same, strict=True):
        np.testing.assert_array_equal(array, again)


def test_command_measures_prints_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def measured(
        network: networks.Network, precisions: object, threads: int, rounds: int, *, with_peers: bool
    ) -> dict[str, Spread]:
        asked.append((network, precisions, threads, rounds, with_peers))
        return TIMES

    monkeypatch.setattr(networks, "measure", measured)
    output = tmp_path / "folder" / "result.json"
    result = CliRunner().invoke(
        networks.main,
        ["--network", "minilm", "--precision", "int8", "--rounds", "3", "--threads", "1", "--no-peers", "--output",
         str(output)],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    assert asked == [(networks.NETWORKS["minilm"], ("int8",), 1, 3, False)]
    assert list(json.loads(output.read_text())["networks"]) == ["minilm"]
