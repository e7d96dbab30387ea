"""ONNX's own tests: none that passed is lost. A file of its own: pytest-xdist gives out files with few tests last, and
this one's processes keep all CPUs busy."""

from __future__ import annotations

import io

from rich.console import Console

from narrowcast.benchmarks import conformance
from narrowcast.benchmarks.conformance_cases import collect


def test_none_that_passed_is_lost() -> None:
    must = conformance.held()
    cases = [c for c in collect() if c.key in must]
    assert {c.key for c in cases} == must
    verdicts = conformance.run(cases, ["narrowcast"], 2, Console(file=io.StringIO()))
    assert conformance.lost(cases, verdicts) == []
