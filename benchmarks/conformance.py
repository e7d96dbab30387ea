"""ONNX's own tests through narrowcast and ONNX Runtime, in one table by operator (``make conformance``).

``conformance.txt`` names every case that passes. A run that loses one of them fails; ``--update`` adds the new ones.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .conformance_cases import PACKAGED, Case, collect
from .conformance_engines import ENGINES, Verdict
from .conformance_workers import Pool

RATCHET = Path(__file__).with_suffix(".txt")
"""The cases that pass, one a line: ``node/test_abs``."""

STATUSES = ("passed", "constants", "failed", "unsupported", "crash", "hang")
Verdicts = Mapping[tuple[str, str], Verdict]


def held() -> set[str]:
    """The cases that must pass."""
    return set(RATCHET.read_text(encoding="utf-8").split()) if RATCHET.exists() else set()


def run(cases: Sequence[Case], engines: Sequence[str], processes: int, console: Console) -> Verdicts:
    """Every case through every engine."""
    tasks = [(engine, case) for engine in engines for case in cases]
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("cases", total=len(tasks))
        return Pool(processes).run(tasks, lambda done: bar.update(task, completed=done))


def lost(cases: Sequence[Case], verdicts: Verdicts) -> list[tuple[str, Verdict]]:
    """Held cases of this run that do not pass any more."""
    must = held()
    found = ((c.key, verdicts["narrowcast", c.key]) for c in cases if c.key in must)
    return [(key, verdict) for key, verdict in found if not verdict.passed]


def table(cases: Sequence[Case], verdicts: Verdicts, engines: Sequence[str]) -> Table:
    """One row per operator of the node tests, one per packaged set, then the sums."""
    rows: dict[str, list[Case]] = defaultdict(list)
    for case in sorted(cases, key=lambda c: (c.group != "node", c.operator if c.group == "node" else c.group)):
        rows[case.operator if case.group == "node" else case.group].append(case)
    result = Table(title="ONNX's own tests: passed (of these with operands bound as constants), then what did not")
    result.add_column("operator")
    result.add_column("cases", justify="right")
    for engine in engines:
        result.add_column(engine, justify="right")
        result.add_column("why not")
    for name, members in rows.items():
        _add_row(result, name, members, verdicts, engines)
    result.add_section()
    node = [c for c in cases if c.group == "node"]
    _add_row(result, "all node tests", node, verdicts, engines)
    _add_row(result, "all packaged", [c for c in cases if c.group in PACKAGED], verdicts, engines)
    return result


def _add_row(into: Table, name: str, members: Sequence[Case], verdicts: Verdicts, engines: Sequence[str]) -> None:
    cells = [name, str(len(members))]
    for engine in engines:
        counts = Counter(verdicts[engine, c.key].status for c in members)
        passed = counts["passed"] + counts["constants"]
        cells.append(f"{passed}" + (f" ({counts['constants']})" if counts["constants"] else ""))
        cells.append(", ".join(f"{counts[s]} {s}" for s in STATUSES[2:] if counts[s]))
    into.add_row(*cells)


def behind(cases: Sequence[Case], verdicts: Verdicts) -> list[tuple[str, Verdict]]:
    """What ONNX Runtime passes and narrowcast does not."""
    return [(c.key, verdicts["narrowcast", c.key]) for c in cases
            if verdicts["onnxruntime", c.key].passed and not verdicts["narrowcast", c.key].passed]


@click.command(help=__doc__)
@click.option("--only", default="", help="Operators, or parts of cases' names, with commas.")
@click.option("--engines", default=",".join(ENGINES), show_default=True, help="Which engines run.")
@click.option("--processes", default=2, show_default=True, help="Worker processes.")
@click.option("--output", type=click.Path(path_type=Path), help="Write every verdict to this JSON file.")
@click.option("--update", is_flag=True, help=f"Add the cases that pass to {RATCHET.name}.")
@click.option("--failures", is_flag=True, help="List all that narrowcast does not pass, not only what the other does.")
def main(only: str, engines: str, processes: int, output: Path | None, update: bool, failures: bool) -> None:
    console, start = Console(), time.monotonic()
    chosen = [e.strip() for e in engines.split(",")]
    cases = collect([w.strip() for w in only.split(",") if w.strip()])
    verdicts = run(cases, chosen, processes, console)
    console.print(table(cases, verdicts, chosen))
    if failures:
        _print_list(console, "Not passed", [(c.key, verdicts["narrowcast", c.key]) for c in cases
                                            if not verdicts["narrowcast", c.key].passed])
    elif "onnxruntime" in chosen:
        _print_list(console, "Passed by ONNX Runtime only", behind(cases, verdicts))
    work = sum(v.seconds for v in verdicts.values())
    console.print(f"{len(cases)} cases, {time.monotonic() - start:.0f} s, {work:.0f} s of CPU time")
    if output is not None:
        output.write_text(json.dumps(_records(cases, verdicts, chosen), indent=1), encoding="utf-8")
    gone = lost(cases, verdicts)
    if update:
        passing = {c.key for c in cases if verdicts["narrowcast", c.key].passed}
        RATCHET.write_text("\n".join(sorted(held() | passing)) + "\n", encoding="utf-8")
    if gone:
        _print_list(console, "LOST: these passed before", gone)
        sys.exit(1)


def _print_list(console: Console, title: str, found: Sequence[tuple[str, Verdict]]) -> None:
    console.print(f"{title}: {len(found)}")
    for key, verdict in found:
        console.print(f"  {key}  {verdict.status}: {verdict.reason}", markup=False, highlight=False, soft_wrap=True)


def _records(cases: Sequence[Case], verdicts: Verdicts, engines: Sequence[str]) -> list[dict[str, object]]:
    def record(verdict: Verdict) -> dict[str, object]:
        return {"status": verdict.status, "reason": verdict.reason, "seconds": round(verdict.seconds, 3)}

    return [{"case": c.key, "operator": c.operator, **{e: record(verdicts[e, c.key]) for e in engines}} for c in cases]


if __name__ == "__main__":
    main()
