"""Targets and what they can do.

A target is a name: ``"cpu"`` is this machine, ``"cpu:znver4"`` a CPU by its LLVM name, ``"cpu:znver4+amx_int8"`` one
with a feature beyond that CPU's. What it can do follows from the name alone, by one table, so that any target can be
planned for on any machine; only ``detect`` looks at this machine.
"""

from __future__ import annotations

import difflib
import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path

import tvm

from ..errors import TargetError
from ..precision import Precision

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX_VNNI = _AVX2 | {"avx_vnni"}
_AVX512 = _AVX2 | {"avx512"}
_VNNI = _AVX512 | {"avx512_vnni"}
_BF16 = _VNNI | {"avx512_bf16"}
_AMX = _BF16 | {"avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}
_AMX_FP16 = _AMX | {"amx_fp16"}

_KIB = 1024


@dataclass(frozen=True)
class Capabilities:
    """What kernels may use on a target. A feature that is absent is unsupported.

    features : "avx2", "fma", "f16c", "avx_vnni", "avx512" (F, BW, CD, DQ and VL together), "avx512_vnni",
        "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16" (also needs "avx512_fp16").
    vector_bits : width of the widest vector register.
    l1_bytes, l2_bytes : data cache of one core.
    """

    features: frozenset[str]
    vector_bits: int
    l1_bytes: int
    l2_bytes: int

    @property
    def registers(self) -> int:
        """Number of vector registers."""
        return 32 if "avx512" in self.features else 16

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """What multiply-adds may read on this backend, the most exact first. INT8 is everywhere: AVX2 has exact
        products of 16-bit integers."""
        found = [Precision.FP32]
        if "avx512_fp16" in self.features:
            found.append(Precision.FP16)
        if "avx512_bf16" in self.features:
            found.append(Precision.BF16)
        return (*found, Precision.INT8)


def _cpu(features: frozenset[str], l1_kib: int, l2_kib: int) -> Capabilities:
    bits = 512 if "avx512" in features else 256
    return Capabilities(features, bits, l1_kib * _KIB, l2_kib * _KIB)


# LLVM's CPU names. Caches from the vendors' optimization guides, per core: of hybrid CPUs the first level of the
# efficient core and the second of the other, of four cores with a common second level a quarter.
_CPUS = {
    "znver5": _cpu(_BF16, 48, 1024),
    "znver4": _cpu(_BF16, 32, 1024),
    "znver3": _cpu(_AVX2, 32, 512),
    "znver2": _cpu(_AVX2, 32, 512),
    "znver1": _cpu(_AVX2, 32, 512),
    "graniterapids": _cpu(_AMX_FP16, 48, 2048),
    "graniterapids-d": _cpu(_AMX_FP16, 48, 2048),
    "emeraldrapids": _cpu(_AMX, 48, 2048),
    "sapphirerapids": _cpu(_AMX, 48, 2048),
    "cooperlake": _cpu(_BF16, 32, 1024),
    "tigerlake": _cpu(_VNNI, 48, 1280),
    "rocketlake": _cpu(_VNNI, 48, 512),
    "icelake-server": _cpu(_VNNI, 48, 1280),
    "icelake-client": _cpu(_VNNI, 48, 512),
    "cascadelake": _cpu(_VNNI, 32, 1024),
    "skylake-avx512": _cpu(_AVX512, 32, 1024),
    "x86-64-v4": _cpu(_AVX512, 32, 1024),
    "clearwaterforest": _cpu(_AVX_VNNI, 32, 1024),
    "sierraforest": _cpu(_AVX_VNNI, 32, 1024),
    "lunarlake": _cpu(_AVX_VNNI, 32, 2560),
    "pantherlake": _cpu(_AVX_VNNI, 32, 3072),
    "arrowlake-s": _cpu(_AVX_VNNI, 32, 3072),
    "arrowlake": _cpu(_AVX_VNNI, 32, 3072),
    "alderlake": _cpu(_AVX_VNNI, 32, 1280),
    "raptorlake": _cpu(_AVX_VNNI, 32, 2048),
    "meteorlake": _cpu(_AVX_VNNI, 32, 2048),
    "skylake": _cpu(_AVX2, 32, 256),
    "broadwell": _cpu(_AVX2, 32, 256),
    "haswell": _cpu(_AVX2, 32, 256),
    "x86-64-v3": _cpu(_AVX2, 32, 256),
}

# Linux's names of features (/proc/cpuinfo) that a feature of ours needs.
_LINUX_FLAGS = {
    "avx2": ("avx2", "bmi2", "movbe"), "fma": ("fma",), "f16c": ("f16c",), "avx_vnni": ("avx_vnni",),
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx512_vnni": ("avx512_vnni",), "avx512_bf16": ("avx512_bf16",), "avx512_fp16": ("avx512_fp16",),
    "amx_tile": ("amx_tile",), "amx_int8": ("amx_int8",), "amx_bf16": ("amx_bf16",), "amx_fp16": ("amx_fp16",),
}

# Features that a target may have beyond its CPU's, and what LLVM calls them.
_LLVM_FEATURES = {"amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16", "amx_fp16": "amx-fp16"}

# Further flags that tell CPUs of one feature set apart: LLVM assumes that they are there.
_LINUX_EXTRA = {
    "znver5": ("sse4a", "avx512_vp2intersect", "avx_vnni"), "znver4": ("sse4a", "avx512_vbmi2", "vaes", "gfni"),
    "znver3": ("sse4a", "vaes", "vpclmulqdq"), "znver2": ("sse4a", "clwb", "rdpid"), "znver1": ("sse4a", "sha_ni"),
    "tigerlake": ("avx512_vp2intersect", "gfni"), "rocketlake": ("gfni", "sha_ni"),
    "icelake-server": ("gfni", "vaes", "avx512_vbmi2", "pconfig"), "icelake-client": ("gfni", "vaes", "avx512_vbmi2"),
    **dict.fromkeys(("alderlake", "raptorlake", "meteorlake"), ("gfni", "vaes")),
    **dict.fromkeys(("clearwaterforest", "lunarlake", "pantherlake", "arrowlake-s"),
                    ("cmpccxadd", "avx_ifma", "sha512")),
    **dict.fromkeys(("sierraforest", "arrowlake"), ("cmpccxadd", "avx_ifma")),
    "skylake": ("adx", "clflushopt", "xsavec"), "broadwell": ("adx",),
}
_VENDOR_PREFIX = {"AuthenticAMD": "znver"}


@dataclass(frozen=True)
class Target:
    """What code is generated for.

    cpu : the CPU's LLVM name.
    threads : cores that one call of the program uses.
    features : what it can do beyond that CPU, in order.
    """

    cpu: str
    threads: int
    features: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, threads: int | None = None) -> Target:
        """The target ``"cpu"`` (this machine) or ``"cpu:<LLVM CPU name>"``, either with ``"+<feature>"``s behind it;
        threads default to this machine's cores.

        TargetError for an unknown kind, CPU or feature, naming the closest known ones.
        """
        name, *features = str(text).split("+")
        kind, _, cpu = name.partition(":")
        if kind != "cpu":
            raise TargetError("unknown target", found=text, expected="cpu or cpu:<LLVM CPU name>",
                              hint=_suggest(str(text), ["cpu", *(f"cpu:{name}" for name in _CPUS)]))
        if threads is None:
            threads = len(os.sched_getaffinity(0))
        if not isinstance(threads, int) or threads < 1:
            raise TargetError("a target needs at least one thread", found=threads)
        for feature in features:
            if feature not in _LLVM_FEATURES:
                raise TargetError("unknown feature of a CPU", found=feature,
                                  hint=_suggest(feature, list(_LLVM_FEATURES)))
        extra = tuple(f for f in _LLVM_FEATURES if f in features)
        if not cpu:
            return cls(detect(), threads, extra)
        if cpu not in _CPUS:
            raise TargetError("unknown CPU", found=cpu, expected="a name that LLVM knows and narrowcast has caches for",
                              hint=_suggest(cpu, list(_CPUS)))
        return cls(cpu, threads, extra)

    def __str__(self) -> str:
        return "+".join((f"cpu:{self.cpu}", *self.features))

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self)

    def precisions(self) -> tuple[Precision, ...]:
        """The precisions that this target's kernels have, the most exact first."""
        return capabilities(self).precisions

    def runs_here(self) -> bool:
        """Whether this machine's CPU has every feature that code for this target may use."""
        wanted = _linux_flags_of(self.cpu).union(*(_LINUX_FLAGS[f] for f in self.features))
        return wanted <= set(_host().get("flags", "").split())

    def tvm_target(self) -> tvm.target.Target:
        """TVM's LLVM target for this CPU."""
        extra = {"mattr": [f"+{_LLVM_FEATURES[f]}" for f in self.features]} if self.features else {}
        return tvm.target.Target({"kind": "llvm", "mcpu": self.cpu, "num-cores": self.threads, **extra})


