"""Register blocks and the division among threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx

from narrowcast.backends.cpu.amx_tiling import candidates
from narrowcast.backends.cpu.isa import arithmetic
from narrowcast.backends.cpu.left_rows import MatrixRows
from narrowcast.backends.cpu.microkernel import Tasks
from narrowcast.backends.cpu.packing import pack_weights, to_bfloat16
from narrowcast.backends.cpu.tiling import Columns, Product, ceil_div, choose, ranked, vector_cycles
from narrowcast.backends.target import Target
from narrowcast.dims import evaluate_dim
from narrowcast.precision import Precision

ZEN4 = Target("znver4", 2).capabilities
INT8 = arithmetic(Precision.INT8, ZEN4)
FP32 = arithmetic(Precision.FP32, ZEN4)


@given(columns=st.integers(1, 500), vectors=st.integers(1, 8))
def test_blocks_cover_the_columns_once(columns: int, vectors: int) -> None:
    cut = Columns.cut(columns, vectors, 16)
    covered = cut.full * vectors * 16 + (max(cut.tail - 1, 0) * 16 + cut.last)
    assert covered == columns
    assert cut.tail <= vectors and cut.last <= 16


@settings(deadline=None)
@given(rows=st.integers(1, 4000), columns=st.integers(1, 2000), steps=st.integers(1, 2000), threads=st.integers(1, 6),
       groups=st.sampled_from([1, 2, 32]), row_bytes=st.sampled_from([0.0, 300.0, 30000.0]))
def test_a_schedule_fits_the_registers_and_computes_every_row(
        rows: int, columns: int, steps: int, threads: int, groups: int, row_bytes: float) -> None:
    product = Product(rows, columns, steps, groups)
    schedule = choose(product, INT8, ZEN4, threads, row_bytes)
    vectors = max(schedule.columns.vectors, schedule.columns.tail)
    assert schedule.rows <= rows
    assert schedule.rows * vectors + vectors + 1 <= ZEN4.registers
    assert schedule.row_tasks * schedule.column_tasks <= threads
    tasks = Tasks(product, schedule)
    covered: set[int] = set()
    for part in range(tasks.parts):
        first, last = tasks.row_range(part)
        assert 0 <= first < last <= rows
        covered.update(range(first, last))
    assert len(covered) == rows


def test_the_work_of_a_square_product_is_halved() -> None:
    schedule = choose(Product(256, 256, 64), INT8, ZEN4, 2)
    assert schedule.row_tasks * schedule.column_tasks == 2


def test_packed_weights_have_the_order_of_the_kernel() -> None:
    weights = np.arange(6 * 40, dtype=np.int8).reshape(1, 1, 6, 40)
    packed = pack_weights(weights, Columns.cut(40, 2, 16), INT8)
    steps, lanes = 2, 16
    first = packed[:steps * 2 * lanes * 4].reshape(steps, 2, lanes, 4)
    for k, column in ((0, 0), (3, 17), (5, 31)):
        assert first[k // 4, column // 16, column % 16, k % 4] == weights[0, 0, k, column]
    assert not first[1, :, :, 2:].any()  # rows 6 and 7 do not exist
    last = packed[steps * 2 * lanes * 4:].reshape(steps, 1, lanes, 4)
    assert last[0, 0, 7, 1] == weights[0, 0, 1, 39] and not last[:, 0, 8:].any()


@pytest.mark.parametrize("value", [1.0, 1.00390625, -3.0e38, 1e-40, float("inf")])
def test_bfloat16_weights_are_rounded_to_nearest(value: float) -> None:
    held = (to_bfloat16(np.float32([value])).astype(np.uint32) << 16).view(np.float32)[0]
    assert np.isinf(value) or abs(held - value) <= abs(value) * 2.0**-8 + 1e-40


def test_a_small_product_runs_on_the_calling_thread() -> None:
    schedule = choose(Product(4, 32, 16), INT8, ZEN4, 2)
    assert schedule.row_tasks * schedule.column_tasks == 1


def test_an_unknown_number_of_rows_that_is_typically_one_gets_blocks_of_more() -> None:
    rows = tirx.Var("n", "int64")
    one, many = (choose(Product(rows, 256, 64, typical=(("n", n),)), INT8, ZEN4, 2) for n in (1, 256))
    assert one.rows > 1 and one.row_tasks == 1
    assert many == choose(Product(256, 256, 64), INT8, ZEN4, 2)


@given(columns=st.integers(1, 500), vectors=st.integers(1, 8))
def test_columns_of_an_unknown_number_are_covered_once(columns: int, vectors: int) -> None:
    symbol = tirx.Var("n", "int64")
    cut = Columns.cut(symbol, vectors, 16, singles=True)
    blocks, full, last = (evaluate_dim(d, {"n": columns}) for d in (cut.blocks, cut.full, cut.last))
    ends = [evaluate_dim(cut.offset(block, 16), {"n": columns}) for block in range(blocks + 1)]
    assert ends == [b * vectors * 16 for b in range(full + 1)] + [full * vectors * 16 + t * 16
                                                                  for t in range(1, blocks - full + 1)]
    assert full == blocks or ends[-2] + last == columns


@pytest.mark.parametrize(("distance", "most"), [(4096, 8), (2048, 14), (4096 + 64, 14), (3 * 4096, 8)])
def test_rows_that_share_a_set_of_the_cache_are_few(distance: int, most: int) -> None:
    """A way of the first-level cache has 4096 bytes; it has 8 ways at least."""
    schedule = choose(Product(196, 256, 1024, distance=distance), FP32, ZEN4, 2)
    assert schedule.rows <= most
    assert schedule.rows == 14 or most == 8


def test_parts_begin_at_whole_tiles() -> None:
    """784 rows in tiles of 14 that want three parts: four have as many tiles each."""
    schedule = choose(Product(784, 128, 1152, distance=1024), FP32, ZEN4, 2, row_bytes=2121.0)
    tiles = 784 // schedule.rows
    assert schedule.chunks > 1 and tiles % (schedule.chunks * schedule.row_tasks) == 0


def test_equal_work_is_cut_where_less_crosses_cores() -> None:
    """Many rows and few weights by rows, the reverse by columns."""
    by_rows = choose(Product(3136, 256, 64, distance=256), FP32, ZEN4, 2)
    by_columns = choose(Product(48, 2048, 512, distance=2048), FP32, ZEN4, 2)
    assert (by_rows.row_tasks, by_rows.column_tasks) == (2, 1)
    assert (by_columns.row_tasks, by_columns.column_tasks) == (1, 2)


def test_schedules_are_ranked_by_predicted_time() -> None:
    product = Product(784, 128, 1152, distance=1024)
    schedules = list(ranked(product, FP32, ZEN4, 2, row_bytes=2121.0))
    cycles = [vector_cycles(product, s, FP32, ZEN4) for s in schedules]
    assert schedules[0] == choose(product, FP32, ZEN4, 2, row_bytes=2121.0) and cycles == sorted(cycles)
    assert len({str(s) for s in schedules}) == len(set(schedules)) > 20


@pytest.mark.parametrize(("precision", "tiled"), [(Precision.INT8, True), (Precision.FP32, False)])
def test_tiles_and_vectors_are_ranked_together(precision: Precision, tiled: bool) -> None:
    capabilities = Target("sapphirerapids", 2).capabilities
    unit = arithmetic(precision, capabilities)
    product, rows = Product(784, 128, ceil_div(256, unit.depth)), MatrixRows(784, 256)
    found = list(candidates(product, rows, unit, capabilities, 2))
    assert [c.cycles for c in found] == sorted(c.cycles for c in found)
    assert {c.tasks.schedule.tiles is not None for c in found} == ({True, False} if tiled else {False})


def test_weights_that_are_read_once_from_far_away_are_streams() -> None:
    """As many as there are vectors side by side; not where they stay in the second-level cache, or rows share them."""
    far, near = Product(1, 4096, 1024), Product(1, 256, 256)
    schedule = choose(far, FP32, ZEN4, 2)
    assert schedule.apart and schedule.columns.vectors == 8
    assert schedule.packed_columns(4096, 16) == Columns.cut(4096, 1, 16)
    assert not choose(near, FP32, ZEN4, 2).apart
    many = choose(Product(200, 4096, 1024), FP32, ZEN4, 2)
    assert not many.apart and many.packed_columns(4096, 16) == many.columns
