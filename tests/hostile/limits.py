"""Limits on what one hostile input may cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 10.0
BYTES = 2 * 2 ** 30


@contextmanager
def bounded() -> Iterator[None]:
    """What runs inside takes at most ``SECONDS`` and lets the process grow by at most ``BYTES``."""
    Path("/proc/self/clear_refs").write_text("5")
    before, start = _peak(), time.perf_counter()
    yield
    assert time.perf_counter() - start < SECONDS
    assert _peak() - before < BYTES


def _peak() -> int:
    """The peak of resident bytes since the last reset."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
