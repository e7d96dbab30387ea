"""Products with constant weights, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu import tiling
from narrowcast.backends.cpu.gemm import build_matmul
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.tiling import Columns, Schedule
from narrowcast.backends.target import Target
from narrowcast.errors import PlanError, TargetError
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, assert_close, execute, group_of, held_weights, storage_for, stored
from .precisions import EVERY_PRECISION

OUTPUTS = (FLOAT32, Storage("uint8", QParams(0.07, 3)), BFLOAT16)


def check(precision: Precision, shape: tuple[int, ...], columns: int, target: Target = NATIVE, threads: int = 2,
          outputs: tuple[Storage, ...] = OUTPUTS, per_channel: bool = True) -> None:
    """relu(x · w + bias + residual) with the bias and the residual in the epilogue."""
    rng = np.random.default_rng(abs(hash((shape, columns))) % 2**32)
    depth, result = shape[-1], (*shape[:-1], columns)
    x, residual = (rng.standard_normal(s).astype(np.float32) for s in (shape, result))
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.matmul(params[0], ir.constant(w)), "layer")
        y = builder.emit(relax.op.add(y, ir.constant(bias)), "bias")
        y = builder.emit(relax.op.add(y, params[1]), "sum")
        return builder.emit(relax.op.nn.relu(y), "relu")

    storages = (storage_for(precision, x), storage_for(precision, residual))
    request = KernelRequest(group_of("matmul", [shape, result], body), precision, storages, outputs, per_channel)
    actual = execute(build_matmul, request, [x, residual], target, threads)
    held, values = held_weights(w, precision, per_channel=per_channel), stored(x, storages[0]).astype(np.float64)
    added = bias + stored(residual, storages[1]).astype(np.float64)
    expected = np.maximum(values @ held + added, 0)
    zero = abs(x.min())  # the data minus its zero point
    magnitude = (np.abs(values) + zero) @ np.abs(held) + np.abs(bias) + np.abs(added)
    for got, storage in zip(actual, outputs, strict=True):
        assert_close(got, expected, magnitude, storage, depth, precision)


@EVERY_PRECISION
@settings(max_examples=6, deadline=None)
@given(rows=st.integers(1, 40), depth=st.integers(1, 150), columns=st.integers(1, 130))
def test_any_shape(precision: Precision, rows: int, depth: int, columns: int) -> None:
    check(precision, (rows, depth), columns)


@EVERY_PRECISION
@pytest.mark.parametrize(("shape", "columns"), [((1, 64), 17), ((2, 3, 5, 8), 33), ((1, 129), 1), ((31, 3), 100)])
def test_edges(precision: Precision, shape: tuple[int, ...], columns: int) -> None:
    check(precision, shape, columns)


@pytest.mark.isa("avx512_vnni")
def test_one_scale_for_all_channels() -> None:
    check(Precision.INT8, (9, 40), 24, per_channel=False)


@pytest.mark.isa("avx2")
@pytest.mark.parametrize(("rows", "columns"), [(13, 70), (1, 5), (40, 24)])
def test_avx2_has_vectors_of_eight(rows: int, columns: int) -> None:
    check(Precision.FP32, (rows, 19), columns, Target.parse("cpu:haswell", 2))


@EVERY_PRECISION
def test_three_threads_divide_the_work(precision: Precision) -> None:
    check(precision, (200, 130), 300, threads=3)


@pytest.mark.isa("avx512_vnni")
def test_a_wrong_scale_is_noticed() -> None:
    with pytest.raises(AssertionError, match="beyond the bound"):
        rng = np.random.default_rng(0)
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 16), (16, 16)))
        group = group_of("matmul", [(4, 16)],
                         lambda b, p: b.emit(relax.op.matmul(p[0], ir.constant(w * np.float32(1.01))), "layer"))
        storage = storage_for(Precision.INT8, x)
        actual = execute(build_matmul, KernelRequest(group, Precision.INT8, (storage,), (FLOAT32,)), [x])[0]
        held, values = held_weights(w, Precision.INT8), stored(x, storage).astype(np.float64)
        assert_close(actual, values @ held, np.abs(values) @ np.abs(held), FLOAT32, 16)


def request(precision: Precision, depth: int) -> KernelRequest:
    w = np.ones((depth, 4), np.float32)
    group = group_of("matmul", [(1, depth)], lambda b, p: b.emit(relax.op.matmul(p[0], ir.constant(w)), "layer"))
    return KernelRequest(group, precision, (storage_for(precision, np.ones(1, np.float32)),), (FLOAT32,))


def test_int8_refuses_a_reduction_that_could_overflow() -> None:
    with pytest.raises(PlanError, match=r"layer: .*overflow"):
        build_matmul(request(Precision.INT8, 70000), Target("znver4", 1).capabilities, 1)


def test_a_target_without_the_instruction_is_refused() -> None:
    with pytest.raises(TargetError, match="avx512_bf16"):
        build_matmul(request(Precision.BF16, 8), Target("haswell", 1).capabilities, 1)


@pytest.mark.parametrize(("precision", "instruction"), [
    (Precision.INT8, "vpdpbusd"), (Precision.BF16, "narrowcast_dot_bf16"), (Precision.FP32, "llvm.fma")])
def test_the_kernel_shows_its_instruction(precision: Precision, instruction: str) -> None:
    kernel = build_matmul(request(precision, 8), Target("znver4", 2).capabilities, 2)
    assert instruction in kernel.func.script()
    assert kernel.macs == 8 * 4


@EVERY_PRECISION
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 700, 1500), (3, 1031, 1011), (1, 2100, 517)])
def test_weights_in_streams(precision: Precision, rows: int, depth: int, columns: int,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with tails of columns and of the depth; the packed weights are those of narrow blocks."""
    taken: list[bool] = []
    packed_columns = Schedule.packed_columns

    def spying(schedule: Schedule, count: int, lanes: int) -> Columns:
        taken.append(schedule.apart)
        return packed_columns(schedule, count, lanes)

    monkeypatch.setattr(Schedule, "packed_columns", spying)
    monkeypatch.setattr(tiling, "_STREAM_GAIN", 10.0)
    capabilities = replace(NATIVE.capabilities, l2_bytes=2**18)
    monkeypatch.setattr(Target, "capabilities", property(lambda self: capabilities))
    check(precision, (rows, depth), columns)
    assert taken and all(taken)
