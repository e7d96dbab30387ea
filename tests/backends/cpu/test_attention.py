"""Attention against its definition in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx

from narrowcast import ir
from narrowcast.backends.cpu.attention import build_attention
from narrowcast.backends.cpu.build import call_kernel, compile_functions, run_kernel
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Target
from narrowcast.calibration.agreement import group_agreement
from narrowcast.calibration.numerics import GroupProgram, Stored
from narrowcast.errors import PlanError
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, assert_close, execute, group_of, storage_for, stored
from .symbolic import symbolic_group
from .tiers import INT8_TIERS

U8 = QParams(0.05, 128)
OUTPUTS = (FLOAT32, BFLOAT16, Storage("uint8", U8))
PRECISIONS = pytest.mark.parametrize("precision", [
    pytest.param(Precision.FP32, marks=pytest.mark.isa("avx2"), id="fp32"),
    pytest.param(Precision.BF16, marks=pytest.mark.isa("avx512_bf16"), id="bf16"),
    pytest.param(Precision.INT8, marks=pytest.mark.isa("avx2"), id="int8")])


@dataclass(frozen=True)
class Case:
    """An attention to test; ``bias`` is a shape that broadcasts to [batch, heads, queries, keys]."""

    batch: int
    queries: int
    keys: int
    heads: int
    depth: int
    width: int
    bias: tuple[int, int, int, int] | None = None
    causal: str | None = None
    constant_bias: bool = False


CASES = pytest.mark.parametrize("case", [
    Case(1, 16, 16, 2, 32, 32), Case(2, 5, 7, 3, 8, 8, (2, 1, 1, 7)), Case(1, 33, 50, 2, 33, 17, (1, 2, 33, 50)),
    Case(1, 20, 20, 1, 16, 16, causal="TopLeft"), Case(1, 3, 20, 1, 16, 40, (1, 1, 1, 20), "BottomRight"),
    Case(1, 1, 1, 1, 1, 1, (1, 1, 1, 1)), Case(2, 75, 128, 2, 64, 40),
    Case(1, 64, 64, 4, 64, 64, (1, 1, 1, 64), constant_bias=True)], ids=str)


def expected_of(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    if bias is not None:
        scores = scores + bias
    if case.causal:
        ahead = 0 if case.causal == "TopLeft" else case.keys - case.queries
        seen = np.arange(case.keys)[None, :] <= np.arange(case.queries)[:, None] + ahead
        scores = np.where(seen, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", powers / powers.sum(-1, keepdims=True), v)


def check(precision: Precision, case: Case, target: Target = NATIVE) -> None:
    rng = np.random.default_rng(5)
    shapes = ((case.batch, case.queries, case.heads, case.depth), (case.batch, case.keys, case.heads, case.depth),
              (case.batch, case.keys, case.heads, case.width))
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    bias = rng.standard_normal(case.bias).astype(np.float32) if case.bias else None
    arrays = [q, k, v] + ([bias] if bias is not None and not case.constant_bias else [])

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        added = [ir.constant(bias)] if bias is not None and case.constant_bias else params[3:]
        y = relax.op.nn.attention(*params[:3], *added, scale=0.3, causal_mask=case.causal)
        return builder.emit(relax.op.multiply(builder.emit(y, "layer"), relax.const(2.0, "float32")), "double")

    group = group_of("attention", [a.shape for a in arrays], body)
    if precision is Precision.INT8:
        check_levels(group, arrays, target)
        return
    storage = storage_for(precision, q)
    storages = (storage,) * 3 + (FLOAT32,) * (len(arrays) - 3)
    request = KernelRequest(group, precision, storages, OUTPUTS)
    x, y, z = (stored(a, storage).astype(np.float64) for a in (q, k, v))
    expected = 2 * expected_of(case, x, y, z, bias)
    magnitude = 2 * expected_of(case, x, y, np.abs(z), bias)
    terms = case.keys + case.depth + 16  # 16: exp and the division
    if precision is not Precision.FP32:  # probabilities are rounded: half an ulp
        terms += int({Precision.BF16: 2.0**-8, Precision.FP16: 2.0**-11}[precision] / np.finfo(np.float32).eps)
    if precision is Precision.FP16:  # An error of a score changes a probability relatively by twice as much.
        magnitude = magnitude * (1 + 2 * 0.3 * np.einsum("bqhd,bkhd->bhqk", np.abs(x), np.abs(y)).max())
    for got, output in zip(execute(build_attention, request, arrays, target), OUTPUTS, strict=True):
        assert_close(got, expected, 4 * magnitude if precision is Precision.FP32 else magnitude, output, terms,
                     precision)


def check_levels(group: ir.Group, arrays: list[np.ndarray], target: Target) -> None:
    """INT8 against the evaluator; a result that is a value's tenth off does not agree."""
    shifts = (0.0, 1.5, -4.0)  # zero points in the middle, low and at the end
    arrays = [a + np.float32(s) for a, s in zip(arrays, shifts, strict=False)] + arrays[3:]
    storages = tuple(storage_for(Precision.INT8, a) if i < 3 else FLOAT32 for i, a in enumerate(arrays))
    request = KernelRequest(group, Precision.INT8, storages, OUTPUTS)
    kernel = build_attention(request, target.capabilities, 2)
    read = [Stored.of(torch.from_numpy(a), s) for a, s in zip(arrays, storages, strict=True)]
    found = run_kernel(request, kernel, [s.data.numpy() for s in read], target.tvm_target())
    written = [torch.from_numpy(a) for a in found]
    outputs = [Stored(a.view(torch.bfloat16) if s.dtype == "bfloat16" else a, s)
               for a, s in zip(written, OUTPUTS, strict=True)]
    agreement = group_agreement(group, Precision.INT8, read, outputs)
    assert agreement.ok, agreement.detail
    wrong = Stored(outputs[0].data + 1.5, FLOAT32)
    assert not group_agreement(group, Precision.INT8, read, [wrong]).ok


