"""Quantized models at batch 1: narrowcast's integer program of a model next to its FP32 program of the network before
quantization, and to ONNX Runtime on the same file (``make bench-quantized``).

Weights are seeded and random; the differences to the reference are measured on inputs that nobody was calibrated with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import narrowcast as nc
from narrowcast.models import bert, mobilenet, resnet
from narrowcast.timing import Spread, interleave

from .network_list import Draw, draw_image, draw_tokens
from .peers import export_onnx, session
from .quantizers import Arrays, quantize_onnx, quantize_pt2e

CALIBRATION = 8
CHECKED = 3
INT8, FP32 = "narrowcast, the quantized model", "narrowcast fp32"


@dataclass(frozen=True)
class Subject:
    """A network, a function that draws inputs for one call, and the tool that quantizes it."""

    build: Callable[[], nn.Module]
    draw: Draw
    tool: str


SUBJECTS = {
    "resnet50 QDQ": Subject(resnet.build, draw_image, "QDQ"),
    "resnet50 operators": Subject(resnet.build, draw_image, "QOperator"),
    "mobilenetv2 QDQ": Subject(mobilenet.build, draw_image, "QDQ"),
    "mobilenetv2 PT2E": Subject(mobilenet.build, draw_image, "PT2E"),
    "minilm PT2E": Subject(lambda: bert.build(attention=bert.PlainSelfAttention),
                            partial(draw_tokens, batch=1, tokens=128), "PT2E"),
}


@dataclass(frozen=True)
class Result:
    """What was measured of one model.

    seconds : per call.
    int8_share : the share of the multiply-adds.
    steps : the largest difference to the reference (ONNX Runtime on the same file, PyTorch on the same module), in
        quantization steps of the output; where that is not quantized, in 255ths of its range.
    reference_steps : the same between the reference and itself without its optimizations (ONNX Runtime's graph
        optimizations, PyTorch's oneDNN): roundings in deep networks with random weights multiply.
    """

    seconds: dict[str, Spread]
    int8_share: float
    steps: float
    reference_steps: float


def measure(subject: Subject, threads: int, rounds: int) -> Result:
    """Quantize, compile, compare and time one network."""
    generator = np.random.default_rng(0)
    calibration = [subject.draw(generator) for _ in range(CALIBRATION)]
    model = subject.build()
    quantized, reference, plain, step = _quantized(model, subject.tool, calibration, threads)
    program = nc.compile(quantized, num_threads=threads)
    exact = nc.compile(model, example_inputs=calibration[0], num_threads=threads)
    checked = [subject.draw(generator) for _ in range(CHECKED)]
    expected = [_first(reference(*arrays)) for arrays in checked]
    step = step or max(map(float, map(np.ptp, expected))) / 255

    def apart(call: Callable[..., Any]) -> float:
        return max(float(np.abs(_first(call(*x)) - y).max()) for x, y in zip(checked, expected, strict=True)) / step

    calls: dict[str, Callable[..., Any]] = {INT8: program, FP32: exact}
    if subject.tool != "PT2E":
        calls["onnxruntime, the same file"] = reference
    inputs = calibration[0]
    bound = {name: lambda call=call: call(*inputs) for name, call in calls.items()}
    return Result(interleave(bound, rounds=rounds), program.report.int8_share, apart(program), apart(plain))


def _quantized(model: nn.Module, tool: str, calibration: Sequence[Arrays],
               threads: int) -> tuple[Any, Callable[..., Any], Callable[..., Any], float | None]:
    """The quantized model, its reference with and without optimizations, and the scale of its output where it has
    one."""
    if tool == "PT2E":
        samples = [tuple(torch.from_numpy(array) for array in arrays) for arrays in calibration]
        module, exported = quantize_pt2e(model, samples)

        @torch.no_grad()
        def reference(*arrays: np.ndarray) -> np.ndarray:
            return module(*map(torch.from_numpy, arrays)).numpy()

        def plain(*arrays: np.ndarray) -> np.ndarray:
            with torch.backends.mkldnn.flags(enabled=False):  # type: ignore[no-untyped-call]
                return reference(*arrays)

        return exported, reference, plain, None
    quantized = quantize_onnx(export_onnx(model, calibration[0]), calibration, form=tool)
    sessions = [session(quantized, threads, optimized=optimized) for optimized in (True, False)]
    return quantized, sessions[0], sessions[1], output_scale(quantized)


def output_scale(model: onnx.ModelProto) -> float:
    """The scale of the dequantization that a quantized model ends with."""
    last = next(n for n in reversed(model.graph.node) if n.op_type == "DequantizeLinear")
    (scale,) = (i for i in model.graph.initializer if i.name == last.input[1])
    return float(onnx.numpy_helper.to_array(scale))


def _first(outputs: Any) -> np.ndarray:
    return np.asarray(outputs[0] if isinstance(outputs, (list, tuple)) else outputs)


def table(results: dict[str, Result]) -> Table:
    """Median milliseconds, their ratio to those of FP32, and how far the results are from the reference's."""
    title = "batch 1, median ms (10 … 90 %); ratio: the quantized model / who, below 1 is faster"
    columns = ("model", "who", "median", "10 … 90 %", "ratio", "INT8", "steps apart", "reference's own")
    result = Table(title=title)
    for column in columns:
        result.add_column(column, justify="left" if column in ("model", "who") else "right")
    for name, found in results.items():
        own = found.seconds[INT8].median
        for who, spread in found.seconds.items():
            percentiles = f"{spread.p10 * 1e3:.2f} … {spread.p90 * 1e3:.2f}"
            figures = (f"{found.int8_share:.0%}", f"{found.steps:.3f}", f"{found.reference_steps:.3f}")
            facts = figures if who == INT8 else ("", "", "")
            ratio = "" if who == INT8 else f"{own / spread.median:.2f}"
            result.add_row(name, who, f"{spread.median * 1e3:.2f}", percentiles, ratio, *facts)
        result.add_section()
    return result


@click.command()
@click.option("--model", "names", multiple=True, type=click.Choice(list(SUBJECTS)), default=list(SUBJECTS),
              help="Models to measure; all by default.")
@click.option("--rounds", default=30, show_default=True, help="Timed calls of each candidate.")
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default=True, help="Threads of everybody.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("build/quantized.json"),
              show_default=True, help="JSON file to write.")
def main(names: Sequence[str], rounds: int, threads: int, output: Path) -> None:
    """Measure quantized models at batch 1; print a table and write JSON."""
    console = Console()
    results: dict[str, Result] = {}
    for name in names:
        with console.status(f"measuring {name}"):
            results[name] = measure(SUBJECTS[name], threads, rounds)
    console.print(table(results))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({name: asdict(found) for name, found in results.items()}, indent=1) + "\n")
    console.print(f"written to {output}", highlight=False)


if __name__ == "__main__":
    main()
