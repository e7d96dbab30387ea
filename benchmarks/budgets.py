"""Trained networks with real labels under their budgets, and the emitted programs against the reference evaluator.

    python -m benchmarks.budgets [--network NAME]...

For every network: the program is compiled under its budget, verified on held-out data, and each of its kernels is run
on the stored inputs that the evaluator computed and compared with what the evaluator stores
(``calibration/agreement.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import narrowcast as nc
from narrowcast.backends.target import Target
from narrowcast.calibration.agreement import Agreement
from narrowcast.frontends import import_model
from narrowcast.models import efficientnet_lite, fashion_mnist, minilm, silero
from narrowcast.models.benchmark import Benchmark
from narrowcast.passes import run_pipeline
from narrowcast.report import Report
from narrowcast.verification import kernel_agreement

console = Console()


@dataclass(frozen=True)
class Case:
    """A network with the budget it must keep; ``metric`` None is the benchmark's own."""

    load: Callable[[], Benchmark]
    max_drop: float
    relative: bool = False
    metric: str | None = None
    options: dict[str, Any] | None = None
    confidence: float | None = 0.95
    must_keep: bool = True


def _fashion_mnist() -> Benchmark:
    def pairs(data: tuple[Any, Any]) -> list[Any]:
        images, labels = (np.asarray(a) for a in data)
        return [((images[i : i + 1],), labels[i : i + 1]) for i in range(len(images))]

    test = pairs(fashion_mnist.test_data())
    return Benchmark(
        "fashion-mnist", fashion_mnist.load(), test[0][0], pairs(fashion_mnist.calibration_data()), test, "top1"
    )


CASES = {
    "fashion-mnist": Case(_fashion_mnist, 0.005),
    "efficientnet-lite0": Case(efficientnet_lite.load, 0.02, relative=True),
    "efficientnet-lite0 agreement": Case(
        partial(efficientnet_lite.load, evaluation_crops=120, calibration_crops=32), 0.01, metric="agreement"
    ),
    "efficientnet-lite0 agreement, measured drop": Case(
        partial(efficientnet_lite.load, evaluation_crops=120, calibration_crops=32),
        0.01,
        metric="agreement",
        confidence=None,
    ),
    "minilm": Case(minilm.load, 0.01),
    "silero-vad": Case(silero.load, 0.01),
    "silero-vad per-tensor INT8": Case(
        silero.load, 0.01, options={"precision": "int8", "per_channel": False}, must_keep=False
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What came of a case: the report, or the refusal's measured drop; and where kernels and evaluator disagree."""

    kept: bool
    drop: float
    report: Report | None
    decisions: int
    disagreements: tuple[Agreement, ...]


def run_case(case: Case) -> Outcome:
    """Compile a network under its budget."""
    benchmark = case.load()
    budget = nc.AccuracyBudget(
        max_drop=case.max_drop,
        data=benchmark.evaluation,
        metric=case.metric or benchmark.metric,
        calibration=benchmark.calibration,
        relative=case.relative,
        confidence=case.confidence,
    )
    try:
        program = nc.compile(
            benchmark.model, "cpu", budget, example_inputs=benchmark.example_inputs, **case.options or {}
        )
    except nc.BudgetError as error:
        return Outcome(False, error.measured_drop, None, len(error.plan.decisions), ())
    mod = run_pipeline(import_model(benchmark.model, benchmark.example_inputs).mod)
    agreements = kernel_agreement(mod, program.plan, Target.parse("cpu"), benchmark.evaluation[0][0])
    wrong = [a for a in agreements if not a.ok]
    assert program.report.drop is not None
    return Outcome(True, program.report.drop, program.report, len(program.plan.decisions), tuple(wrong))


def table(outcomes: dict[str, Outcome]) -> Table:
    """A row per case."""
    result = Table(title="programs under their budgets, judged on held-out data")
    for column in (
        "case",
        "budget kept",
        "metric",
        "FP32",
        "compiled",
        "drop",
        "at most",
        "samples",
        "INT8 share",
        "BF16 share",
        "ms",
        "FP32 ms",
        "seconds",
        "groups off the evaluator",
    ):
        result.add_column(column, justify="right")
    for name, o in outcomes.items():
        r = o.report
        rest = (
            ["", "", "", f"{o.drop:.5f}"] + [""] * 9
            if r is None
            else [
                str(r.metric),
                f"{r.baseline:.5f}",
                f"{r.compiled:.5f}",
                f"{o.drop:.5f}",
                f"{r.bound:.5f}",
                str(r.samples),
                f"{r.int8_share:.1%}",
                f"{r.bf16_share:.1%}",
                f"{r.latency_ms or 0:.3f}",
                f"{r.fp32_latency_ms or 0:.3f}",
                f"{r.total_seconds:.1f}",
                f"{len(o.disagreements)} of {o.decisions}",
            ]
        )
        result.add_row(name, "yes" if o.kept else "no", *rest[:12])
    return result


@click.command()
@click.option("--network", "names", multiple=True, type=click.Choice(list(CASES)), default=list(CASES))
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("build/budgets.json"))
def main(names: Sequence[str], output: Path) -> None:
    """Compile trained networks under their budgets; fails where one is missed or a kernel is off the evaluator."""
    outcomes = {}
    for name in names:
        with console.status(f"compiling {name}"):
            outcomes[name] = run_case(CASES[name])
    console.print(table(outcomes))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(
        json.dumps(
            {
                n: {
                    "kept": o.kept,
                    "drop": o.drop,
                    "disagreements": [d.detail for d in o.disagreements],
                    "report": None if o.report is None else json.loads(o.report.to_json()),
                }
                for n, o in outcomes.items()
            },
            indent=1,
        )
        + "\n"
    )
    bad = [n for n, o in outcomes.items() if o.kept != CASES[n].must_keep or o.disagreements]
    if bad:
        raise click.ClickException("not as required: " + ", ".join(bad))


if __name__ == "__main__":
    main()
