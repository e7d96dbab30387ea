"""Every matrix product and convolution of the networks against what bounds it (``make bench-layers``): the peak of its
multiply-adds, or the bandwidth of memory.

Kernels are those of the compiled programs, timed alone with all threads. A layer reaches the bound at 88 % of the peak
or 85 % of the bandwidth; the others are listed with what their shape tells of the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import narrowcast as nc
from narrowcast.backends.costs import CostTable, cost_key
from narrowcast.backends.cpu.emit import emit
from narrowcast.backends.cpu.kernel import Kernel
from narrowcast.backends.cpu.peak import peak_macs_per_second
from narrowcast.backends.lower import has_kernel, native_storages, request_for
from narrowcast.backends.target import Target
from narrowcast.dims import evaluate_dim
from narrowcast.frontends import import_model
from narrowcast.ir import Group, dims_of, groups_of
from narrowcast.passes import run_pipeline
from narrowcast.precision import Precision

from .bandwidth import bandwidth
from .network_list import NETWORKS, PRECISIONS, Network

MACS = 5_000_000
"""Layers of fewer multiply-adds are left out."""
PEAK, BANDWIDTH = 0.88, 0.85
"""The shares that a layer is to reach, of one or of the other."""
_CALIBRATION = 4
_FEW_ROWS, _SHORT, _FEW_COLUMNS = 16, 256, 32


@dataclass(frozen=True)
class Layer:
    """Layers of one code.

    count : how many the network has.
    rows, depth, columns : of the product, of one group; a convolution's depth is its whole window.
    compute, memory : shares of the peak and of the bandwidth.
    """

    network: str
    precision: str
    layer: str
    count: int
    macs: int
    rows: int
    depth: int
    columns: int
    microseconds: float
    compute: float
    memory: float

    @property
    def reaches(self) -> bool:
        """Whether it runs at its bound."""
        return self.compute >= PEAK or self.memory >= BANDWIDTH

    @property
    def reason(self) -> str:
        """What keeps a layer of this shape from its bound."""
        found = []
        if self.rows < _FEW_ROWS:
            found.append(f"{self.rows} rows for every weight")
        if self.depth < _SHORT:
            found.append(f"sums of {self.depth}: finishing the results takes as long")
        if self.columns < _FEW_COLUMNS:
            found.append(f"{self.columns} columns")
        return "; ".join(found) or "operands from the second-level cache and beyond"


def layers_of(name: str, network: Network, precision: str, target: Target) -> Iterator[Layer]:
    """The layers of a network in one precision, those of one code once."""
    generator = np.random.default_rng(0)
    draw = next(iter(network.draws.values()))
    data = [draw(generator) for _ in range(_CALIBRATION)]
    model = network.build()
    program = nc.compile(model, str(target), None, precision=precision, data=data, example_inputs=data[0],
                         num_threads=target.threads)
    imported = import_model(model, data[0])
    mod, extents = run_pipeline(imported.mod), imported.hints
    stored, typical = native_storages(mod, program.plan), tuple(sorted(extents.items()))
    found: dict[str, tuple[Group, Precision, Kernel, int]] = {}
    for group in groups_of(mod):
        if not has_kernel(group) or group.kind not in ("conv", "matmul"):
            continue
        request = request_for(group, program.plan, stored, typical)
        kernel = emit(request, target.capabilities, target.threads)
        if kernel.macs >= MACS:
            key = cost_key(kernel, target, extents)
            before = found.get(key, (group, request.precision, kernel, 0))
            found[key] = (*before[:3], before[3] + 1)
    times = CostTable(Path("build/rooflines.json")).measure([kernel for *_, kernel, _ in found.values()], target,
                                                            extents=extents)
    for (group, own, kernel, count), microseconds in zip(found.values(), times, strict=True):
        yield _layer((name, group.name, count), group, own, kernel, microseconds, target, extents)


def _layer(names: tuple[str, str, int], group: Group, precision: Precision, kernel: Kernel, microseconds: float,
           target: Target, extents: dict[str, int]) -> Layer:
    size = [evaluate_dim(d, extents) for d in dims_of(group.anchor.value)]
    rows, depth = int(np.prod(size[:-1])), kernel.macs // int(np.prod(size))
    peak = peak_macs_per_second(precision, target, rounds=5)
    moved = sum(c.nbytes for c in kernel.constants)
    return Layer(names[0], str(precision), names[1], names[2], kernel.macs, rows, depth, size[-1], microseconds,
                 kernel.macs / peak / (microseconds * 1e-6), moved / bandwidth(target) / (microseconds * 1e-6))


def show(layers: Sequence[Layer], console: Console) -> None:
    """How many layers reach their bound, and the others."""
    table = Table(title=f"below {PEAK:.0%} of the peak and {BANDWIDTH:.0%} of the bandwidth")
    for column in ("network", "precision", "layer", "times", "rows × depth × columns", "µs", "peak", "memory", "why"):
        table.add_column(column)
    for one in layers:
        if not one.reaches:
            table.add_row(one.network, one.precision, one.layer, str(one.count),
                          f"{one.rows} × {one.depth} × {one.columns}", f"{one.microseconds:.0f}",
                          f"{one.compute:.0%}", f"{one.memory:.0%}", one.reason)
    console.print(table)
    for precision in dict.fromkeys(one.precision for one in layers):
        own = [one for one in layers if one.precision == precision]
        ideal = sum(one.count * one.microseconds * max(one.compute, one.memory) for one in own)
        taken = sum(one.count * one.microseconds for one in own)
        console.print(f"{precision}: {sum(one.count for one in own if one.reaches)} of {sum(one.count for one in own)} "
                      f"layers reach their bound; all together {ideal / taken:.0%} of it", highlight=False)


@click.command()
@click.option("--network", "names", multiple=True, type=click.Choice(list(NETWORKS)), default=list(NETWORKS),
              help="Networks; all by default.")
@click.option("--precision", "precisions", multiple=True, type=click.Choice(PRECISIONS), default=("bf16", "int8"),
              show_default=True)
@click.option("--threads", type=int, help="Threads; all cores by default.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("build/layers.json"),
              show_default=True, help="JSON file to write.")
def main(names: Sequence[str], precisions: Sequence[str], threads: int | None, output: Path) -> None:
    """Measure the layers of more than five million multiply-adds; list those that stay below their bound."""
    console, target = Console(), Target.parse("cpu", threads)
    layers: list[Layer] = []
    for name in names:
        for precision in precisions:
            if precision in NETWORKS[name].precisions:
                with console.status(f"{name}, {precision}"):
                    layers += layers_of(name, NETWORKS[name], precision, target)
    show(layers, console)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps([asdict(one) | {"reaches": one.reaches} for one in layers], indent=1),
                      encoding="utf-8")


if __name__ == "__main__":
    main()
