"""Tiers of instruction sets, each in a form that this machine may run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from narrowcast.backends.target import Capabilities, Target, capabilities


@dataclass(frozen=True)
class Alike(Target):
    """What ``like`` can do but for tiles, its widths and registers, and what ``features`` name, in the encodings of
    ``cpu``."""

    like: str = ""

    @property
    def capabilities(self) -> Capabilities:
        found = capabilities(Target(self.like, self.threads))
        without = frozenset(f for f in found.features if not f.startswith("amx"))
        return replace(found, features=without | set(self.features))


INT8_TIERS = pytest.mark.parametrize("target", [
    pytest.param(Target("haswell", 2), marks=pytest.mark.isa("avx2"), id="vpmaddwd ymm"),
    pytest.param(Alike("cooperlake", 2, like="alderlake"), marks=pytest.mark.isa("avx512_bf16"), id="vpdpbusd ymm"),
    pytest.param(Target("skylake-avx512", 2), marks=pytest.mark.isa("avx512"), id="vpmaddwd zmm")])
