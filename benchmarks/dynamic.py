"""Programs with an open batch beside those of a fixed one (``make bench-dynamic``): the same results, and the time.

Both are called with the batch that the fixed program has, in turn in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import narrowcast as nc
from narrowcast.models import bert, resnet
from narrowcast.timing import interleave

from .network_list import PRECISIONS, draw_image, draw_tokens
from .quantizers import Arrays

_CALIBRATION = 4


@dataclass(frozen=True)
class Case:
    """A module, the batch it is called with, what draws a call's inputs, and how many it takes."""

    build: Callable[[], nn.Module]
    batch: int
    draw: Callable[[np.random.Generator, int], Arrays]
    inputs: int


CASES = {
    "resnet50": Case(resnet.build, 1, lambda g, n: draw_image(g, (n, 3, 224, 224)), 1),
    "minilm, 128 tokens": Case(bert.build, 1, lambda g, n: draw_tokens(g, n, 128), 2),
    "minilm, 8 x 32 tokens": Case(bert.build, 8, lambda g, n: draw_tokens(g, n, 32), 2),
}


def programs(case: Case, precision: str, threads: int) -> tuple[nc.Program, nc.Program, Arrays]:
    """The program of the fixed batch, that of any, and the inputs of a call."""
    generator = np.random.default_rng(0)
    data = [case.draw(generator, case.batch) for _ in range(_CALIBRATION)]
    model, batch = case.build(), torch.export.Dim("batch", min=1, max=64)
    both = [nc.compile(model, "cpu", None, precision=precision, data=list(data), example_inputs=data[0],
                       dynamic_shapes=dynamic, num_threads=threads)
            for dynamic in (None, tuple({0: batch} for _ in range(case.inputs)))]
    return both[0], both[1], case.draw(generator, case.batch)


def difference(fixed: nc.Program, dynamic: nc.Program, inputs: Arrays) -> float:
    """The largest difference of the results, relative to the largest value."""
    a, b = (np.asarray(p(*inputs) if len(p.outputs) == 1 else p(*inputs)[0]) for p in (fixed, dynamic))
    return float(np.abs(a - b).max() / np.abs(a).max())


@click.command()
@click.option("--rounds", default=30, show_default=True, help="Timed calls of each program.")
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default=True, help="Threads of the programs.")
@click.option("--precision", "precisions", multiple=True, type=click.Choice(PRECISIONS), default=PRECISIONS)
def main(rounds: int, threads: int, precisions: tuple[str, ...]) -> None:
    """Measure programs of an open batch beside those of a fixed one."""
    table = Table()
    for column in ("network", "precision", "fixed ms", "open ms", "ratio", "largest difference"):
        table.add_column(column)
    for name, case in CASES.items():
        for precision in precisions:
            fixed, dynamic, inputs = programs(case, precision, threads)
            calls = {"fixed": lambda p=fixed, x=inputs: p(*x), "open": lambda p=dynamic, x=inputs: p(*x)}
            times = interleave(calls, rounds, pause=0.0)
            a, b = times["fixed"].median, times["open"].median
            table.add_row(name, precision, f"{a * 1e3:.2f}", f"{b * 1e3:.2f}", f"{b / a:.2f}",
                          f"{difference(fixed, dynamic, inputs):.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
