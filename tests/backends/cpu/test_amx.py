"""Kernels on AMX tiles (see ``emulation.amx``): every shape against the same references as on vectors."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu import peak
from narrowcast.backends.cpu.amx import MatrixUnit, configuration
from narrowcast.backends.cpu.amx_tiling import candidates
from narrowcast.backends.cpu.convolution import build_conv
from narrowcast.backends.cpu.epilogue import Epilogue
from narrowcast.backends.cpu.gemm import build_matmul
from narrowcast.backends.cpu.isa import arithmetic, tile_arithmetic
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.left_rows import MatrixRows
from narrowcast.backends.cpu.operands import Block, Finish, Left
from narrowcast.backends.cpu.tiling import Product, Tiles
from narrowcast.backends.cpu.vector_memory import Index
from narrowcast.backends.target import Target
from narrowcast.precision import FLOAT32, Precision, Storage

from ...emulation import amx
from .fp16 import FP16_TILES, emulated_fp16  # noqa: F401
from .groups import assert_close, execute, group_of, held_weights, storage_for, stored
from .symbolic import SymbolicKernel
from .test_attention import Case
from .test_attention import check as check_attention
from .test_batched_matmul import check as check_batched
from .test_convolution import Conv, any_convolution, call
from .test_convolution import check as check_conv
from .test_gemm import check as check_matmul
from .test_symbolic_convolutions import CONVOLUTIONS, check_at
from .test_symbolic_products import linear

pytestmark = [*amx.NEEDS_AMX, pytest.mark.usefixtures("emulated_fp16")]
TARGET = Target.parse(amx.NAME, 2)
TARGETS = {Precision.INT8: TARGET, Precision.BF16: TARGET, Precision.FP16: FP16_TILES}
TILED = pytest.mark.parametrize("precision", TARGETS, ids=str)
FLOATS = pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16], ids=str)


@pytest.fixture(autouse=True)
def emulation() -> None:
    amx.install()


@pytest.fixture
def must_use_tiles(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test has to emit and execute multiply-adds of tiles."""
    emitted: list[Block] = []
    emit = MatrixUnit.emit

    def spying(unit: MatrixUnit, left: Left, row: Index, block: Block, finish: Finish) -> None:
        emitted.append(block)
        emit(unit, left, row, block, finish)

    monkeypatch.setattr(MatrixUnit, "emit", spying)
    with amx.executing(precision):
        yield
    assert emitted


@TILED
@pytest.mark.usefixtures("must_use_tiles")
@pytest.mark.parametrize(("shape", "columns"), [
    ((32, 64), 32), ((128, 384), 384), ((2, 49, 96), 40), ((200, 147), 65), ((17, 1000), 16), ((64, 20), 70),
    ((300, 70), 33)], ids=str)
def test_matmul(precision: Precision, shape: tuple[int, ...], columns: int) -> None:
    check_matmul(precision, shape, columns, TARGETS[precision])


@TILED
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 70), depth=st.integers(1, 300), columns=st.integers(1, 100))
def test_any_matmul(precision: Precision, rows: int, depth: int, columns: int) -> None:
    check_matmul(precision, (rows, depth), columns, TARGETS[precision])


@TILED
@pytest.mark.usefixtures("must_use_tiles")
@settings(max_examples=8, deadline=None)
@given(rows=st.integers(17, 70), columns=st.integers(17, 100), name=st.sampled_from(["gelu", "silu", "sigmoid"]))
def test_interleaved_results_are_those_one_by_one(precision: Precision, rows: int, columns: int, name: str) -> None:
    """A polynomial, a residual and one value a row: the same bits, and those of float64."""
    generator = np.random.default_rng(rows * columns)
    shapes = [(rows, 64), (rows, columns), (rows, 1)]
    arrays = [generator.standard_normal(s).astype(np.float32) for s in shapes]
    weights = generator.standard_normal((64, columns)).astype(np.float32) / 8

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.matmul(params[0], ir.constant(weights)), "layer")
        y = builder.emit(relax.op.add(y, params[1]), "sum")
        operator = relax.op.sigmoid if name == "sigmoid" else getattr(relax.op.nn, name)
        return builder.emit(relax.op.multiply(builder.emit(operator(y), name), params[2]), "scaled")

    storages = tuple(storage_for(precision, a) for a in arrays)
    request = KernelRequest(group_of("matmul", shapes, body), precision, storages, (FLOAT32, storages[1]))
    together = execute(build_matmul, request, arrays, TARGETS[precision], 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Epilogue, "together", 1)
        alone = execute(build_matmul, request, arrays, TARGETS[precision], 2)
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_array_equal(a, b)
    values = [stored(a, s).astype(np.float64) for a, s in zip(arrays, storages, strict=True)]
    y = values[0] @ held_weights(weights, precision) + values[1]
    gate = scipy.special.ndtr(y) if name == "gelu" else scipy.special.expit(y)
    expected = (gate if name == "sigmoid" else y * gate) * values[2]
    magnitude = (np.abs(values[0]) + np.abs(arrays[0]).max()) @ np.abs(held_weights(weights, precision))
    magnitude = (magnitude + np.abs(values[1])) * np.abs(values[2]) * 1.2
    assert_close(together[0], expected, magnitude, FLOAT32, 64, precision)


