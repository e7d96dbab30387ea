"""What kernels fetch before they need it: the column block that comes next, what an epilogue reads and writes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm.ir
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.sym import Analyzer

from narrowcast import ir
from narrowcast.backends.cpu import operands
from narrowcast.backends.cpu.build import compile_functions
from narrowcast.backends.cpu.depthwise import build_depthwise
from narrowcast.backends.cpu.gemm import build_matmul
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Target
from narrowcast.precision import FLOAT32, Precision, QParams, Storage

from .groups import group_of

LINE = 64


@settings(deadline=None)
@given(first=st.integers(0, 1000), elements=st.integers(1, 5000), tiles=st.integers(1, 9), steps=st.integers(1, 40),
       at_once=st.sampled_from([1, 2]), dtype=st.sampled_from(["float32", "uint16", "int8"]))
def test_the_tiles_of_a_block_fetch_all_that_comes_next(first: int, elements: int, tiles: int, steps: int,
                                                        at_once: int, dtype: str) -> None:
    steps *= at_once
    packed, analyzer = tirx.decl_buffer((first + elements,), dtype), Analyzer()
    size = np.dtype(dtype).itemsize
    fetched: set[int] = set()

    def record(buffer: tirx.Buffer, index: tvm.ir.Expr, *, level: int) -> None:
        assert buffer.same_as(packed) and level == 2
        fetched.add(int(analyzer.simplify(index)) * size // LINE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands, "prefetch", record)
        patch.setattr(operands, "bind", lambda name, value: value)
        ahead = operands.Ahead(first, elements, tiles, steps, 2)
        for tile in range(tiles + 2):
            before = set(fetched)
            for step in range(0, steps, at_once):
                ahead.share(tirx.const(tile, "int32")).emit(packed, tirx.const(step, "int32"), at_once)
            assert tile < tiles or fetched == before, "a tile beyond those that share fetches what the last one does"
    begin, end = first * size // LINE, ((first + elements) * size - 1) // LINE
    assert set(range(begin, end + 1)) - fetched <= {end}, "all but the last line, of which a step's share may be none"
    assert max(fetched) - end <= tiles * steps * size // LINE + 1


def assembly(columns: int, depth: int, precision: Precision, target: str, residual: bool, rows: int = 64) -> str:
    shapes = [(rows, depth), (rows, columns)] if residual else [(rows, depth)]
    weights = np.ones((depth, columns), np.float32)

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(relax.op.matmul(params[0], ir.constant(weights)), "layer")
        return builder.emit(relax.op.add(y, params[1]), "sum") if residual else y

    data = Storage("uint8", QParams(0.05, 10)) if precision is Precision.INT8 else Storage("bfloat16")
    storages = (data if precision is not Precision.FP32 else FLOAT32, FLOAT32)[:len(shapes)]
    request = KernelRequest(group_of("matmul", shapes, body), precision, storages, (FLOAT32,))
    aimed = Target.parse(target, 1)
    kernel = build_matmul(request, aimed.capabilities, 1)
    return str(compile_functions({"kernel": kernel.func}, aimed.tvm_target()).inspect_source("asm"))


@pytest.mark.parametrize(("precision", "target"), [
    (Precision.FP32, "cpu:haswell"), (Precision.FP32, "cpu:znver4"), (Precision.BF16, "cpu:sapphirerapids"),
    (Precision.INT8, "cpu:sapphirerapids")])
def test_the_block_behind_is_fetched_into_the_second_level_cache(precision: Precision, target: str) -> None:
    assert len(re.findall(r"\bprefetcht1\b", assembly(1024, 512, precision, target, residual=False))) >= 1


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_a_single_block_has_none_behind_it(precision: Precision) -> None:
    assert "prefetcht1" not in assembly(16, 512, precision, "cpu:sapphirerapids", residual=False)


@pytest.mark.parametrize(("columns", "precision"), [(16, Precision.FP32), (1024, Precision.FP32), (16, Precision.BF16)])
def test_the_rows_behind_a_tile_are_fetched_into_the_first_level_cache(columns: int, precision: Precision) -> None:
    assert "prefetcht0" in assembly(columns, 512, precision, "cpu:sapphirerapids", residual=False)


def test_a_single_tile_of_rows_has_none_behind_it() -> None:
    assert "prefetcht0" not in assembly(16, 512, Precision.FP32, "cpu:znver4", residual=False, rows=1)


def test_a_depthwise_convolution_fetches_what_it_reads_and_writes() -> None:
    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        weight = ir.constant(np.ones((32, 3, 3, 1), np.float32))
        return builder.emit(relax.op.nn.conv2d(params[0], weight, padding=1, groups=32, data_layout="NHWC",
                                               kernel_layout="OHWI"), "layer")

    request = KernelRequest(group_of("conv", [(1, 28, 28, 32)], body), Precision.FP32, (FLOAT32,), (FLOAT32,))
    aimed = Target.parse("cpu:znver4", 1)
    kernel = build_depthwise(request, aimed.capabilities, 1)
    code = compile_functions({"kernel": kernel.func}, aimed.tvm_target()).inspect_source("asm")
    assert "prefetcht0" in code and "prefetchw" in code


def test_residual_and_result_are_fetched_before_the_sums() -> None:
    code = assembly(32, 512, Precision.FP32, "cpu:znver4", residual=True)
    plain = assembly(32, 512, Precision.FP32, "cpu:znver4", residual=False)
    written, read = (len(re.findall(rf"\b{name}\b", code)) for name in ("prefetchw", "prefetcht0"))
    assert written == len(re.findall(r"\bprefetchw\b", plain)) > 0
    assert read == len(re.findall(r"\bprefetcht0\b", plain)) + written


@pytest.mark.parametrize("rows", [1, 5])
def test_of_sums_of_nothing_nothing_is_fetched(rows: int) -> None:
    assert "prefetcht0" not in assembly(300, 0, Precision.FP32, "cpu:znver4", residual=False, rows=rows)
