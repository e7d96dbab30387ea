"""AMX on this machine: its own tiles, and ``amx.c``, built with gcc and installed, for what they lack; and a CPU taken
for one with AMX."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from narrowcast.precision import Precision

from ..conftest import cpu_flags

# A CPU with tiles of which everything else runs on AMD's and Intel's CPUs.
NAME = "cpu:cooperlake+amx_tile+amx_int8+amx_bf16"


def is_native(precision: Precision) -> bool:
    """Whether this CPU's tiles have a precision's multiply-add."""
    return f"amx_{precision}" in cpu_flags()


_IS_WHOLE = all(map(is_native, (Precision.INT8, Precision.BF16, Precision.FP16)))
NEEDS_AMX = [
    pytest.mark.isa("avx512_vnni"),
    pytest.mark.isa("avx512_bf16"),
    pytest.mark.skipif(not _IS_WHOLE and shutil.which("gcc") is None,
                       reason="the emulation of AMX is built with gcc, which is missing"),
]


@cache
def emulation() -> ctypes.CDLL:
    """The emulation, installed for the rest of the process."""
    with tempfile.TemporaryDirectory(prefix="narrowcast-") as folder:
        library = Path(folder) / "amx.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["gcc", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-Wall", "-Werror",
                        str(source), "-o", str(library), "-lm"], check=True)
        emulation = ctypes.CDLL(str(library))
    emulation.amx_executed.restype = ctypes.c_long
    if emulation.amx_install() != 0:
        raise OSError("the handler of SIGILL could not be installed")
    return emulation


def install() -> None:
    """Have tiles executed in this process."""
    if not _IS_WHOLE:
        emulation()


@contextmanager
def executing(precision: Precision, more_than: int = 0, exactly: int | None = None) -> Iterator[None]:
    """What runs has to execute that many multiply-adds of tiles, which a CPU that has them does not count."""
    before = 0 if is_native(precision) else emulation().amx_executed()
    yield
    if not is_native(precision):
        executed = emulation().amx_executed() - before
        assert executed == exactly if exactly is not None else executed > more_than
