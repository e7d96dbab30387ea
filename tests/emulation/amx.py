"""AMX on this machine: ``amx.c`` built with gcc, installed, and CPUs taken for ones that have it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

# A CPU with tiles of which everything else runs here.
NAME = "cpu:znver4+amx_tile+amx_int8+amx_bf16"
NEEDS_EMULATION = [
    pytest.mark.isa("avx512_vnni"),
    pytest.mark.isa("avx512_bf16"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the emulation of AMX is built with gcc, which is missing"),
]


@cache
def install() -> ctypes.CDLL:
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


def executed() -> int:
    """Multiply-adds of tiles that were carried out so far."""
    return int(install().amx_executed())
