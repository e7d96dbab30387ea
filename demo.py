"""``narrowcast demo``: the shipped Fashion-MNIST network, compiled under a budget, next to PyTorch and ONNX Runtime."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from . import AccuracyBudget, Program
from . import compile as compile_model
from . import progress as progress_module
from .cli import plan_table
from .models import fashion_mnist
from .timing import interleave


def run_demo(output: Path, max_drop: float, as_json: bool, console: Console) -> None:
    """Compile, report, compare and save; prints tables, or one JSON object."""
    network = fashion_mnist.load()
    budget = AccuracyBudget(
        max_drop=max_drop, data=fashion_mnist.test_data(), metric="top1", calibration=fashion_mnist.calibration_data()
    )
    with progress_module.Bars() if not as_json and progress_module.wanted() else nullcontext() as bars:
        program = compile_model(network, "cpu", budget, progress=bars or progress_module.silent)
    program.save(output)
    latency = _latencies(program, network)
    if as_json:
        print(
            json.dumps({"output": str(output), "report": json.loads(program.report.to_json()), "latency_ms": latency})
        )
        return
    console.print(plan_table(program.plan))
    console.print(_accuracy_table(program))
    console.print(_latency_table(latency))
    console.print(str(program.report), highlight=False)
    console.print(
        f"saved to {output} ({output.stat().st_size / 1e6:.2f} MB); "
        f"narrowcast inspect {output} shows it, narrowcast bench {output} times it",
        highlight=False,
    )


def _accuracy_table(program: Program) -> Table:
    report = program.report
    table = Table(title=f"top-1 accuracy on {report.samples} test images", title_justify="left")
    interval = f"{report.confidence:.0%} interval"
    for column in ("FP32", "compiled", "drop (points)", interval, "at most", "budget (points)"):
        table.add_column(column, justify="right")
    assert report.baseline is not None and report.compiled is not None and report.drop is not None
    assert report.lower is not None and report.upper is not None
    assert report.bound is not None and report.max_drop is not None
    table.add_row(
        f"{report.baseline:.2%}",
        f"{report.compiled:.2%}",
        f"{100 * report.drop:.2f}",
        f"{100 * report.lower:.2f} … {100 * report.upper:.2f}",
        f"{100 * report.bound:.2f}",
        f"{100 * report.max_drop:.2f}",
    )
    return table


def _latencies(program: Program, network: torch.nn.Module) -> dict[str, float]:
    """Median milliseconds of one call at batch 1, all measured in turn in this process with the same threads."""
    image = fashion_mnist.test_data()[0][:1]
    array = np.ascontiguousarray(image, dtype=np.float32)
    tensor = torch.from_numpy(array)
    previous = torch.get_num_threads()
    torch.set_num_threads(program.report.threads)
    try:
        with torch.inference_mode():
            calls: dict[str, Callable[[], Any]] = {
                "narrowcast": lambda: program(array),
                "PyTorch eager": lambda: network(tensor),
            }
            session = _onnxruntime_session(network, tensor, program.report.threads)
            if session is not None:
                name = session.get_inputs()[0].name
                calls["ONNX Runtime"] = lambda: session.run(None, {name: array})
            return {name: t.median * 1e3 for name, t in interleave(calls, rounds=50, warmup=20).items()}
    finally:
        torch.set_num_threads(previous)


def _onnxruntime_session(network: torch.nn.Module, example: torch.Tensor, threads: int) -> Any:
    """An ONNX Runtime session of the FP32 network, or None where the package is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it reports at length that torchvision is not installed
    try:
        exported = torch.onnx.export(network, (example,), dynamo=True, verbose=False)
    finally:
        log.setLevel(level)
    assert exported is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = exported.model_proto.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _latency_table(latency: dict[str, float]) -> Table:
    table = Table(title="latency at batch 1 (median)", title_justify="left")
    for column in ("", "ms", "times narrowcast"):
        table.add_column(column, justify="right")
    for name, value in latency.items():
        table.add_row(name, f"{value:.3f}", f"{value / latency['narrowcast']:.2f}")
    return table
