"""Targets: names, capabilities, detection."""

from __future__ import annotations

import pytest

from narrowcast.backends import target
from narrowcast.backends.target import Target, capabilities, detect
from narrowcast.errors import TargetError
from narrowcast.precision import Precision

AVX2 = "fma avx2 f16c bmi2 movbe"
AVX512 = AVX2 + " avx512f avx512bw avx512cd avx512dq avx512vl"
VNNI = AVX512 + " avx512_vnni avx512_vbmi2 vaes gfni pconfig"


def cpuinfo(flags: str, vendor: str = "GenuineIntel") -> str:
    return f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: a CPU\nflags\t\t: {flags}\n"


@pytest.mark.parametrize(("flags", "vendor", "name"), [
    (VNNI + " avx512_bf16 sse4a", "AuthenticAMD", "znver4"),
    (VNNI + " avx512_bf16", "AuthenticAMD", "x86-64-v4"),
    (AVX2 + " vaes vpclmulqdq sse4a", "AuthenticAMD", "znver3"),
    (VNNI, "GenuineIntel", "icelake-server"),
    (VNNI + " avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16", "GenuineIntel", "emeraldrapids"),
    (VNNI + " avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 amx_fp16", "GenuineIntel", "graniterapids"),
    (AVX512, "GenuineIntel", "skylake-avx512"),
    (AVX2 + " avx_vnni gfni vaes", "GenuineIntel", "alderlake"),
    (AVX2 + " avx_vnni gfni vaes cmpccxadd avx_ifma", "GenuineIntel", "sierraforest"),
    (AVX2, "GenuineIntel", "haswell"),
    (AVX2, "AuthenticAMD", "x86-64-v3"),
])
def test_detect(flags: str, vendor: str, name: str) -> None:
    assert detect(cpuinfo(flags, vendor)) == name


def test_code_for_amd_does_not_run_on_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM has used SSE4a's insertq for Zen 4."""
    flags = VNNI + " avx512_bf16"
    monkeypatch.setattr(target, "_host", lambda: {"flags": flags})
    assert Target.parse("cpu:cooperlake").runs_here() and not Target.parse("cpu:znver4").runs_here()


def test_a_cpu_without_avx2_is_refused() -> None:
    with pytest.raises(TargetError, match="no AVX2"):
        detect(cpuinfo("sse4_2"))


@pytest.mark.parametrize(("name", "precisions"), [
    ("haswell", (Precision.FP32, Precision.INT8)), ("skylake-avx512", (Precision.FP32, Precision.INT8)),
    ("alderlake", (Precision.FP32, Precision.INT8)),
    ("icelake-server", (Precision.FP32, Precision.INT8)),
    ("znver4", (Precision.FP32, Precision.BF16, Precision.INT8)),
    ("sapphirerapids", (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8))])
def test_precisions_follow_from_the_name(name: str, precisions: tuple[Precision, ...]) -> None:
    assert Target.parse(f"cpu:{name}", 4).precisions() == precisions


def test_a_target_reads_back() -> None:
    zen4 = Target.parse("cpu:znver4", 3)
    assert str(zen4) == "cpu:znver4" and Target.parse(str(zen4), 3) == zen4
    assert capabilities(zen4).vector_bits == 512 and capabilities(zen4).registers == 32
    assert str(zen4.tvm_target().attrs["mcpu"]) == "znver4"


def test_a_target_may_have_features_beyond_its_cpu() -> None:
    tiled = Target.parse("cpu:znver4+amx_int8+amx_tile", 1)
    assert str(tiled) == "cpu:znver4+amx_tile+amx_int8" and Target.parse(str(tiled), 1) == tiled
    assert tiled.capabilities.features == Target("znver4", 1).capabilities.features | {"amx_tile", "amx_int8"}
    assert [str(a) for a in tiled.tvm_target().attrs["mattr"]] == ["+amx-tile", "+amx-int8"]


@pytest.mark.parametrize("name", ["cpu:graniterapids", "cpu:graniterapids-d", "cpu:sapphirerapids+amx_fp16"])
def test_tiles_of_float16_are_beyond_those_of_sapphire_rapids(name: str) -> None:
    assert Target.parse(name).capabilities.features == capabilities(Target("sapphirerapids", 1)).features | {"amx_fp16"}


@pytest.mark.parametrize(("text", "suggestion"), [("cpu:znver44", "znver4"), ("cpus", "cpu"), ("gpu", "cpu"),
                                                  ("cpu:znver4+amx_int9", "amx_int8")])
def test_an_unknown_target_names_close_ones(text: str, suggestion: str) -> None:
    with pytest.raises(TargetError, match=f"unknown.*(.|\n)*{suggestion}"):
        Target.parse(text)


def test_no_threads_are_refused() -> None:
    with pytest.raises(TargetError, match="at least one thread"):
        Target.parse("cpu:znver4", 0)
