"""Whole networks emitted for CPUs of every tier: how many of the tier's instructions there are, how many innermost
loops, and how many of these spill (``make tiers``). Where this machine has the CPU's features, every kernel is compared
with the reference evaluator.
"""

from __future__ import annotations

import time

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import narrowcast as nc
from narrowcast.backends.target import Target
from narrowcast.frontends import import_model
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement

from .assembly import instructions, spills, sums_by
from .network_list import NETWORKS

TIERS = {("haswell", "fp32"): "vfmadd231ps ymm", ("haswell", "int8"): "vpmaddwd ymm",
         ("alderlake", "int8"): "vpdpbusd ymm", ("sapphirerapids", "fp16"): "vfmadd231ph zmm"}


def agreement(program: nc.Program, target: Target, network: str, inputs: tuple[np.ndarray, ...]) -> str:
    """How the kernels of a program agree with the evaluator, where they run."""
    if not target.runs_here():
        return "does not run here"
    mod = run_pipeline(import_model(NETWORKS[network].build(), inputs).mod)
    found = kernel_agreement(mod, program.plan, target, inputs)
    wrong = [a.detail for a in found if not a.ok]
    if wrong:
        raise click.ClickException("\n".join(wrong))
    return f"{len(found)} kernels, at most {max(a.steps or 0 for a in found)} step"


@click.command()
@click.option("--network", "networks", multiple=True, default=("resnet50", "minilm, 128 tokens"), show_default=True)
def main(networks: tuple[str, ...]) -> None:
    """Emit the networks for every tier."""
    table = Table("network", "CPU", "precision", "seconds", "instruction", "count", "loops", "spill", "evaluator")
    for network in networks:
        generator = np.random.default_rng(0)
        data = [next(iter(NETWORKS[network].draws.values()))(generator) for _ in range(2)]
        for (cpu, precision), instruction in TIERS.items():
            start, target = time.perf_counter(), Target.parse(f"cpu:{cpu}", 2)
            program = nc.compile(NETWORKS[network].build(), str(target), None, precision=precision, data=data,
                                 example_inputs=data[0], num_threads=2)
            seconds, assembly = time.perf_counter() - start, program.source("asm")
            loops = sums_by(assembly, instruction)
            table.add_row(network, cpu, precision, f"{seconds:.0f}", instruction,
                          str(instructions(assembly)[instruction]), str(len(loops)),
                          str(sum(bool(spills(loop)[0]) for loop in loops)),
                          agreement(program, target, network, data[0]))
    Console().print(table)


if __name__ == "__main__":
    main()
