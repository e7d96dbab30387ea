"""What every fuzz target asks of one ONNX file: it is imported and compiled, or refused by an error of the family.

Faults are every other exception, a crash, more than ``GROWTH`` bytes of memory and more than ``SECONDS`` of processor
time for one file. libFuzzer's own ``-timeout``, of elapsed time, ends what never comes back.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zlib
from pathlib import Path

import narrowcast
from narrowcast.errors import CompileError
from narrowcast.frontends.onnx import import_onnx
from narrowcast.ir import op_bindings

GROWTH = 2 * 2 ** 30
# Larger graphs are imported only: each binding is a kernel to compile. Of the others one in so many is compiled, which
# takes as long as a hundred imports.
MAX_COMPILED, ONE_IN = 24, 4
SECONDS, TIMEOUT_SECONDS = 10, 90
# The most that one process holds: what it begins with, what compilations leave behind, and one file's growth.
RSS_LIMIT_MB = 6144


class Folder:
    """A model's folder with a file of external data, and around it what no model may read."""

    def __init__(self) -> None:
        self._root = tempfile.TemporaryDirectory(prefix="fuzz-")
        root = Path(self._root.name)
        self.model = root / "model" / "m.onnx"
        self.model.parent.mkdir()
        (self.model.parent / "data").write_bytes(bytes(range(256)) * 4)
        (root / "secret").write_bytes(b"secret" * 32)
        (self.model.parent / "link").symlink_to(root / "secret")

    def check(self, content: bytes) -> None:
        """Import and compile the model that ``content`` is; raises for everything that is a fault."""
        self.model.write_bytes(content)
        _reset_peak()
        before, start = _peak(), time.process_time()
        try:
            imported = import_onnx(self.model)
            if len(op_bindings(imported.mod["main"])) <= MAX_COMPILED and zlib.crc32(content) % ONE_IN == 0:
                narrowcast.compile(self.model, num_threads=1)
        except CompileError as error:
            _judge(error)
        growth = _peak() - before
        if time.process_time() - start > SECONDS:
            raise TimeoutError(f"one model took {time.process_time() - start:.1f} s")
        if growth > GROWTH:
            raise MemoryError(f"one model took {growth / 2 ** 20:.0f} MiB")


def _judge(error: CompileError) -> None:
    """An error of narrowcast's own making, or one that says nothing, is a fault too."""
    if isinstance(error, narrowcast.VerificationError) or not error.problem.strip():
        raise AssertionError(f"not the user's fault: {error!r}") from error
    if isinstance(error.__cause__, MemoryError):
        raise MemoryError("memory was exhausted") from error


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """The peak of resident bytes since the last reset."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def options(arguments: list[str]) -> list[str]:
    """libFuzzer's command line: ours first, so that the user's wins."""
    return [sys.argv[0], f"-timeout={TIMEOUT_SECONDS}", f"-rss_limit_mb={RSS_LIMIT_MB}", "-detect_leaks=0", *arguments]
