"""Programs called from several threads at once."""

from __future__ import annotations

from rich.console import Console

from narrowcast.benchmarks import threads


def test_two_programs_from_four_threads() -> None:
    """Two seconds of it; ``make bench-threads`` takes a minute."""
    console = Console(record=True, quiet=True)
    threads.call_for(2.0, 2, console)
