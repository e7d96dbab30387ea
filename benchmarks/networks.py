"""Whole networks: narrowcast next to ONNX Runtime, OpenVINO and torch.compile, in turn in one process (``make bench``).

``network_list`` says which networks, and on what.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from torch import nn

import narrowcast as nc
from narrowcast.timing import Spread, interleave

from .network_list import NETWORKS, PRECISIONS, Network
from .peers import PEERS, Arrays, build_peers

RIVALS = {precision: tuple(p for p in PEERS if p.endswith(precision)) for precision in PRECISIONS}
"""The peers that narrowcast is compared with at each precision."""
CALIBRATION = 8
_MODULES = {"apache-tvm": "tvm"}
PACKAGES = ("apache-tvm", "torch", "onnxruntime", "openvino", "nncf")


def build_programs(
    model: nn.Module | Path, inputs: Arrays, calibration: Sequence[Arrays], precisions: Sequence[str], threads: int
) -> dict[str, Callable[..., Any]]:
    """narrowcast's programs, each forced to one precision wherever the CPU has it."""
    return {
        f"narrowcast {precision}": nc.compile(
            model, "cpu", None, precision=precision, data=list(calibration), example_inputs=inputs,
            num_threads=threads,
        )
        for precision in precisions
    }


def measure(
    network: Network, precisions: Sequence[str], threads: int, rounds: int, *, with_peers: bool = True
) -> dict[str, dict[str, Spread]]:
    """By what it is called with: seconds per call of narrowcast's programs and, where wanted, of their rivals."""
    generator = np.random.default_rng(0)
    draws = list(network.draws.values())
    calibration = [draws[0](generator) for _ in range(CALIBRATION)]
    model = network.build()
    precisions = [p for p in precisions if p in network.precisions]
    calls: dict[str, Callable[..., Any]] = dict(build_programs(model, calibration[0], calibration, precisions, threads))
    if with_peers:
        rivals = {name for precision in precisions for name in RIVALS[precision]}
        calls |= build_peers(
            model, calibration[0], calibration, threads, transformer=network.transformer,
            wanted=[name for name in PEERS if name in rivals],
        )
    results = {}
    for name, draw in network.draws.items():
        inputs = draw(generator)
        bound = {who: lambda call=call, inputs=inputs: call(*inputs) for who, call in calls.items()}
        results[name] = interleave(bound, rounds=rounds, warmup=5)
    return results


def ratios(times: dict[str, Spread]) -> dict[str, float]:
    """narrowcast's median over each rival's of the same precision; below 1 is faster."""
    return {
        f"{precision} / {rival}": times[f"narrowcast {precision}"].median / times[rival].median
        for precision, rivals in RIVALS.items()
        for rival in rivals
        if f"narrowcast {precision}" in times and rival in times
    }


def table(results: dict[str, dict[str, Spread]]) -> Table:
    """Median milliseconds with the 10th and 90th percentile, and the ratios."""
    result = Table(title="median ms (10 … 90 %); ratio: narrowcast / peer, below 1 is faster")
    for column in ("network", "who", "median", "10 … 90 %", "ratio"):
        result.add_column(column, justify="left" if column in ("network", "who") else "right")
    for network, times in results.items():
        compared = {key.split(" / ")[1]: value for key, value in ratios(times).items()}
        for name, spread in times.items():
            percentiles = f"{spread.p10 * 1e3:.2f} … {spread.p90 * 1e3:.2f}"
            ratio = f"{compared[name]:.2f}" if name in compared else ""
            result.add_row(network, name, f"{spread.median * 1e3:.2f}", percentiles, ratio)
        result.add_section()
    return result


def report(results: dict[str, dict[str, Spread]], threads: int) -> dict[str, Any]:
    """What was measured, where and with what, as JSON data; seconds."""
    return {
        "machine": {"cpu": _cpu_name(), "threads": threads, "system": platform.system()},
        "versions": {package: version(package) for package in PACKAGES if find_spec(_MODULES.get(package, package))},
        "networks": {
            network: {"seconds": {name: asdict(spread) for name, spread in times.items()}, "ratios": ratios(times)}
            for network, times in results.items()
        },
    }


def _cpu_name() -> str:
    """The processor's name as Linux gives it, else Python's."""
    listed = Path("/proc/cpuinfo")
    if listed.is_file():
        for line in listed.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@click.command()
@click.option("--network", "names", multiple=True, type=click.Choice(list(NETWORKS)), default=list(NETWORKS),
              help="Networks to measure; all by default.")
@click.option("--precision", "precisions", multiple=True, type=click.Choice(PRECISIONS), default=PRECISIONS,
              help="Precisions to measure; all by default.")
@click.option("--rounds", default=50, show_default=True, help="Timed calls of each candidate.")
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default=True, help="Threads of everybody.")
@click.option("--peers/--no-peers", "with_peers", default=True, help="Whether to measure the peers too.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("build/networks.json"),
              show_default=True, help="JSON file to write.")
def main(
    names: Sequence[str], precisions: Sequence[str], rounds: int, threads: int, with_peers: bool, output: Path
) -> None:
    """Measure whole networks; print a table and write JSON."""
    console = Console()
    results: dict[str, dict[str, Spread]] = {}
    for name in names:
        with console.status(f"measuring {name}"):
            measured = measure(NETWORKS[name], precisions, threads, rounds, with_peers=with_peers)
        results |= {name + on: times for on, times in measured.items()}
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(report(results, threads), indent=1) + "\n")
    console.print(table(results))
    console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    main()
