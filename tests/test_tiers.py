"""Programs for CPUs of every tier: their instructions, registers that suffice, and where they run, their values."""

from __future__ import annotations

import functools

import pytest
import torch

import narrowcast as nc
from narrowcast.backends.target import Target
from narrowcast.benchmarks.assembly import instructions, spills, sums_by
from narrowcast.frontends import import_model
from narrowcast.passes import run_pipeline
from narrowcast.precision import Precision
from narrowcast.verification import kernel_agreement

from .backends.cpu.fp16 import FP16_TARGET, emulated_fp16  # noqa: F401
from .test_amx_programs import encoder, small_net

NETWORKS = {"small CNN": small_net, "two-layer BERT": encoder}
NETWORK = pytest.mark.parametrize("network", NETWORKS)
# A target and a precision, and what multiplies there.
TIERS = {("haswell", "fp32"): "vfmadd231ps ymm", ("haswell", "int8"): "vpmaddwd ymm",
         ("alderlake", "int8"): "vpdpbusd ymm", ("skylake-avx512", "int8"): "vpmaddwd zmm",
         ("cascadelake", "int8"): "vpdpbusd zmm", ("cooperlake", "bf16"): "vdpbf16ps zmm",
         ("sapphirerapids", "fp16"): "vfmadd231ph zmm"}
OF_BERT = (("haswell", "int8"), ("alderlake", "int8"), ("sapphirerapids", "fp16"))


@functools.cache
def compiled(network: str, cpu: str, precision: str) -> nc.Program:
    net, data = NETWORKS[network]()
    return nc.compile(net, f"cpu:{cpu}", None, precision=precision, data=data[:2], example_inputs=data[0],
                      num_threads=2)


def is_spilled(loop: list[str], instruction: str) -> bool:
    """Whether a loop keeps more than it has to on the stack. Where LLVM unrolls vpmaddwd it adds products before it
    adds them to the sums, which takes registers that AVX2 lacks."""
    written, read = spills(loop)
    if instruction == "vpmaddwd ymm":
        return len(written) > instructions("\n".join(loop))[instruction] / 4
    return bool(written or read)


@pytest.mark.parametrize(("network", "cpu", "precision"), [
    *(("small CNN", *tier) for tier in TIERS), *(("two-layer BERT", *tier) for tier in OF_BERT)])
def test_the_tiers_instructions_multiply_in_registers(network: str, cpu: str, precision: str) -> None:
    program, instruction = compiled(network, cpu, precision), TIERS[cpu, precision]
    chosen = {d.precision for d in program.plan.decisions if d.macs}
    assert Precision(precision) in chosen and chosen <= {Precision(precision), Precision.FP32, Precision.BF16}
    assembly = program.source("asm")
    found = instructions(assembly)
    assert found[instruction] >= 50
    assert not any(name.startswith("vpmaddubsw") for name in found), "saturates"
    loops = sums_by(assembly, instruction)
    assert len(loops) >= 5
    spilled = [loop for loop in loops if is_spilled(loop, instruction)]
    # In the CNN's first layer neighbouring rows share elements, which LLVM keeps.
    assert len(spilled) <= (network == "small CNN"), "\n".join(spilled[-1])


@pytest.mark.isa("avx2")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@NETWORK
def test_avx2_programs_equal_the_evaluator(network: str, precision: str) -> None:
    """Kernel by kernel to one step, and the program as a whole to FP32's outputs."""
    program, (net, data) = compiled(network, "haswell", precision), NETWORKS[network]()
    imported = import_model(net, data[0])
    for found in kernel_agreement(run_pipeline(imported.mod), program.plan, program._target, data[0]):
        assert found.ok, found.detail
    with torch.no_grad():
        expected = net(*map(torch.from_numpy, data[0]))
    error = (torch.from_numpy(program(*data[0])) - expected).square().mean() / expected.var()
    assert error < (1e-9 if precision == "fp32" else 5e-3)


@pytest.mark.isa("avx512_bf16")
@pytest.mark.usefixtures("emulated_fp16")
@NETWORK
def test_fp16_kernels_agree_with_the_evaluator(network: str) -> None:
    """Multiply-adds emulated. Everything is computed in FP16, with less noise than BF16 has."""
    program, (net, data) = compiled(network, "sapphirerapids", "fp16"), NETWORKS[network]()
    assert program.report.fp16_share == pytest.approx(1.0)
    grouped = run_pipeline(import_model(net, data[0]).mod)
    for found in kernel_agreement(grouped, program.plan, FP16_TARGET, data[0]):
        assert found.ok, found.detail
    assert Target.parse("cpu:sapphirerapids").precisions()[1] is Precision.FP16
