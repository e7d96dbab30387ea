"""Limits on what one hostile input may cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

# Of processor time, and of growth of the process.
SECONDS = 10.0
BYTES = 2 * 2 ** 30


class Cost:
    """What runs inside the context costs: processor seconds, and bytes by which the process grew at most."""

    seconds = 0.0
    bytes = 0

    def __enter__(self) -> Self:
        Path("/proc/self/clear_refs").write_text("5")
        self._peak, self._start = _peak(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.bytes = time.process_time() - self._start, _peak() - self._peak


@contextmanager
def bounded() -> Iterator[None]:
    """What runs inside takes at most ``SECONDS`` and lets the process grow by at most ``BYTES``."""
    with Cost() as cost:
        yield
    assert cost.seconds < SECONDS and cost.bytes < BYTES


def _peak() -> int:
    """The peak of resident bytes since the last reset."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
