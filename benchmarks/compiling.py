"""How long compiling takes, and how much memory (``make bench-compiling``): ResNet-50 in FP32, without calibration."""

from __future__ import annotations

import resource
import time

import click
import numpy as np
from rich.console import Console

import narrowcast as nc
from narrowcast.models import resnet


@click.command()
@click.option("--threads", default=2, show_default=True, help="Threads of the program.")
def main(threads: int) -> None:
    """Compile ResNet-50 twice in this process; print the seconds by phase, and the most memory it held."""
    model, image, console = resnet.build(), np.zeros((1, 3, 224, 224), np.float32), Console()
    for which in ("first", "again"):
        start = time.perf_counter()
        program = nc.compile(model, example_inputs=(image,), num_threads=threads)
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in program.report.seconds.items())
        console.print(f"{which}: {time.perf_counter() - start:.1f} s ({phases})", highlight=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"at most {peak:.2f} GiB", highlight=False)


if __name__ == "__main__":
    main()
