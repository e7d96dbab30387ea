"""The precisions as test parameters, each with the CPU feature that it needs."""

from __future__ import annotations

import pytest

from narrowcast.precision import Precision

FEATURES = {Precision.FP32: "avx2", Precision.BF16: "avx512_bf16", Precision.INT8: "avx512_vnni"}
EVERY_PRECISION = pytest.mark.parametrize(
    "precision", [pytest.param(p, marks=pytest.mark.isa(f), id=str(p)) for p, f in FEATURES.items()])
