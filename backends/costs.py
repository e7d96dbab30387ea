"""Measured costs: microseconds of a kernel on this machine, measured once and kept in the user's cache folder; and of
every schedule of a kernel, where these were compared.

A cost is kept under the structural hash of the kernel's code (names and the values of floating point constants left
out, since neither changes the time), the CPU (LLVM's name and the model's, since machines that share a folder may be
different models), the number of threads and the versions of what compiles it.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi

from .._environment import available_cpus
from ..dims import NO_SYMBOLS, as_dim, evaluate_dim, symbols_in
from ..errors import TargetError, VerificationError
from ..ir import is_number
from .cpu.build import compile_functions
from .cpu.kernel import Kernel
from .executable import use_threads
from .libraries import cache_folder
from .target import Target, host_model
from .tile_permission import request_tiles_for

Progress = Callable[[int, int], None]

# Kernels compiled into one module: many enough to share the compiler's start, few enough to share out to the CPUs.
_MODULE_KERNELS = 6
# Kernels timed in turns, whose buffers are in memory together.
_TURN_KERNELS = 32
# Kernels are timed in turns, so that a disturbance does not spoil all timings of one: this many rounds of this many
# timings, each of about so many seconds (one call at least), until the limit is spent on a kernel.
_ROUNDS, _REPEATS, _TIMING_S, _LIMIT_S = 5, 5, 5e-4, 0.1
_FORMAT = 1
# Distinct random values that buffers are filled with, over and over.
_RANDOM_VALUES = 1 << 16


def default_path() -> Path:
    """The file of measured costs: ``narrowcast/costs.json`` in ``$XDG_CACHE_HOME``, or in ``~/.cache`` without it."""
    return cache_folder() / "costs.json"


class CostTable:
    """Costs of kernels by their code; one file, shared by all networks.

    Parameters
    ----------
    path : the file; by default ``default_path()``. It is read at once and written, atomically, whenever costs have been
        measured. A file that cannot be read is ignored with a warning and written anew; one that cannot be written is
        a warning too.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self._costs, self._races = _read(self.path)

    def __len__(self) -> int:
        return len(self._costs)

    def race(self, key: str, schedules: Sequence[str]) -> list[float] | None:
        """Microseconds of each schedule of the kernel with this ``cost_key``, as they were compared; None where exactly
        these were not."""
        found = self._races.get(key, {})
        return [found[s] for s in schedules] if found.keys() == set(schedules) else None

    def keep_race(self, key: str, times: Mapping[str, float]) -> None:
        """Keep, in the file too, the microseconds of a kernel's schedules."""
        self._races[key] = dict(times)
        self._write([], [key])

    def measure(self, kernels: Sequence[Kernel], target: Target, progress: Progress | None = None,
                extents: Mapping[str, int] = NO_SYMBOLS) -> list[float]:
        """Microseconds per call of each kernel, with ``target.threads`` threads and all data in cache.

        Kernels with equal code are measured once, and not at all where the table has them. The others run on
        random buffers from a fixed seed: after a warm-up the least of some twenty timings, spread over time, in
        about 10 ms each (or a few calls, where one takes longer). What else the machine does only ever adds time.

        Parameters
        ----------
        progress : called with the steps done and in all: every kernel to be measured is compiled, then timed.
        extents : of the kernels' symbols, by name: what they are timed at.

        Raises
        ------
        TargetError : this machine's CPU cannot run the target's code.
        VerificationError : a kernel does not compile or run; names the layer.
        """
        keys = [cost_key(kernel, target, extents) for kernel in kernels]
        wanted = {key: kernel for key, kernel in zip(keys, kernels, strict=True) if key not in self._costs}
        if wanted and not target.runs_here():
            raise TargetError("costs can only be measured on the target itself, and this machine's CPU is another",
                              found=str(Target.parse("cpu")), expected=str(target), hint="compile on such a machine")
        report = progress or (lambda done, total: None)
        compiled: list[_Compiled] = []
        for part in _compile_all(wanted, target):
            compiled += part
            report(len(compiled), 2 * len(wanted))
        try:
            for done, (key, cost) in enumerate(_time_all(compiled, target, extents), len(compiled) + 1):
                self._costs[key] = cost
                report(done, 2 * len(wanted))
        finally:
            if wanted:
                self._write([key for key in wanted if key in self._costs], [])
        return [self._costs[key] for key in keys]

    def _write(self, costs: Iterable[str], races: Iterable[str]) -> None:
        """Add new costs and comparisons to the file, keeping what another process has put there meanwhile."""
        old_costs, old_races = _read(self.path, quiet=True)
        content = {"format": _FORMAT, "microseconds": {**old_costs, **{key: self._costs[key] for key in costs}},
                   "schedules": {**old_races, **{key: self._races[key] for key in races}}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(content, file, sort_keys=True, indent=0)
                os.replace(name, self.path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            warnings.warn(f"measured costs were not kept, because {self.path} cannot be written: {error}", stacklevel=3)


def time_kernels(kernels: Sequence[Kernel], target: Target, extents: Mapping[str, int] = NO_SYMBOLS) -> list[float]:
    """Microseconds per call of each kernel, timed in turns as ``CostTable.measure`` does but three times as often,
    since they are compared; nothing is kept.

    Raises VerificationError where one does not compile or run.
    """
    numbered = {str(i): kernel for i, kernel in enumerate(kernels)}
    compiled = [c for part in _compile_all(numbered, target) for c in part]
    times = dict(_time_all(compiled, target, extents, 3 * _ROUNDS))
    return [times[key] for key in numbered]


def cost_key(kernel: Kernel, target: Target, extents: Mapping[str, int] = NO_SYMBOLS) -> str:
    """What a cost is kept under. Equal for kernels that differ in names and floating point values only."""
    func = kernel.func
    for attribute in ("global_symbol", "layer"):
        if attribute in (func.attrs or {}):
            func = func.without_attr(attribute)
    func = tvm_ffi.structural_map(
        func, (tvm.tirx.FloatImm, lambda immediate: tvm.tirx.FloatImm(immediate.ty.dtype, 1.0)))
    code = tvm_ffi.structural_hash(func) & (2**64 - 1)
    versions = "/".join(f"{name} {_version(name)}" for name in ("apache-tvm", "narrowcast"))
    tensors = [p for p in kernel.func.params if not is_number(p)]
    symbols = {s.name for p in tensors for d in p.ty.shape for s in symbols_in(as_dim(d))}
    at = "".join(f"/{name}={extents[name]}" for name in sorted(symbols))
    return f"{code:016x}{at}/{target}/{host_model()}/{target.threads} threads/{versions}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "uninstalled"


def _read(path: Path, *, quiet: bool = False) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The costs and the comparisons of schedules in a file; none, with a warning, where it is not one of ours."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["format"] != _FORMAT:
            raise ValueError(f"format {raw['format']!r}")
        races = {str(key): _times(times) for key, times in raw.get("schedules", {}).items()}
        return _times(raw["microseconds"]), races
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if not quiet:
            warnings.warn(f"the file of measured costs {path} is not usable and is ignored; kernels are measured anew "
                          f"({type(error).__name__}: {error})", stacklevel=3)
        return {}, {}


def _times(raw: Mapping[str, float]) -> dict[str, float]:
    """Microseconds as the file has them; ValueError where one is none."""
    times = {str(key): float(time) for key, time in raw.items()}
    if not all(math.isfinite(time) and time > 0 for time in times.values()):
        raise ValueError("a cost that is not a finite number above 0")
    return times


@dataclass(frozen=True)
class _Compiled:
    """The machine code of one kernel: function ``name`` of ``module``."""

    key: str
    kernel: Kernel
    module: tvm.runtime.Module
    name: str


def _compile_all(kernels: Mapping[str, Kernel], target: Target) -> Iterator[list[_Compiled]]:
    """Compile all kernels, some modules at a time, as many at once as there are CPUs."""
    items = list(kernels.items())
    parts = [items[i:i + _MODULE_KERNELS] for i in range(0, len(items), _MODULE_KERNELS)]
    with ThreadPoolExecutor(available_cpus()) as pool:
        yield from pool.map(lambda part: _compile(part, target), parts)


def _compile(part: Sequence[tuple[str, Kernel]], target: Target) -> list[_Compiled]:
    names = [f"kernel{i}" for i in range(len(part))]
    try:
        module = compile_functions({n: k.func for n, (_, k) in zip(names, part, strict=True)}, target.tvm_target())
        module[names[0]]  # looking one up makes LLVM generate the module's machine code
    except Exception as error:
        if len(part) == 1:
            raise VerificationError("the kernel does not compile", layer=_layer(part[0][1]),
                                    found=_last_line(error)) from error
        for one in part:
            _compile([one], target)
        raise
    return [_Compiled(key, kernel, module, name) for name, (key, kernel) in zip(names, part, strict=True)]


def _time_all(compiled: Sequence[_Compiled], target: Target, extents: Mapping[str, int],
              rounds: int = _ROUNDS) -> Iterator[tuple[str, float]]:
    """Time compiled kernels in turns; their keys and microseconds."""
    request_tiles_for(target)
    use_threads(target.threads)
    for start in range(0, len(compiled), _TURN_KERNELS):
        limit = _LIMIT_S * rounds / _ROUNDS
        watches = [_Stopwatch(c, extents, limit) for c in compiled[start:start + _TURN_KERNELS]]
        for _ in range(rounds - 1):
            for watch in watches:
                watch.run()
        for watch in watches:
            watch.run()
            yield watch.compiled.key, max(watch.seconds * 1e6, 1e-3)


def _layer(kernel: Kernel) -> str:
    attributes = kernel.func.attrs or {}
    return str(attributes.get("layer") or attributes.get("global_symbol") or "an unnamed kernel")


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


class _Stopwatch:
    """A compiled kernel, timed again and again, until that took ``limit`` seconds; ``seconds`` is the least time of a
    call so far."""

    def __init__(self, compiled: _Compiled, extents: Mapping[str, int], limit: float) -> None:
        self.compiled = compiled
        self._limit = limit
        self.seconds = math.inf
        self._buffers = random_buffers(compiled.kernel, extents)
        self._spent = 0.0

    def run(self) -> None:
        """One round: some timings of half a millisecond, or one call; nothing where a slow kernel has one."""
        if self._spent > self._limit and self.seconds < math.inf:
            return
        start = time.perf_counter()
        number = max(1, int(_TIMING_S / max(self.seconds, 1e-7)))
        repeats = _REPEATS if self.seconds < _TIMING_S else 1
        try:
            module, name = self.compiled.module, self.compiled.name
            results = module.time_evaluator(name, tvm.cpu(), number=number, repeat=repeats)(*self._buffers).results
        except Exception as error:
            raise VerificationError("the kernel does not run", layer=_layer(self.compiled.kernel),
                                    found=_last_line(error)) from error
        self.seconds = min(self.seconds, *results)
        self._spent += time.perf_counter() - start


def random_buffers(kernel: Kernel, extents: Mapping[str, int] = NO_SYMBOLS,
                   seed: int = 0) -> list[tvm.runtime.Tensor | int]:
    """An argument for every parameter of a kernel, the same for the same seed; symbols have these ``extents``.

    float32 and float16: normal; uint16, which is bfloat16's bits: normal, rounded towards zero; 8-bit integers, and
    int16, which is weights of 8 bits: the whole range; wider integers, which may be indices: 0; booleans: either.
    """
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(_RANDOM_VALUES, np.float32)
    values: dict[str, np.ndarray] = {
        "float32": normal,
        "float16": normal.astype(np.float16),
        "uint16": (normal.view(np.uint32) >> 16).astype(np.uint16),
        "uint8": rng.integers(0, 256, _RANDOM_VALUES, np.uint8),
        "int8": rng.integers(-127, 128, _RANDOM_VALUES, np.int8),
        "int16": rng.integers(-127, 128, _RANDOM_VALUES, np.int16),
        "bool": rng.integers(0, 2, _RANDOM_VALUES).astype(bool),
    }

    def argument(parameter: tvm.ir.Expr) -> tvm.runtime.Tensor | int:
        if is_number(parameter):
            return extents[parameter.name]
        dtype, shape = str(parameter.ty.dtype), [evaluate_dim(d, extents) for d in parameter.ty.shape]
        return tvm.runtime.tensor(np.resize(values.get(dtype, np.zeros(1, dtype)), shape))

    return [argument(p) for p in kernel.func.params]
