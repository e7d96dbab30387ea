"""Linux's permission to use AMX: the kernel has room for the tiles only in threads of processes that asked for it."""

from __future__ import annotations

import ctypes
import functools
import os

from ..errors import TargetError
from .target import Target

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
# TILERELEASE, the last instruction of every task that uses tiles.
_TILERELEASE = bytes.fromhex("c4e27849c0")


def uses_tiles(library: bytes, target: Target) -> bool:
    """Whether a library's machine code has instructions of AMX."""
    return "amx_tile" in target.capabilities.features and _TILERELEASE in library


def request_tiles_for(target: Target) -> None:
    """``request_tiles`` where a target's kernels may use tiles."""
    if "amx_tile" in target.capabilities.features:
        request_tiles()


@functools.cache
def request_tiles() -> None:
    """Ask Linux once for the tiles of all threads of this process; TargetError where it refuses."""
    error = _arch_prctl(_ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    if error:
        raise TargetError("Linux refuses this process the use of AMX", found=os.strerror(error),
                          expected="Linux 5.16 or newer, on a CPU with AMX",
                          hint="compile for a CPU without AMX, for example cpu:cooperlake")


def _arch_prctl(code: int, argument: int) -> int:
    """The system call's error number; 0 where it succeeds."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, ctypes.c_long(code), ctypes.c_long(argument)) == 0:
        return 0
    return ctypes.get_errno()
