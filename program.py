"""``Program``: a compiled network: run it, look into it, benchmark it, save it and load it.

Loading and running needs TVM's runtime and NumPy; PyTorch is not imported unless tensors of it are passed.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import tvm

from .backends.cpu.peak import peak_macs_per_second
from .backends.executable import Executable, build_executable
from .backends.target import Target
from .container import read_container, write_container
from .errors import ProgramError
from .ir import TensorSpec
from .precision import Precision, PrecisionPlan
from .report import Report
from .requirements import DimRange, Requirement
from .stages import Stage, stages_from_json, stages_to_json

SOURCES = ("relax", "tir", "llvm", "asm")


@dataclass(frozen=True)
class Timing:
    """Wall time of one call, in milliseconds, and what it means.

    throughput : calls per second at the median. peak_share : multiply-adds per second at the median as a share of what
    the machine can do at each group's precision (measured in the same run); None where nothing multiplies.
    """

    median_ms: float
    p95_ms: float
    minimum_ms: float
    throughput: float
    runs: int
    threads: int
    peak_share: float | None


class Program:
    """A compiled network. Made by ``narrowcast.compile`` and ``narrowcast.load``.

    Attributes
    ----------
    plan : the decision for every fusion group.
    report : what the compilation measured.
    stages : the graph after each pass.
    inputs, outputs : what a call takes and gives; symbolic dims by name.
    typical : the extents of symbolic dims that the program is made for; it computes all rightly.
    ranges, requirements : what has to hold of the extents of symbolic dims.
    """

    def __init__(
        self,
        *,
        library: bytes,
        lowered: tvm.IRModule,
        functions: Mapping[str, str],
        constants: Sequence[np.ndarray],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        typical: Mapping[str, int],
        ranges: Mapping[str, DimRange],
        requirements: Sequence[Requirement],
        plan: PrecisionPlan,
        report: Report,
        stages: Sequence[Stage],
        target: Target,
    ) -> None:
        self._library = library
        self._lowered = lowered
        self._functions = dict(functions)
        self._constants = tuple(constants)
        self._target = target
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.typical = dict(typical)
        self.ranges = dict(ranges)
        self.requirements = tuple(requirements)
        self._accepted: dict[str, int] = {}  # Extents that were checked last.
        self.plan = plan
        self.report = report
        self.stages = tuple(stages)
        self._executable = Executable(library, constants, target)

    # Running -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network once.

        Inputs are NumPy arrays or PyTorch tensors, by position or by name, of exactly the compiled shapes; a symbolic
        dim is any extent, the same wherever its name stands. One output comes back as it is, several as a tuple: NumPy
        for NumPy, PyTorch for PyTorch. ProgramError names the input and the dim that do not fit.
        """
        values = self._bind(args, kwargs)
        as_torch = any(_is_torch(v) for v in values)
        arrays = self._checked(values)
        results: list[Any] = self.run(arrays)
        if as_torch:
            torch = sys.modules["torch"]
            results = [torch.from_numpy(r) for r in results]
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on arrays that have the compiled shapes and types already; always gives a list."""
        return self._executable(arrays)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        names = [spec.name for spec in self.inputs]
        if len(args) == 1 and isinstance(args[0], Mapping):
            kwargs, args = {**args[0], **kwargs}, ()
        named = dict(zip(names, args, strict=False))
        unknown = [n for n in kwargs if n not in names]
        twice = [n for n in kwargs if n in named]
        named.update(kwargs)
        missing = [n for n in names if n not in named]
        if len(args) > len(names) or unknown or twice or missing:
            raise ProgramError(
                "the call does not match the program's inputs",
                found=f"{len(args)} by position, by name {sorted(kwargs) or 'none'}",
                expected=", ".join(f"{s.name} {s.dtype}{list(s.shape)}" for s in self.inputs),
            )
        return [named[n] for n in names]

    def _checked(self, values: Sequence[Any]) -> list[np.ndarray]:
        """The values as arrays that fit the inputs; ProgramError names what does not."""
        arrays = [_typed(v, s) for v, s in zip(values, self.inputs, strict=True)]
        extents = _extents(arrays, self.inputs)
        if extents != self._accepted:
            self._check_extents(extents)
            self._accepted = extents
        return arrays

    def _check_extents(self, extents: Mapping[str, int]) -> None:
        """ProgramError where the symbols' extents are out of range or do not fit each other."""
        for name, extent in extents.items():
            allowed = self.ranges.get(name, DimRange())
            if extent < allowed.minimum or (allowed.maximum is not None and extent > allowed.maximum):
                most = "" if allowed.maximum is None else f", at most {allowed.maximum}"
                raise ProgramError(f"dim '{name}' is out of the range that the model was exported for", found=extent,
                                   expected=f"at least {allowed.minimum}{most}")
        for requirement in self.requirements:
            if requirement.symbols <= extents.keys() and not requirement.is_met(extents):
                raise ProgramError("the inputs' extents do not fit this layer", layer=requirement.layer,
                                   found=", ".join(f"{name} = {extent}" for name, extent in extents.items()),
                                   expected=str(requirement))

    # Looking into it ---------------------------------------------------------------------------------------------

    def source(self, kind: str = "tir", layer: str | None = None) -> str:
        """The emitted code: ``"relax"``, ``"tir"``, ``"llvm"`` or ``"asm"``; of the whole program or of one layer.

        Raises ProgramError for an unknown kind or layer.
        """
        if kind not in SOURCES:
            raise ProgramError(f"no source of kind {kind!r}", expected=", ".join(SOURCES))
        mod = self._lowered
        if layer is not None:
            if layer not in self._functions:
                raise ProgramError(f"no layer {layer!r} in the program", expected=", ".join(self._functions))
            name = self._functions[layer]
            mod = tvm.IRModule({tvm.ir.GlobalVar(name): self._lowered[name]})
        if kind == "relax":
            text = self._lowered.script(show_meta=False)
            if layer is None:
                return text[text.index("    @R.function") :]
            return "\n".join(line.strip() for line in text.splitlines() if f"call_tir(cls.{name}," in line)
        if kind == "tir":
            kernels = {gv: f for gv, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
            return tvm.IRModule(kernels).script(show_meta=False)
        module = build_executable(mod, self._target.tvm_target()).mod
        texts = [
            m.inspect_source("ll" if kind == "llvm" else "asm") for m in (module, *module.imports) if m.kind == "llvm"
        ]
        return "\n".join(texts)

    def benchmark(self, *args: Any, runs: int = 100, warmup: int = 10) -> Timing:
        """Time calls on ``args`` (seeded random values of the inputs' types where none are given).

        The copy of the inputs into the program's memory is not counted, the copy of the outputs neither.
        """
        if runs < 1 or warmup < 0:
            raise ProgramError("nothing to time", found=f"{runs} runs, {warmup} to warm up", expected="one or more")
        arrays = self._checked(self._bind(args, {}) if args else random_inputs(self.inputs, self.typical))
        tensors = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in arrays]
        for _ in range(warmup):
            self._executable.run(tensors)
        times = np.empty(runs)
        for i in range(runs):
            start = time.perf_counter()
            self._executable.run(tensors)
            times[i] = time.perf_counter() - start
        median = float(np.median(times))
        return Timing(
            median * 1e3,
            float(np.percentile(times, 95)) * 1e3,
            float(times.min()) * 1e3,
            1 / median,
            runs,
            self._target.threads,
            self._peak_share(median),
        )

    def _peak_share(self, seconds: float) -> float | None:
        work: dict[Precision, int] = {}
        for decision in self.plan.decisions:
            if decision.macs:
                work[decision.precision] = work.get(decision.precision, 0) + decision.macs
        if not work:
            return None
        return sum(macs / peak_macs_per_second(precision, self._target) for precision, macs in work.items()) / seconds

    # Keeping it --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Save to one file, atomically; returns its path. ``narrowcast.load`` reads it in any process."""
        path = Path(path)
        constants = {f"{i:05d}": c for i, c in enumerate(self._constants)}
        meta = {
            "cpu": self._target.cpu,
            "features": self._target.features,
            "threads": self._target.threads,
            "functions": self._functions,
            "inputs": [asdict(s) for s in self.inputs],
            "outputs": [asdict(s) for s in self.outputs],
            "typical": self.typical,
            "ranges": {name: asdict(r) for name, r in self.ranges.items()},
            "requirements": [r.to_json() for r in self.requirements],
            "tvm": tvm.__version__,
        }
        write_container(
            path,
            {
                "program.json": json.dumps(meta, sort_keys=True).encode(),
                "plan.json": self.plan.to_json().encode(),
                "report.json": self.report.to_json().encode(),
                "stages.json.z": zlib.compress(stages_to_json(self.stages).encode()),
                "lowered.json.z": zlib.compress(tvm.ir.save_json(self._lowered).encode()),
                "constants.safetensors": safetensors.numpy.save(constants),
                "library.so": self._library,
            },
        )
        return path

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """The program that ``save`` wrote. Loading runs the machine code in the file: load only what you trust.

        Raises ProgramError where the file is missing, damaged in any byte, or made by another version of TVM. A program
        for a CPU that this machine is not can be inspected; calling it raises ProgramError.
        """
        if not isinstance(path, str | PathLike):
            raise ProgramError("a program is loaded from a path", found=repr(path), expected="a str or a Path")
        parts = read_container(Path(path))
        meta = json.loads(parts["program.json"])
        if meta["tvm"] != tvm.__version__:
            raise ProgramError(
                f"{path} was compiled with another TVM",
                found=meta["tvm"],
                expected=tvm.__version__,
                hint="compile the model again, or install that version",
            )
        target = Target(meta["cpu"], meta["threads"], tuple(meta["features"]))
        arrays = safetensors.numpy.load(parts["constants.safetensors"])
        return cls(
            library=parts["library.so"],
            lowered=tvm.ir.load_json(zlib.decompress(parts["lowered.json.z"]).decode()),
            functions=meta["functions"],
            constants=[arrays[k] for k in sorted(arrays)],
            inputs=[_spec(s) for s in meta["inputs"]],
            outputs=[_spec(s) for s in meta["outputs"]],
            typical=meta["typical"],
            ranges={name: DimRange(**r) for name, r in meta["ranges"].items()},
            requirements=[Requirement.from_json(r) for r in meta["requirements"]],
            plan=PrecisionPlan.from_json(parts["plan.json"].decode()),
            report=Report.from_json(parts["report.json"].decode()),
            stages=stages_from_json(zlib.decompress(parts["stages.json.z"]).decode()),
            target=target,
        )


