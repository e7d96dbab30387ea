"""Products of two tensors: the right side is packed at run time, one column block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, is_one, product_of
from ...errors import VerificationError
from ...ir import dims_of
from ...precision import Precision, QParams
from ..target import Capabilities
from .amx import MatrixUnit, tiles_at_work
from .amx_tiling import Candidate, candidates
from .epilogue import Epilogue, Part, Position, row_index
from .isa import Arithmetic, arithmetic, bind, fill_run, named, span
from .kernel import Kernel, KernelRequest, Parameters
from .left_rows import MatrixRows
from .microkernel import Tasks, by_kind, emit_rows
from .operands import Accumulated, Block, Finish
from .runtime_packing import Matrix, Panel, emit_pack
from .signature import build_kernel, input_index
from .tiling import Product, ceil_div
from .vector_math import Vector, splat
from .vector_memory import Index, flat_view, load, store

# Lanes of a vector on CPUs that have mask registers.
_MASKED_LANES = 16


@dataclass(frozen=True)
class BatchedShape:
    """Left [batch_left…, rows, depth] · right [batch_right…, depth, columns], broadcast to ``batch``."""

    batch: tuple[Dim, ...]
    batch_left: tuple[Dim, ...]
    batch_right: tuple[Dim, ...]
    rows: Dim
    depth: Dim
    columns: Dim

    @property
    def items(self) -> Dim:
        """Products in all."""
        return product_of(self.batch)

    @classmethod
    def of(cls, left: tuple[Dim, ...], right: tuple[Dim, ...], layer: str) -> BatchedShape:
        """The shape of a product; leading dimensions that the right side lacks become rows."""
        if len(left) < 2 or len(right) < 2:
            raise VerificationError("a product of two tensors needs matrices", layer=layer, found=(left, right))
        if all(is_one(d) for d in right[:-2]):
            return cls((1,), (1,), (1,), product_of(left[:-1]), left[-1], right[-1])
        rank = max(len(left), len(right)) - 2
        batches = [(1,) * (rank + 2 - len(s)) + s[:-2] for s in (left, right)]
        batch = tuple(b if is_one(a) else a for a, b in zip(*batches, strict=True))
        return cls(batch, batches[0], batches[1], left[-2], left[-1], right[-1])


@dataclass(frozen=True)
class _Zeros:
    """INT8: the zero points of the left side and of the right side after its shift by 128, and the common scale."""

    left: int
    right: int
    scale: float

    @classmethod
    def of(cls, left: QParams, right: QParams) -> _Zeros:
        return cls(left.zero_point, right.zero_point - 128, left.scale * right.scale)


@dataclass(frozen=True)
class BatchedProduct:
    """Emits a batched product's loops: a unit of work is a part of the rows and columns of one batch item."""

    shape: BatchedShape
    unit: Arithmetic
    tasks: Tasks
    zeros: _Zeros | None
    epilogue: Epilogue

    def emit(self, left: tirx.Buffer, right: tirx.Buffer, threads: int) -> None:
        """Emit the parallel loop over units."""
        schedule = self.tasks.schedule
        parts = schedule.row_tasks * schedule.column_tasks
        units = self.shape.items * parts
        count = min(threads, self.epilogue.request.typically(self.shape.items) * parts)
        with T.parallel(count) as task:
            named("task", task)
            with (tiles_at_work(self.unit, schedule) as matrix,
                  span("unit", task * units // count, (task + 1) * units // count) as unit):
                column_part = unit % schedule.column_tasks
                row_part = bind("row_part", unit // schedule.column_tasks % schedule.row_tasks)
                item = bind("item", unit // (schedule.column_tasks * schedule.row_tasks))
                self._emit_unit(left, right, item, (row_part, column_part), matrix)

    def _emit_unit(self, left: tirx.Buffer, right: tirx.Buffer, item: Index, part: tuple[Index, Index],
                   matrix: MatrixUnit | None) -> None:
        row_part, column_part = part
        shape, unit, schedule = self.shape, self.unit, self.tasks.schedule
        origins = [bind(name, row_index(batch, shape.batch, item) * size)
                   for name, batch, size in (("left_origin", shape.batch_left, shape.rows * shape.depth),
                                             ("right_origin", shape.batch_right, shape.depth * shape.columns))]
        rows = MatrixRows(shape.rows, shape.depth, origins[0])
        begin, end = (bind(n, (row_part + i) * self.tasks.tiles // schedule.row_tasks)
                      for i, n in enumerate(("begin", "end")))
        first, last = self.tasks.rows_of((begin, end))
        first_row = bind("first_row", first)
        opened = rows.open(self.tasks, unit, left, 0)(first_row, last)
        row_terms = self._emit_row_terms(left, origins[0], first_row, last)
        right_matrix = Matrix(right, origins[1], shape.columns, shape.depth, shape.columns)
        columns = schedule.columns
        width = columns.widest
        packed = named("packed", T.alloc_buffer((self.tasks.product.steps * width * unit.panel,), unit.weight))
        starts = named("starts", T.alloc_buffer((width * unit.lanes,), "int32")) if self.zeros else None

        start, stop = ((column_part + i) * columns.blocks // schedule.column_tasks for i in (0, 1))
        with span("block", start, stop) as block:
            column = bind("column", columns.offset(block, unit.lanes))

            def body(vectors: int, valid: Index) -> None:
                initial = (starts, 0) if starts is not None else None
                emit_pack(unit, right_matrix, column, Panel(packed, 0, vectors, valid), initial)
                if matrix is not None:
                    self._fill_steps(packed, vectors)
                if starts is not None:
                    self._emit_starts(starts, vectors)

                def finish(found: Sequence[Accumulated]) -> None:
                    self.epilogue.emit_all([
                        Part(self._value(acc, row_terms, row - first_row),
                             Position(item * shape.rows + row, column + j * unit.lanes),
                             valid if j == vectors - 1 else unit.lanes) for acc, row, j in found])

                emit_rows(unit, opened, schedule.rows, (begin, end), shape.rows,
                          Block(vectors, packed, 0, initial=initial), Finish(finish, together=self.epilogue.together),
                          matrix)

            by_kind(columns, block, unit.lanes, body)

    def _fill_steps(self, packed: tirx.Buffer, vectors: int) -> None:
        """Zeros for the steps that whole tiles have beyond the packed ones."""
        own, width = ceil_div(self.shape.depth, self.unit.depth), vectors * self.unit.panel
        fill_run(packed, own * width, 0, (self.tasks.product.steps - own) * width)

    def _emit_starts(self, starts: tirx.Buffer, vectors: int) -> None:
        """Turn the sums of the packed columns into what the accumulators start with."""
        assert self.zeros is not None
        lanes = self.unit.lanes
        product = self.shape.depth * self.zeros.left * self.zeros.right
        constant = splat(product if isinstance(product, int) else T.Cast("int32", product), lanes, "int32")
        for j in range(vectors):
            total = load(starts, j * lanes, lanes)
            store(starts, j * lanes, constant - total * splat(self.zeros.left, lanes, "int32"), lanes)

    def _height(self) -> Dim:
        """Rows of the largest part."""
        tasks = self.tasks
        if not isinstance(self.shape.rows, int):
            return ceil_div(tasks.tiles, tasks.schedule.row_tasks) * tasks.schedule.rows
        return tasks.part_rows

    def _emit_row_terms(self, left: tirx.Buffer, origin: Index, first_row: Index,
                        last_row: Index) -> tirx.Buffer | None:
        """INT8: ``-zero point of the right side · sum of the row`` for every row of the part."""
        if self.zeros is None or self.zeros.right == 0:
            return None
        shape, unit = self.shape, self.unit
        height = self._height()
        terms = named("row_terms", T.alloc_buffer((height,), "int32"))
        full, rest = shape.depth // unit.panel, shape.depth % unit.panel
        count = T.min(height, shape.rows - first_row) if isinstance(shape.rows, int) else last_row - first_row
        with T.serial(count) as row:
            named("row", row)
            total = named("total", T.alloc_buffer((unit.lanes,), "int32"))
            store(total, 0, splat(0, unit.lanes, "int32"), unit.lanes)
            at = bind("at", origin + (first_row + row) * shape.depth)

            def add(begin: Index, valid: Index) -> None:
                elements = load(left, begin, unit.panel, valid)
                ones = splat(tirx.const(1, unit.weight), unit.panel)
                store(total, 0, unit.multiply_add(load(total, 0, unit.lanes), elements, ones), unit.lanes)

            if not (isinstance(full, int) and full == 0):
                with T.serial(full) as k:
                    add(at + named("k", k) * unit.panel, unit.panel)
            summed = T.call_llvm_pure_intrin("int32", "llvm.vector.reduce.add", load(total, 0, unit.lanes))
            if unit.lanes < _MASKED_LANES:
                summed = summed + self._tail(left, at + full * unit.panel, rest)
            elif not isinstance(rest, int):
                with T.If(rest > 0), T.Then():
                    add(at + full * unit.panel, T.Cast("int32", rest))
            elif rest:
                add(at + full * unit.panel, rest)
            T.buffer_store(terms, summed * tirx.const(-self.zeros.right, "int32"), [row])
        return terms

    @staticmethod
    def _tail(left: tirx.Buffer, begin: Index, count: Dim) -> Vector:
        """The sum of ``count`` elements, one by one: LLVM 22 gets masked loads of 2 or 3 bytes wrong where there are no
        mask registers."""
        total = named("tail", T.alloc_buffer((1,), "int32"))
        T.buffer_store(total, tirx.const(0, "int32"), [0])
        with T.serial(count) as i:
            T.buffer_store(total, total[0] + T.Cast("int32", left[begin + named("i", i)]), [0])
        return total[0]

    def _value(self, acc: Vector, row_terms: tirx.Buffer | None, row: Index) -> Vector:
        """An accumulator as float32."""
        if self.zeros is None:
            return acc
        if row_terms is not None:
            acc = acc + splat(row_terms[row], self.unit.lanes, "int32")
        return T.Cast(f"float32x{self.unit.lanes}", acc) * splat(self.zeros.scale, self.unit.lanes)


def _ways(product: Product, shape: BatchedShape, unit: Arithmetic, capabilities: Capabilities,
          threads: int) -> Iterator[Candidate]:
    """How one batch item can be computed, the fastest first. Copying rows for tiles is only for a known number of
    them."""
    rows = MatrixRows(shape.rows, shape.depth)
    for way in candidates(product, rows, unit, capabilities, threads):
        schedule, known = way.tasks.schedule, isinstance(shape.rows, int)
        if schedule.tiles and not known and rows.copied_bytes(way.tasks.read_at_once(way.arithmetic), way.arithmetic):
            continue
        yield replace(way, tasks=replace(way.tasks, schedule=replace(schedule, chunks=1)))


def build_batched_matmul(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a batched_matmul group: [..., M, K] · [..., K, N], batches broadcast, with its epilogue."""
    call = request.group.anchor.value
    shape = BatchedShape.of(dims_of(call.args[0]), dims_of(call.args[1]), request.group.name)
    unit = arithmetic(request.precision, capabilities)
    items = request.typically(shape.items)
    split = next(s for s in range(1, threads + 1) if items * s % threads == 0 or items >= 8 * threads)
    product = Product(shape.rows, shape.columns, ceil_div(shape.depth, unit.depth), typical=request.typical)
    way, schedules = request.pick(_ways(product, shape, unit, capabilities, split))
    sides = [input_index(request, call.args[i]) for i in (0, 1)]
    zeros = None
    if request.precision is Precision.INT8:
        qparams = [request.inputs[i].qparams for i in sides]
        assert qparams[0] is not None and qparams[1] is not None, "lowering gives INT8 groups u8 data"
        zeros = _Zeros.of(qparams[0], qparams[1])
    epilogue = Epilogue(request, capabilities, request.group.anchor)
    emitter = BatchedProduct(shape, way.arithmetic, way.tasks, zeros, epilogue)

    def emit(parameters: Parameters) -> None:
        left, right = (named(n, flat_view(parameters.inputs[i])) for n, i in zip(("left", "right"), sides, strict=True))
        emitter.emit(left, right, threads)

    macs = shape.items * shape.rows * shape.depth * shape.columns
    return replace(build_kernel(request, way.arithmetic, epilogue, (), macs, emit), schedules=schedules)
