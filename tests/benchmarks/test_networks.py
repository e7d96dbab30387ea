"""What the benchmark of whole networks makes of its measurements."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from torch import nn

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


@pytest.mark.parametrize("name", [n for n in networks.NETWORKS if not n.startswith("silero")])
def test_drawn_inputs_follow_the_seed(name: str) -> None:
    for draw in networks.NETWORKS[name].draws.values():
        first, same = (draw(np.random.default_rng(4)) for _ in range(2))
        for array, again in zip(first, same, strict=True):
            np.testing.assert_array_equal(array, again)


def test_one_program_is_measured_on_all_that_is_drawn() -> None:
    """Compiled once, with peers left out; the times of both inputs are there, and none of precisions not asked for."""
    network = networks.Network(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(),
        {"": lambda g: (g.standard_normal((1, 8), dtype=np.float32),),
         ", again": lambda g: (g.standard_normal((1, 8), dtype=np.float32),)}, precisions=("fp32",))
    found = networks.measure(network, networks.PRECISIONS, threads=1, rounds=2, with_peers=False)
    assert {on: list(times) for on, times in found.items()} == {"": ["narrowcast fp32"], ", again": ["narrowcast fp32"]}


def test_command_measures_prints_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def measured(
        network: networks.Network, precisions: object, threads: int, rounds: int, *, with_peers: bool
    ) -> dict[str, dict[str, Spread]]:
        asked.append((network, precisions, threads, rounds, with_peers))
        return {"": TIMES, ", twice": TIMES}

    monkeypatch.setattr(networks, "measure", measured)
    output = tmp_path / "folder" / "result.json"
    result = CliRunner().invoke(
        networks.main,
        ["--network", "minilm, 128 tokens", "--precision", "int8", "--rounds", "3", "--threads", "1", "--no-peers",
         "--output", str(output)],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    assert asked == [(networks.NETWORKS["minilm, 128 tokens"], ("int8",), 1, 3, False)]
    assert list(json.loads(output.read_text())["networks"]) == ["minilm, 128 tokens", "minilm, 128 tokens, twice"]