def random_inputs(specs: Sequence[TensorSpec], extents: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    """Seeded inputs for timing: unit normal floats, zeros for integers (always valid as indices).

    extents : of symbolic dims, by name.
    """
    rng = np.random.default_rng(seed)
    shapes = [tuple(d if isinstance(d, int) else extents[d] for d in s.shape) for s in specs]
    return [
        rng.standard_normal(shape, dtype=np.float32) if s.dtype == "float32" else np.zeros(shape, s.dtype)
        for s, shape in zip(specs, shapes, strict=True)
    ]


def _spec(raw: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(raw["name"], tuple(raw["shape"]), raw["dtype"])


def _is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _extents(arrays: Sequence[np.ndarray], specs: Sequence[TensorSpec]) -> dict[str, int]:
    """The extents of symbolic dims by name; ProgramError names the input and the dim that do not fit."""
    extents: dict[str, tuple[int, str]] = {}
    for array, spec in zip(arrays, specs, strict=True):
        if array.ndim != len(spec.shape):
            raise _misfit(spec, array, "the rank differs")
        for axis, (actual, wanted) in enumerate(zip(array.shape, spec.shape, strict=True)):
            if isinstance(wanted, int):
                if actual != wanted:
                    raise _misfit(spec, array, f"dim {axis} differs")
                continue
            if actual < 1:
                raise _misfit(spec, array, f"dim {axis} ('{wanted}') is empty")
            first, where = extents.setdefault(wanted, (actual, f"dim {axis} of '{spec.name}'"))
            if first != actual:
                raise _misfit(spec, array, f"dim {axis} ('{wanted}') is {actual}, and {where} makes it {first}")
    return {name: extent for name, (extent, _) in extents.items()}


def _misfit(spec: TensorSpec, array: np.ndarray, what: str) -> ProgramError:
    return ProgramError(
        f"input '{spec.name}' has the wrong shape: {what}",
        found=list(array.shape),
        expected=list(spec.shape),
        hint="compile with example inputs of the shape you need, or with symbolic dims" if spec.is_static else None,
    )


# Elements that programs take for wider ones; every float is taken for float32 and float64.
_WIDENED = {("int32", "int64"), ("int4", "int8"), ("int2", "int8"), ("uint4", "uint8"), ("uint2", "uint8")}


def _typed(value: Any, spec: TensorSpec) -> np.ndarray:
    """``value`` as an array of the spec's type; ProgramError names the input where it is not."""
    if _is_torch(value):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    array = np.asarray(value)
    exact = array.dtype == spec.dtype
    name = str(array.dtype)
    if not exact and (name, spec.dtype) not in _WIDENED and not ("float" in name and "float" in spec.dtype):
        raise ProgramError(
            f"input '{spec.name}' has the wrong element type", found=str(array.dtype), expected=spec.dtype
        )
    return array.astype(spec.dtype, copy=False)
