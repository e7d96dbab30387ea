"""Whole networks at batch 1: narrowcast next to ONNX Runtime and OpenVINO, in turn in one process (``make bench``).

ResNet-50, MobileNetV2 and the encoder have seeded random weights, and random inputs calibrate everybody: this measures
time, never accuracy.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
from narrowcast.models import bert, efficientnet_lite, mobilenet, resnet
from narrowcast.timing import Spread, interleave

from .peers import PEERS, Arrays, build_peers

PRECISIONS = ("fp32", "bf16", "int8")
RIVALS = {
    "fp32": ("onnxruntime fp32", "openvino fp32"),
    "bf16": ("openvino bf16",),
    "int8": ("onnxruntime int8", "openvino int8"),
}
"""The peers that narrowcast is compared with at each precision."""
CALIBRATION = 8
TOKENS = 128
_MODULES = {"apache-tvm": "tvm"}
PACKAGES = ("apache-tvm", "torch", "onnxruntime", "openvino", "nncf")


@dataclass(frozen=True)
class Network:
    """A network, a function that draws inputs for one call, and whether NNCF should take it for a transformer."""

    build: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator], Arrays]
    transformer: bool = False


def draw_image(generator: np.random.Generator) -> Arrays:
    """One normal random image, float32 [1, 3, 224, 224]."""
    return (generator.standard_normal((1, 3, 224, 224), dtype=np.float32),)


def draw_tokens(generator: np.random.Generator) -> Arrays:
    """Random token ids and a full mask, int64 [1, 128]."""
    return generator.integers(0, 30522, (1, TOKENS)), np.ones((1, TOKENS), np.int64)


NETWORKS = {
    "resnet50": Network(resnet.build, draw_image),
    "mobilenetv2": Network(mobilenet.build, draw_image),
    "efficientnet-lite0": Network(efficientnet_lite.load_model, draw_image),
    "minilm": Network(bert.build, draw_tokens, transformer=True),
}


def build_programs(
    model: nn.Module, inputs: Arrays, calibration: Sequence[Arrays], precisions: Sequence[str], threads: int
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
) -> dict[str, Spread]:
    """Seconds per call of narrowcast's programs and, where wanted, of their rivals at these precisions."""
    generator = np.random.default_rng(0)
    calibration = [network.draw(generator) for _ in range(CALIBRATION)]
    inputs = calibration[0]
    model = network.build()
    calls: dict[str, Callable[..., Any]] = dict(build_programs(model, inputs, calibration, precisions, threads))
    if with_peers:
        rivals = {name for precision in precisions for name in RIVALS[precision]}
        peers = build_peers(
            model, inputs, calibration, threads, transformer=network.transformer,
            wanted=[name for name in PEERS if name in rivals],
        )
        calls |= peers
    bound = {name: lambda call=call: call(*inputs) for name, call in calls.items()}
    return interleave(bound, rounds=rounds, warmup=5)


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
    result = Table(title="batch 1, median ms (10 … 90 %); ratio: narrowcast / peer, below 1 is faster")
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
    """Measure whole networks at batch 1; print a table and write JSON."""
    console = Console()
    results: dict[str, dict[str, Spread]] = {}
    for name in names:
        with console.status(f"measuring {name}"):
            results[name] = measure(NETWORKS[name], precisions, threads, rounds, with_peers=with_peers)
    console.print(table(results))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report(results, threads), indent=1) + "\n")
    console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    main()