def capabilities(target: Target) -> Capabilities:
    """What ``target`` can do: a look-up by its name, nothing is probed."""
    found = _CPUS[target.cpu]
    return replace(found, features=found.features | set(target.features))


@functools.cache
def _host() -> dict[str, str]:
    """What Linux reports of this machine's CPU."""
    return _cpuinfo_fields(Path("/proc/cpuinfo").read_text(encoding="utf-8"))


def host_model() -> str:
    """The model name that Linux gives this machine's CPU; empty where it gives none."""
    return _host().get("model name", "")


def _linux_flags_of(cpu: str) -> set[str]:
    """Linux's names of what code for a CPU may use: LLVM assumes more than ``Capabilities`` names."""
    flags = {flag for feature in _CPUS[cpu].features for flag in _LINUX_FLAGS[feature]}
    return flags | set(_LINUX_EXTRA.get(cpu, ()))


def detect(cpuinfo: str | None = None) -> str:
    """The LLVM name of this machine's CPU (or of the one whose /proc/cpuinfo text is given).

    The first CPU of the table whose features the kernel reports; vendors are not mixed up. TargetError where not
    even AVX2 is there.
    """
    fields = _host() if cpuinfo is None else _cpuinfo_fields(cpuinfo)
    flags = set(fields.get("flags", "").split())
    prefix = _VENDOR_PREFIX.get(fields.get("vendor_id", ""), "")
    for name in _CPUS:
        native = name.startswith(prefix) if prefix else not name.startswith("znver")
        if (native or name.startswith("x86-64")) and _linux_flags_of(name) <= flags:
            return name
    raise TargetError("this CPU has no AVX2 and FMA", found=fields.get("model name"),
                      expected="an x86-64 CPU of level v3 or higher")


def _cpuinfo_fields(cpuinfo: str) -> dict[str, str]:
    return dict(_field(line) for line in reversed(cpuinfo.splitlines()) if ":" in line)


def _field(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()


def _suggest(text: str, known: list[str]) -> str:
    close = difflib.get_close_matches(text, known, n=3, cutoff=0.5)
    return "did you mean " + " or ".join(close) + "?" if close else "known: " + ", ".join(sorted(known))
