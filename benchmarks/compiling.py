"""How long compiling takes, and how much memory (``make bench-compiling``): ResNet-50 without calibration, each
precision in a process of its own, first and once more."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import narrowcast as nc
from narrowcast.models import resnet

PRECISIONS = ("fp32", "bf16")


def measure(precision: str, threads: int) -> dict[str, float]:
    """Seconds of the first and of the second compilation in this process, and the most memory it held, in GiB."""
    model, image = resnet.build(), np.zeros((1, 3, 224, 224), np.float32)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        nc.compile(model, precision=precision, example_inputs=(image,), num_threads=threads)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"first": seconds[0], "again": seconds[1], "gib": peak}


@click.command()
@click.option("--threads", default=2, show_default=True, help="Threads of the program.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Measure one in this process, and print JSON.")
def main(threads: int, precision: str | None) -> None:
    """Measure the compilation of ResNet-50; print a table."""
    if precision is not None:
        print(json.dumps(measure(precision, threads)))
        return
    table = Table("precision", "first", "again", "memory", title="compiling ResNet-50 without calibration")
    for each in PRECISIONS:
        command = [sys.executable, "-m", "narrowcast.benchmarks.compiling", "--precision", each,
                   "--threads", str(threads)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        table.add_row(each, f"{found['first']:.1f} s", f"{found['again']:.1f} s", f"{found['gib']:.2f} GiB")
    Console().print(table)


if __name__ == "__main__":
    main()