@PRECISIONS
@CASES
def test_attention(precision: Precision, case: Case) -> None:
    check(precision, case)


@pytest.mark.isa("avx2")
def test_avx2() -> None:
    check(Precision.FP32, Case(1, 19, 21, 2, 12, 20, (1, 1, 19, 21)), Target("haswell", 2))


@INT8_TIERS
def test_tiers_of_int8(target: Target) -> None:
    for depth, width in ((12, 20), (34, 3), (3, 34), (35, 2), (2, 1)):
        check(Precision.INT8, Case(1, 19, 21, 2, depth, width, (1, 1, 19, 21)), target)


@settings(max_examples=6, deadline=None)
@given(batch=st.integers(1, 2), queries=st.integers(1, 70), keys=st.integers(1, 70), heads=st.integers(1, 3),
       depth=st.integers(1, 70), width=st.integers(1, 40))
def test_sizes_of_int8(batch: int, queries: int, keys: int, heads: int, depth: int, width: int) -> None:
    check(Precision.INT8, Case(batch, queries, keys, heads, depth, width))


@pytest.mark.parametrize("causal", [None, "TopLeft"])
def test_int8_at_any_extents(causal: str | None) -> None:
    batch, queries, keys, heads = (tirx.Var(n, "int64") for n in ("b", "m", "k", "h"))
    shapes = [(batch, queries, heads, 7), (batch, keys, heads, 7), (batch, keys, heads, 5)]
    group = symbolic_group("attention", shapes, lambda b, p: b.emit(
        relax.op.nn.attention(*p, scale=0.3, causal_mask=causal), "layer"))
    storages = (Storage("uint8", QParams(0.03, 120)), Storage("uint8", QParams(0.03, 0)), Storage("uint8", U8))
    typical = (("b", 2), ("h", 3), ("k", 40), ("m", 20))
    request = KernelRequest(group, Precision.INT8, storages, (FLOAT32,), typical=typical)
    kernel = build_attention(request, NATIVE.capabilities, 2)
    module = compile_functions({"layer": kernel.func}, NATIVE.tvm_target())
    rng = np.random.default_rng(3)
    for b, m, k, h in ((2, 20, 40, 3), (1, 1, 1, 1), (3, 5, 67, 2), (1, 33, 16, 1)):
        sizes = ((b, m, h, 7), (b, k, h, 7), (b, k, h, 5))
        levels = [torch.from_numpy(rng.integers(0, 256, size, np.uint8)) for size in sizes]
        read = [Stored(x, s) for x, s in zip(levels, storages, strict=True)]
        found, = call_kernel(module["layer"], request, kernel, [x.numpy() for x in levels])
        program = GroupProgram(group).at({"b": b, "m": m, "k": k, "h": h})
        agreement = group_agreement(program, Precision.INT8, read, [Stored(torch.from_numpy(found), FLOAT32)])
        assert agreement.ok, agreement.detail


def test_int8_reads_levels_only() -> None:
    group = group_of("attention", [(1, 2, 1, 4)] * 3, lambda b, p: b.emit(relax.op.nn.attention(*p), "layer"))
    storages = (Storage("uint8", QParams(1.0, 0)), FLOAT32, FLOAT32)
    with pytest.raises(PlanError, match="layer: INT8 operands must be stored in uint8"):
        build_attention(KernelRequest(group, Precision.INT8, storages, (FLOAT32,)), NATIVE.capabilities, 1)


def test_many_keys_of_equal_weight_keep_their_mean() -> None:
    """A probability of 1 / 300 is less than a step of 1 / 255: powers are rounded, not probabilities."""
    q = np.zeros((1, 2, 1, 8), np.float32)
    k, v = (np.random.default_rng(i).standard_normal((1, 300, 1, 8)).astype(np.float32) for i in range(2))
    group = group_of("attention", [q.shape, k.shape, v.shape],
                     lambda b, p: b.emit(relax.op.nn.attention(*p), "layer"))
    storages = tuple(storage_for(Precision.INT8, a) for a in (k, k, v))
    request = KernelRequest(group, Precision.INT8, storages, (FLOAT32,))
    found, = execute(build_attention, request, [q, k, v])
    expected = stored(v, storages[2]).astype(np.float64).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=0, atol=1e-5)
