"""The code of ResNet-50 and MiniLM for a CPU with AMX: which layers run on tiles, and that their loops are tight."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
import torch

from narrowcast.backends.costs import cost_key
from narrowcast.backends.cpu.build import compile_functions
from narrowcast.backends.cpu.emit import emit
from narrowcast.backends.cpu.kernel import Kernel, KernelRequest
from narrowcast.backends.target import Target
from narrowcast.benchmarks.assembly import innermost_loops, instructions
from narrowcast.frontends import import_model
from narrowcast.ir import Group, groups_of
from narrowcast.models import resnet
from narrowcast.models.bert import BertEncoder, BertShape
from narrowcast.passes import run_pipeline
from narrowcast.precision import BFLOAT16, FLOAT16, FLOAT32, Precision, QParams, Storage

TARGET = Target.parse("cpu:graniterapids", 2)
STORAGE = {Precision.INT8: Storage("uint8", QParams(0.05, 0)), Precision.BF16: BFLOAT16, Precision.FP16: FLOAT16}
MULTIPLY = {Precision.INT8: "tdpbusd", Precision.BF16: "tdpbf16ps", Precision.FP16: "tdpfp16ps"}
ON_VECTORS = {Precision.INT8: "vpdpbusd zmm", Precision.BF16: "vdpbf16ps zmm", Precision.FP16: "vfmadd231ph zmm"}


@cache
def groups(network: str) -> tuple[Group, ...]:
    """The groups of a network that multiply."""
    if network == "resnet50":
        mod = import_model(resnet.build(), torch.zeros(1, 3, 224, 224)).mod
    else:
        torch.manual_seed(0)
        tokens = np.zeros((1, 128), np.int64)
        mod = import_model(BertEncoder(BertShape()).eval(), (tokens, np.ones_like(tokens))).mod
    return tuple(g for g in groups_of(run_pipeline(mod)) if g.kind in ("conv", "matmul", "attention"))


def products(network: str) -> list[Group]:
    """The groups that multiply by constant weights."""
    return [g for g in groups(network) if g.kind != "attention"]


def kernels(multiplying: Iterable[Group], precision: Precision) -> list[Kernel]:
    """The kernels of groups, without those of equal code."""
    found = {}
    for group in multiplying:
        reads = group.anchor.value.args[:3 if group.kind == "attention" else 1]
        storages = tuple(STORAGE[precision] if any(p.same_as(r) for r in reads) else FLOAT32 for p in group.parameters)
        kernel = emit(KernelRequest(group, precision, storages, (STORAGE[precision],)), TARGET.capabilities, 2)
        found[cost_key(kernel, TARGET, {})] = kernel
    return list(found.values())


def assembly_of(found: list[Kernel]) -> str:
    module = compile_functions({f"kernel{i}": k.func for i, k in enumerate(found)}, TARGET.tvm_target())
    return module.inspect_source("asm")


@pytest.mark.parametrize("precision", MULTIPLY, ids=str)
@pytest.mark.parametrize(("network", "layers", "codes"), [("resnet50", 54, 24), ("minilm", 36, 4)])
def test_layers_run_on_tiles(network: str, layers: int, codes: int, precision: Precision) -> None:
    """All but ResNet's last, which has one row; layers of one shape share their code."""
    assert len(products(network)) == layers
    found = kernels(products(network), precision)
    tiled = [k for k in found if "ldtilecfg" in k.func.script()]
    assert len(tiled) == codes
    assert [k.macs for k in found if k not in tiled] == ([2048 * 1000] if network == "resnet50" else [])
    assembly = assembly_of(found)
    counts = instructions(assembly)
    assert (counts[ON_VECTORS[precision]] > 0) == (network == "resnet50")
    assert counts["ldtilecfg"] == counts["tilerelease"] == len(tiled)
    assert counts[MULTIPLY[precision]] >= 2 * len(tiled)
    # Two tiles of one side and one of the other for two products.
    assert counts["tileloadd"] <= 1.6 * counts[MULTIPLY[precision]]
    check_loops(assembly, MULTIPLY[precision])


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16], ids=str)
def test_attention_runs_on_tiles(precision: Precision) -> None:
    attention = [g for g in groups("minilm") if g.kind == "attention"]
    assert len(attention) == 6
    found = kernels(attention, precision)
    assert len(found) == 1  # One code for all layers.
    counts = instructions(assembly_of(found))
    # Both products in blocks of 2 x 2 tiles.
    assert counts[MULTIPLY[precision]] >= 8 and counts[MULTIPLY[precision]] % 4 == 0
    assert counts[ON_VECTORS[precision]] == 0


def check_loops(assembly: str, multiply: str) -> None:
    """The loops over the reduction hold nothing but tiles and their addresses, in general registers."""
    counted = [(loop, instructions("\n".join(loop))) for loop in innermost_loops(assembly)]
    # Where there are few steps their loop is none any more: the one around it stores tiles.
    reductions = [(loop, counts) for loop, counts in counted if counts[multiply] and not counts["tilestored"]]
    assert reductions
    for loop, counts in reductions:
        assert [line for line in loop if re.search(r"\(%rsp[,)]", line)] == []
        assert not any("mm" in name for name in counts)