@TILED
def test_three_threads_divide_the_work(precision: Precision) -> None:
    check_matmul(precision, (200, 130), 300, TARGETS[precision], threads=3)


@TILED
@pytest.mark.usefixtures("must_use_tiles")
@pytest.mark.parametrize("conv", [
    Conv(1, (14, 14), 64, 64, (3, 3), padding=(1, 1, 1, 1)),
    Conv(2, (7, 7), 64, 48, (3, 3), padding=(1, 1, 1, 1)),
    Conv(1, (32, 32), 3, 64, (7, 7), strides=(2, 2), padding=(3, 3, 3, 3)),
    Conv(1, (28, 28), 32, 32, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    Conv(1, (28, 28), 64, 40, (1, 1), strides=(2, 2)),
    Conv(2, (11, 13), 20, 30, (3, 3)),
    Conv(1, (19, 17), 33, 20, (3, 2), strides=(1, 2), padding=(1, 0, 2, 1), dilation=(2, 2)),
    Conv(1, (16, 16), 128, 64, (3, 3), padding=(1, 1, 1, 1), groups=2),
    Conv(2, (4, 14, 16), 64, 48, (3, 3, 3), strides=(2, 1, 1), padding=(1, 1, 1, 1, 1, 1)),
    Conv(1, (5, 9, 32), 20, 32, (2, 3, 3), padding=(0, 1, 1, 1, 1, 1)),
    Conv(1, (80,), 40, 64, (5,), padding=(2, 2)),
    Conv(3, (96,), 24, 19, (3,), strides=(2,), padding=(2, 1), dilation=(2,)),
], ids=str)
def test_convolution(precision: Precision, conv: Conv) -> None:
    check_conv(build_conv, precision, conv, TARGETS[precision])


@FLOATS
@pytest.mark.usefixtures("must_use_tiles")
def test_an_infinite_value_stays_in_its_window(precision: Precision) -> None:
    """34 channels are 17 steps of pairs, which is no number of whole tiles: what is beyond is not multiplied by 0."""
    conv = Conv(1, (16, 32), 34, 32, (1, 1), strides=(2, 2))
    data = np.ones((1, 16, 32, 34), np.float32)
    data[0, 4, 3] = np.inf  # A pixel that the stride leaves out.
    weights = np.ones((32, 1, 1, 34), np.float32)
    group = group_of("conv", [data.shape], lambda b, p: b.emit(call(conv, p[0], weights), "layer"))
    request = KernelRequest(group, precision, (Storage(precision.storage_dtype),), (FLOAT32,))
    (found,) = execute(build_conv, request, [data], TARGETS[precision])
    np.testing.assert_array_equal(found, np.full((1, 8, 16, 32), 34.0, np.float32))


@pytest.mark.usefixtures("must_use_tiles")
@pytest.mark.parametrize("precision", [Precision.FP16], ids=str)
def test_fp16_adds_up_in_float32(precision: Precision) -> None:
    """2048 + 1 is 2048 in float16, of which vectors lose 15 ones (``test_fp16``); 2^-24 is a denormal of float16."""
    x, w = np.ones((32, 128), np.float32), np.ones((128, 40), np.float32)
    x[:, 0], x[:, 1] = 2048, 2.0**-24
    w[1] = 2.0**15
    group = group_of("matmul", [x.shape], lambda b, p: b.emit(relax.op.matmul(p[0], ir.constant(w)), "layer"))
    request = KernelRequest(group, precision, (Storage(precision.storage_dtype),), (FLOAT32,))
    (found,) = execute(build_matmul, request, [x], TARGETS[precision])
    np.testing.assert_array_equal(found, np.full((32, 40), 2048 + 126 + 2.0**-9, np.float32))


@TILED
@settings(max_examples=10, deadline=None)
@given(rank=st.sampled_from([2, 3]), data=st.data())
def test_any_convolution(precision: Precision, rank: int, data: st.DataObject) -> None:
    check_conv(build_conv, precision, any_convolution(data, rank), TARGETS[precision])


@TILED
@pytest.mark.usefixtures("must_use_tiles")
@pytest.mark.parametrize(("left", "right"), [
    ((2, 3, 32, 64), (2, 3, 64, 32)), ((3, 1, 64, 99), (4, 99, 160)), ((3, 5, 48, 40), (40, 17)),
    ((1, 150, 130), (1, 130, 300))], ids=str)
def test_batched_matmul(precision: Precision, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check_batched(precision, left, right, TARGETS[precision])


@TILED
@settings(max_examples=8, deadline=None)
@given(batch=st.integers(1, 3), rows=st.integers(8, 60), depth=st.integers(1, 200), columns=st.integers(1, 90))
def test_any_batched_matmul(precision: Precision, batch: int, rows: int, depth: int, columns: int) -> None:
    check_batched(precision, (batch, rows, depth), (batch, depth, columns), TARGETS[precision])


@TILED
@pytest.mark.usefixtures("must_use_tiles")
@pytest.mark.parametrize("case", [
    Case(1, 32, 64, 2, 32, 32, bias=(1, 1, 1, 64)),
    Case(2, 75, 96, 3, 64, 40, bias=(2, 3, 75, 96)),
    Case(1, 64, 64, 4, 32, 17, causal="TopLeft"),
    Case(1, 128, 64, 1, 96, 64),
    Case(2, 40, 128, 3, 64, 48, causal="BottomRight"),
], ids=str)
def test_attention(precision: Precision, case: Case) -> None:
    check_attention(precision, case, TARGETS[precision])


@TILED
@pytest.mark.usefixtures("must_use_tiles")
@pytest.mark.parametrize(("depth", "columns"), [(64, 70), (200, 33)])
def test_matmul_of_any_number_of_rows(precision: Precision, depth: int, columns: int) -> None:
    typical = {"batch": 2, "seq": 64}
    kernel = linear(precision, depth, columns, typical, TARGETS[precision])
    for extents in (typical, {"batch": 1, "seq": 1}, {"batch": 3, "seq": 5}, {"batch": 1, "seq": 700}):
        kernel.check(extents)


@TILED
@pytest.mark.parametrize("conv", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_of_any_size(precision: Precision, conv: object) -> None:
    kernel = SymbolicKernel(conv.group(), precision, {"n": 2, "h": 14, "w": 20}, target=TARGETS[precision])  # type: ignore
    for extents in ((2, 14, 20), (1, 1, 1), (3, 9, 17), (1, 30, 5)):
        check_at(kernel, extents)


def test_few_rows_stay_on_vectors() -> None:
    unit, capabilities = arithmetic(Precision.INT8, TARGET.capabilities), TARGET.capabilities
    for count, tiled in ((4, False), (64, True)):
        product = Product(count, 256, 64)
        best = next(candidates(product, MatrixRows(count, 256), unit, capabilities, 2))
        assert (best.tasks.schedule.tiles is not None) == tiled


def test_integer_tiles_need_the_weights_of_vnni() -> None:
    without = Target.parse("cpu:skylake-avx512+amx_tile+amx_int8").capabilities
    assert tile_arithmetic(Precision.INT8, without) is None
    assert tile_arithmetic(Precision.INT8, TARGET.capabilities) == arithmetic(Precision.INT8, TARGET.capabilities)


def test_configuration_is_laid_out_as_the_manual_says() -> None:
    memory = configuration(Tiles(rows=14, count=2, steps=12), vectors=2).view(np.uint8)
    assert memory[0] == 1 and not memory[1:16].any()
    assert memory[16:32].view(np.uint16).tolist() == [64] * 4 + [48] * 2 + [64] * 2
    assert memory[48:56].tolist() == [14] * 6 + [12] * 2 and not memory[56:].any() and not memory[32:48].any()


@TILED
def test_the_peak_is_that_of_tiles(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_STEPS", 10)
    target = TARGETS[precision]
    module = tvm.compile(tvm.IRModule({"peak": peak.peak_function(precision, target)}), target.tvm_target())
    with amx.executing(precision, exactly=2 * 10 * 4):
        module["peak"](tvm.runtime.empty((32,), arithmetic(precision, target.capabilities).accumulator))


_EXECUTE = """
import ctypes, mmap, sys
sys.path.insert(0, sys.argv[1])
from tests.emulation import amx
amx.install()
memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(bytes.fromhex(sys.argv[2]))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
"""


@pytest.mark.parametrize(("code", "status"), [
    ("c4e27849c0 c3", 0),  # tilerelease
    ("c4e27b49c0 c3", -signal.SIGILL),  # tilezero of a tile without a shape
    ("0f0b c3", -signal.SIGILL),  # ud2
], ids=["tilerelease", "tilezero", "ud2"])
def test_what_the_architecture_refuses_ends_the_process(code: str, status: int) -> None:
    folder = str(Path(amx.__file__).parents[2])
    result = subprocess.run([sys.executable, "-c", _EXECUTE, folder, code], capture_output=True)
    assert result.returncode == status, result.stderr.decode()
