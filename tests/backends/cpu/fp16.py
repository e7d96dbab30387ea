"""FP16's multiply-add of vectors on CPUs without it: each one computed in float32 and rounded to float16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tvm.script.ir_builder import tirx as T

from narrowcast.backends.cpu.isa import Arithmetic
from narrowcast.backends.cpu.vector_math import Vector

from .tiers import Alike

# AVX-512 has the conversions of float16; only the arithmetic it has not.
FP16_TARGET = Alike("cooperlake", 2, like="sapphirerapids")
FP16_TILES = Alike("cooperlake", 2, ("amx_tile", "amx_fp16"), like="sapphirerapids")
_MULTIPLY_ADD = """
declare <32 x float> @llvm.fma.v32f32(<32 x float>, <32 x float>, <32 x float>)
define <32 x half> @emulated_multiply_add(<32 x half> %acc, <32 x half> %a, <32 x half> %b) alwaysinline {
  %wide_acc = fpext <32 x half> %acc to <32 x float>
  %wide_a = fpext <32 x half> %a to <32 x float>
  %wide_b = fpext <32 x half> %b to <32 x float>
  %wide = call <32 x float> @llvm.fma.v32f32(<32 x float> %wide_a, <32 x float> %wide_b, <32 x float> %wide_acc)
  %r = fptrunc <32 x float> %wide to <32 x half>
  ret <32 x half> %r
}
"""


@pytest.fixture(scope="module")
def emulated_fp16() -> Iterator[None]:
    """Kernels for these targets multiply float16 vectors by the emulation."""
    multiply_add, helpers = Arithmetic.multiply_add, Arithmetic.helpers

    def emulated(unit: Arithmetic, acc: Vector, left: Vector, right: Vector) -> Vector:
        if unit.sum != "float16":
            return multiply_add(unit, acc, left, right)
        return T.call_pure_extern("float16x32", "emulated_multiply_add", acc, left, right)

    @contextmanager
    def with_emulation(unit: Arithmetic) -> Iterator[None]:
        if unit.sum != "float16":
            with helpers(unit):
                yield
            return
        with T.attr(0, "pragma_import_llvm", _MULTIPLY_ADD):
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arithmetic, "multiply_add", emulated)
        patch.setattr(Arithmetic, "helpers", with_emulation)
        yield
