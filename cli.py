"""The command line.

Exit codes: 0 success, 2 bad input (also of the command line), 3 the accuracy budget was not met, 130 interrupted.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from . import AccuracyBudget, BudgetError, CompileError, DataError, ImportModelError, PrecisionPlan, ProgramError, load
from . import compile as compile_model
from . import progress as progress_module
from .metrics import METRICS

BAD_INPUT, BUDGET_NOT_MET, INTERRUPTED = 2, 3, 130
# Columns of tables that do not go to a terminal, unless COLUMNS says otherwise.
_PLAIN_WIDTH = 120
# Names of layers are shown as they are, whatever they look like.
console = Console(
    width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PLAIN_WIDTH, markup=False, emoji=False
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="narrowcast")
def cli() -> None:
    """Compile trained networks to verified mixed-precision programs."""


def main() -> None:
    """The entry point: runs a command and turns the error family into exit codes."""
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = BAD_INPUT
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except BudgetError as error:
        click.echo(f"budget not met: {error}", err=True)
        code = BUDGET_NOT_MET
    except CompileError as error:
        click.echo(f"error: {error}", err=True)
        code = BAD_INPUT
    sys.exit(code if isinstance(code, int) else 0)


@cli.command("compile")
@click.argument("model")
@click.option("--target", default="cpu", show_default=True, help="cpu, or cpu:<LLVM CPU name>")
@click.option(
    "--data",
    "data_name",
    help="labelled samples: .npz or .safetensors with the inputs' names and 'labels', or package.module:function",
)
@click.option("--calibration", help="calibration samples kept apart from --data, in the same forms")
@click.option("--metric", default=None, help=f"of the budget, or of the drop to report: {', '.join(METRICS)}")
@click.option(
    "--max-drop", type=float, help="accuracy budget in the metric's units; without it the program is exact FP32"
)
@click.option("--relative", is_flag=True, help="the budget is a share of the FP32 metric")
@click.option("--confidence", type=float, default=0.95, show_default=True)
@click.option("--precision", type=click.Choice(["fp32", "fp16", "bf16", "int8"]), help="force one precision")
@click.option("--dim", "dims", multiple=True, metavar="NAME=EXTENT", help="fix a symbolic dim; may be given repeatedly")
@click.option("--threads", type=click.IntRange(1), help="threads of the program (default: every core)")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--tune", is_flag=True, help="choose the kernels' schedules by measuring, not by a model of the CPU")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="where the program is saved")
@click.option("--json", "as_json", is_flag=True, help="print the report as JSON, no bars")
def compile_command(
    model: str,
    target: str,
    data_name: str | None,
    calibration: str | None,
    metric: str | None,
    max_drop: float | None,
    relative: bool,
    confidence: float,
    precision: str | None,
    dims: tuple[str, ...],
    threads: int | None,
    seed: int,
    tune: bool,
    output: Path,
    as_json: bool,
) -> None:
    """Compile MODEL: an .onnx file, or package.module:function that returns a torch.nn.Module."""
    _check_folder(output)
    network = _read_model(model)
    data = _read_data(data_name) if data_name else None
    if max_drop is None and (calibration or relative or (metric and not precision)):
        raise DataError(
            "options of a budget are given without one",
            found="--calibration, --relative or --metric",
            hint="pass --max-drop; --metric goes with --precision too",
        )
    budget = None
    if max_drop is not None:
        budget = AccuracyBudget(
            max_drop=max_drop,
            data=data,
            metric=metric,
            confidence=confidence,
            relative=relative,
            calibration=_read_data(calibration) if calibration else None,
        )
    try:
        with progress_module.Bars() if not as_json and progress_module.wanted() else nullcontext() as bars:
            program = compile_model(
                network,
                target,
                budget,
                data=data if budget is None else None,
                precision=precision,
                metric=metric if budget is None else None,
                dims=_read_dims(dims),
                num_threads=threads,
                seed=seed,
                tune=tune,
                progress=bars or progress_module.silent,
            )
    except BudgetError as error:
        if as_json:
            found = {"measured_drop": error.measured_drop, "plan": json.loads(error.plan.to_json())}
            click.echo(json.dumps({"error": error.problem, **found}))
        raise
    program.save(output)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "output": str(output),
                    "report": json.loads(program.report.to_json()),
                    "plan": json.loads(program.plan.to_json()),
                }
            )
        )
        return
    console.print(plan_table(program.plan))
    console.print(str(program.report), highlight=False)
    console.print(f"saved to {output}", highlight=False)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--stage", help="the graph after this pass; without it the precision table and the report")
@click.option("--format", "form", type=click.Choice(["text", "dot", "json"]), default="text", show_default=True)
@click.option("--source", type=click.Choice(["relax", "tir", "llvm", "asm"]), help="the emitted code")
@click.option("--layer", help="with --source: of this layer alone")
def inspect(file: Path, stage: str | None, form: str, source: str | None, layer: str | None) -> None:
    """Show a saved program: plan and report, the graph after a pass, or the emitted code."""
    program = load(file)
    if source is not None:
        click.echo(program.source(source, layer))
        return
    if stage is None and form == "text":
        console.print(plan_table(program.plan))
        console.print(str(program.report), highlight=False)
        console.print("stages: " + ", ".join(s.name for s in program.stages), highlight=False)
        return
    if stage is None and form == "json":
        click.echo(
            json.dumps(
                {
                    "plan": json.loads(program.plan.to_json()),
                    "stages": [s.name for s in program.stages],
                    "report": json.loads(program.report.to_json()),
                    "inputs": [asdict(s) for s in program.inputs],
                }
            )
        )
        return
    shown = program.stages[-1] if stage is None else next((s for s in program.stages if s.name == stage), None)
    if shown is None:
        raise ProgramError(f"the program has no stage {stage!r}", expected=", ".join(s.name for s in program.stages))
    click.echo({"text": lambda: shown.text, "dot": shown.to_dot, "json": shown.to_json}[form]())


def _read_dims(given: tuple[str, ...]) -> dict[str, int]:
    """The extents by name of options like ``batch=1``."""
    pairs = {name: text for name, _, text in (entry.partition("=") for entry in given)}
    wrong = [f"{name}={text}" for name, text in pairs.items() if not name or not text.isdecimal()]
    if wrong:
        raise ImportModelError("--dim wants a name and an extent", found=", ".join(wrong), expected="--dim batch=1")
    return {name: int(text) for name, text in pairs.items()}


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--runs", type=click.IntRange(1), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def bench(file: Path, runs: int, as_json: bool) -> None:
    """Time a saved program on seeded inputs."""
    timing = load(file).benchmark(runs=runs)
    if as_json:
        click.echo(json.dumps(asdict(timing)))
        return
    peak = "" if timing.peak_share is None else f", {timing.peak_share:.0%} of the machine's peak"
    click.echo(
        f"median {timing.median_ms:.3f} ms, p95 {timing.p95_ms:.3f} ms, {timing.throughput:.1f} calls/s, "
        f"{timing.threads} threads, {timing.runs} runs{peak}"
    )


@cli.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("fashion_mnist.ncast"), show_default=True)
@click.option("--max-drop", type=float, default=0.005, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def demo(output: Path, max_drop: float, as_json: bool) -> None:
    """Compile the shipped Fashion-MNIST network under a budget and show every step."""
    from .demo import run_demo

    _check_folder(output)
    run_demo(output, max_drop, as_json, console)


def plan_table(plan: PrecisionPlan) -> Table:
    """The precision table: a row per fusion group."""
    table = Table(title="precision plan", title_justify="left")
    for column in ("layer", "kind", "precision", "stored as", "µs", "reason"):
        table.add_column(column, overflow="fold", justify="right" if column == "µs" else "left")
    for decision in plan.decisions:
        stores = ", ".join(s.dtype for s in plan.stored(decision.op))
        cost = "" if decision.cost_us is None else f"{decision.cost_us:.1f}"
        table.add_row(decision.op, decision.kind, str(decision.precision), stores, cost, decision.reason)
    return table


def _check_folder(output: Path) -> None:
    """Refuse, before the work, a path that the result could not be written to."""
    if output.is_dir() or not output.parent.is_dir():
        raise ProgramError(
            f"the program cannot be saved to {output}",
            found="a folder" if output.is_dir() else f"no folder {output.parent}",
            expected="a file name in a folder that exists",
        )


def _read_model(name: str) -> Any:
    if name.endswith(".onnx"):
        return Path(name)
    if ":" in name:
        return _call_by_name(name, ImportModelError)
    raise ImportModelError(f"{name} is not a model", expected="a path ending in .onnx, or package.module:function")


def _read_data(name: str) -> Any:
    path = Path(name)
    if path.suffix in (".npz", ".safetensors"):
        return _read_arrays(path)
    if ":" in name:
        return _call_by_name(name, DataError)
    raise DataError(
        f"{name} is not a data set", expected="a path ending in .npz or .safetensors, or package.module:function"
    )


def _read_arrays(path: Path) -> Any:
    import numpy as np
    import safetensors
    import safetensors.numpy

    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path):  # np.load would take other files of NumPy, and pickles, for what they are
                arrays = dict(np.load(path, allow_pickle=False))
        else:
            arrays = safetensors.numpy.load_file(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, safetensors.SafetensorError) as error:
        raise DataError(f"the data {path} cannot be read", found=str(error)) from error
    labels = arrays.pop("labels", None)
    if not arrays:
        raise DataError(
            f"{path} holds no inputs",
            found="labels alone" if labels is not None else "no arrays",
            expected="an array per input, and 'labels'",
        )
    inputs: Any = next(iter(arrays.values())) if len(arrays) == 1 else arrays
    return inputs if labels is None else (inputs, labels)


def _call_by_name(name: str, error_type: type[CompileError]) -> Any:
    """The result of the user's function; modules are found in the current folder too, as by ``python -m``."""
    module_name, _, function_name = name.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function: Callable[[], Any] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise error_type(f"{name} cannot be found", found=str(error), expected="package.module:function") from error
    if not callable(function):
        raise error_type(f"{name} is not a function", found=type(function).__name__, expected="package.module:function")
    try:
        return function()
    except CompileError:
        raise
    except Exception as error:
        raise error_type(f"{name} failed", found=f"{type(error).__name__}: {error}") from error
