"""Machine code of a lowered module: built once into a shared library, which is what runs, is verified and is saved."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.relax import transform
from tvm.support import cc

from ..errors import ProgramError, TargetError, VerificationError
from . import host as host  # Registers what programs call.
from .cpu import pipeline
from .libraries import LibraryCache, library_key
from .target import Target, detect
from .tile_permission import request_tiles, uses_tiles

# TVM's default pipeline without the passes that want PrimFuncs with a root block, which kernels here do not have.
_PIPELINE = (
    transform.ToNonDataflow,
    transform.RemovePurityChecking,
    transform.CallTIRRewrite,
    transform.StaticPlanBlockMemory,
    transform.LowerAllocTensor,
    transform.KillAfterLastUse,
    transform.LowerRuntimeBuiltin,
    transform.ComputePrimValue,
    transform.VMShapeLower,
    transform.AttachGlobalSymbol,
)

# Kernels call functions of these libraries alone. To read the C++ library and what starts a process, as the C++
# compiler does by itself, takes most of the time that linking a small program takes.
_link = cc.cross_compiler(cc.create_shared, options=["-nostdlib"], add_files=["-lm", "-lc", "-lgcc"])


def build_executable(mod: tvm.IRModule, target: tvm.target.Target) -> relax.VMExecutable:
    """Compile a lowered module in memory; VerificationError where TVM's code generator refuses it."""
    try:
        return tvm.compile(mod, target, relax_pipeline=tvm.transform.Sequential([p() for p in _PIPELINE]),
                           tir_pipeline=pipeline.NAME)
    except tvm.error.InternalError as error:
        raise VerificationError("no machine code can be generated for the program", found=str(error).splitlines()[-1],
                                hint='fix the symbolic dims, if there are any: dims={"name": extent}') from error


def build_library(mod: tvm.IRModule, target: tvm.target.Target) -> bytes:
    """Compile a lowered module to the bytes of a shared library, or take it from the user's cache (``libraries.py``);
    TargetError where the machine has no linker."""
    kept = LibraryCache.of_user()
    if kept is None:
        return _linked(mod, target)
    key = library_key(mod, target)
    library = kept.get(key)
    if library is None:
        library = _linked(mod, target)
        kept.put(key, library)
    return library


def _linked(mod: tvm.IRModule, target: tvm.target.Target) -> bytes:
    """The bytes of a lowered module's shared library."""
    if not any(shutil.which(c) for c in ("g++", "c++", "clang++", "cc", "gcc")):
        raise TargetError(
            "a program is linked with the system's C++ compiler, and none was found",
            expected="g++ or clang++ on the PATH",
            hint="install one, for example the package g++",
        )
    executable = build_executable(mod, target)
    with tempfile.TemporaryDirectory(prefix="narrowcast-") as folder:
        path = Path(folder) / "program.so"
        executable.export_library(str(path), fcompile=_link)
        return path.read_bytes()


class Executable:
    """A loaded library: ``main(inputs..., constants...)`` with the target's threads.

    It is loaded on any machine of the same architecture; running it raises ProgramError where this machine's CPU lacks
    what the target has, and TargetError where Linux refuses the use of AMX.
    """

    def __init__(self, library: bytes, constants: Sequence[np.ndarray], target: Target) -> None:
        with tempfile.TemporaryDirectory(prefix="narrowcast-") as folder:
            path = Path(folder) / "program.so"
            path.write_bytes(library)
            try:
                self._library = tvm.runtime.load_module(str(path))
            except (RuntimeError, OSError) as error:
                raise ProgramError(
                    "the program's machine code cannot be loaded on this machine", found=str(error).splitlines()[-1]
                ) from error
        self._main = relax.VirtualMachine(self._library, tvm.cpu())["main"]
        self._constants = [tvm.runtime.tensor(c) for c in constants]
        self._lock = threading.Lock()
        self._target = target
        self._runs_here = target.runs_here()
        self._uses_tiles = uses_tiles(library, target)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once. Inputs are copied into aligned memory; the outputs are new arrays."""
        result = self.run([tvm.runtime.tensor(np.asarray(x, order="C")) for x in inputs])
        return [r.numpy() for r in result]

    def run(self, inputs: Sequence[tvm.runtime.Tensor]) -> list[tvm.runtime.Tensor]:
        """Run once on TVM tensors, without copies. Calls from several threads take turns."""
        if not self._runs_here:
            raise ProgramError(
                "the program was compiled for another CPU",
                found=detect(),
                expected=str(self._target),
                hint="compile the model for the target 'cpu' on this machine",
            )
        if self._uses_tiles:
            request_tiles()
        with self._lock:
            use_threads(self._target.threads)
            result = self._main(*inputs, *self._constants)
        return [result] if isinstance(result, tvm.runtime.Tensor) else list(result)


_pool = threading.local()  # TVM keeps one thread pool per calling thread


def use_threads(threads: int) -> None:
    """Let this thread's TVM pool run ``threads`` threads from now on; a pool is as large as ``TVM_NUM_THREADS``."""
    if getattr(_pool, "threads", None) != threads:
        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        _pool.threads = threads
