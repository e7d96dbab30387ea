"""Scaled dot-product attention in one kernel: scores never leave the cache.

A unit of work is one head of one batch item (or a part of its queries). It packs the head's keys and values, then
takes a few queries at a time: scores by the micro-kernel, softmax in float32, probabilities (rounded to the group's
precision) times the values by the micro-kernel again.

In INT8 keys and values are packed as s8, 128 less than their levels. What that and the keys' zero point add to a score
is the same for all keys of a query and does not change the softmax, so it is left out. The powers of a row are u8
levels of the largest; their sum, with which the row is divided, is that of the levels, so that the values' zero point
adds a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, equal_dims, is_one, simplified
from ...errors import PlanError, UnsupportedOperatorError, VerificationError
from ...ir import Constant, constant_value, dims_of
from ...operators.quantization import PROBABILITY_LEVELS
from ...precision import BFLOAT16, FLOAT32, Precision, QParams, Storage
from ..target import Capabilities
from .amx import MatrixUnit, tiles_at_work
from .epilogue import Epilogue, Position, row_index
from .isa import Arithmetic, arithmetic, bind, copy_run, fill_run, named, span, tile_arithmetic
from .kernel import Kernel, KernelRequest, Parameters
from .microkernel import by_kind, emit_tile
from .operands import Accumulated, Block, Finish, Left, Reduction
from .runtime_packing import Matrix, Panel, emit_pack, emit_pack_transposed
from .signature import build_kernel, input_index
from .tiling import Columns, Product, Schedule, Tiles, ceil_div, ranked
from .vector_math import (
    Vector,
    apart,
    bound,
    exp_of_negative,
    fma,
    intrinsic,
    joined,
    larger,
    runs,
    splat,
    vector_type,
)
from .vector_memory import Index, encode, flat_view, import_conversions, load, load_float, store, to_levels

# Rows whose softmax is computed side by side.
_SOFTMAX_ROWS = 4
# On matrix registers: queries of a tile, and the steps that registers may have, the best first; half of them pay from
# so many keys on.
_TILED_QUERIES = 32
_TILE_STEPS = (16, 8)
_KEYS_OF_HALF = 64


@dataclass(frozen=True)
class AttentionShape:
    """Query [batch, queries, heads, depth], key [batch, keys, heads, depth], value [batch, keys, heads, width].

    causal : None, or by how much the last key that a query sees is ahead of the query's index.
    """

    batch: Dim
    heads: Dim
    queries: Dim
    keys: Dim
    depth: int
    width: int
    scale: float
    causal: Dim | None

    @property
    def is_static(self) -> bool:
        """Whether all extents are known."""
        return all(isinstance(d, int) for d in (self.batch, self.heads, self.queries, self.keys))

    @classmethod
    def of(cls, call: tvm.ir.Expr, layer: str) -> AttentionShape:
        """The shape of a relax.nn.attention(_bias) call; errors name the layer."""
        query, key, value = (dims_of(a) for a in call.args[:3])
        batch, queries, heads, depth = query
        keys, width = key[1], value[3]
        if not (equal_dims(key, (batch, keys, heads, depth)) and equal_dims(value, (batch, keys, heads, width))):
            raise VerificationError("query, key and value of an attention do not fit", layer=layer,
                                    found=(query, key, value), expected="[batch, sequence, heads, head size]")
        if not (isinstance(depth, int) and isinstance(width, int)):
            raise UnsupportedOperatorError("attention has no kernel for heads of a symbolic size", layer=layer,
                                           found=(depth, width), expected="numbers", hint="fix the dim with dims=")
        attrs = call.attrs
        if attrs.window_size is not None:
            raise UnsupportedOperatorError("attention in a sliding window has no kernel", layer=layer,
                                           hint="write the window as a bias")
        scale = 1.0 / math.sqrt(depth) if attrs.scale is None else float(attrs.scale)
        mask = None if attrs.causal_mask is None else str(attrs.causal_mask)
        causal = {None: None, "TopLeft": 0, "BottomRight": simplified(keys - queries)}[mask]
        return cls(batch, heads, queries, keys, depth, width, scale, causal)


@dataclass(frozen=True)
class _Bias:
    """What is added to the scores: a flat buffer of a tensor of ``shape``, which broadcasts to all scores."""

    view: tirx.Buffer
    shape: tuple[Dim, Dim, Dim, Dim]
    storage: Storage


@dataclass(frozen=True)
class _Operands:
    """The queries, and a head's packed keys and values; what the sums of scores start with (None: 0)."""

    queries: tirx.Buffer
    keys: tirx.Buffer
    values: tirx.Buffer
    starts: tirx.Buffer | None


@dataclass(frozen=True)
class _Levels:
    """INT8: the parameters of query, key and value."""

    query: QParams
    key: QParams
    value: QParams

    @property
    def score_unit(self) -> float:
        """What a product of a query and a key is worth."""
        return float(np.float64(self.query.scale) * self.key.scale)

    @property
    def value_offset(self) -> float:
        """What values have that packed ones lack."""
        return float(np.float64(self.value.scale) * (128 - self.value.zero_point))


@dataclass(frozen=True)
class Attention:
    """Emits an attention kernel's loops.

    rows : queries of a tile; scores, values : the cut of the keys and of the values' width into column blocks;
    parts : units into which the queries of a head are cut.
    tiled : how matrix tiles multiply a tile of queries; None: vectors do. matrix : these tiles inside a task.
    levels : INT8.
    """

    shape: AttentionShape
    unit: Arithmetic
    rows: int
    scores: Columns
    values: Columns
    parts: int
    features: frozenset[str]
    epilogue: Epilogue
    tiled: Schedule | None = None
    matrix: MatrixUnit | None = None
    levels: _Levels | None = None

    @property
    def score_scale(self) -> float:
        """What the sum of products of a score is multiplied with."""
        return self.shape.scale * (self.levels.score_unit if self.levels else 1.0)

    @property
    def pitch(self) -> Dim:
        """Elements of a row of scores, whole vectors."""
        return ceil_div(self.shape.keys, self.unit.lanes) * self.unit.lanes

    @property
    def key_steps(self) -> int:
        return -(-self.shape.depth // self.unit.depth)

    @property
    def value_steps(self) -> Dim:
        return ceil_div(self.shape.keys, self.unit.depth)

    def emit(self, sources: Sequence[tirx.Buffer], bias: _Bias | None, threads: int) -> None:
        """Emit the parallel loop over heads; ``sources`` are query, key and value."""
        shape, unit = self.shape, self.unit
        units = shape.batch * shape.heads * self.parts
        tasks = min(threads, self.epilogue.request.typically(units))
        tiles = ceil_div(shape.queries, self.rows)
        with T.parallel(tasks) as task:
            named("task", task)
            sizes = (self.key_steps * self.scores.count, self.value_steps * self.values.count)
            keys, values = (named(name, T.alloc_buffer((size * unit.panel,), unit.weight))
                            for name, size in zip(("keys", "values"), sizes, strict=True))
            has_starts = self.levels is not None and self.levels.query.zero_point > 0
            starts = T.alloc_buffer((self.scores.count * unit.lanes,), "int32") if has_starts else None
            with (tiles_at_work(unit, self.tiled) as matrix,
                  span("item", task * units // tasks, (task + 1) * units // tasks) as item):
                part, head = item % self.parts, bind("head", item // self.parts)
                self._emit_pack(sources, head, keys, values, starts)
                operands = _Operands(sources[0], keys, values, starts)
                replace(self, matrix=matrix)._emit_queries(
                    (part * tiles // self.parts, (part + 1) * tiles // self.parts),
                    lambda emitter, tiles: emitter._emit_tiles(operands, bias, head, tiles))

    def _emit_queries(self, tiles: tuple[Index, Index],
                      body: Callable[[Attention, tuple[Index, Index]], None]) -> None:
        """Emit ``body(emitter, tiles)``, by single queries where running tells that there are fewer than in a tile."""
        queries, rows = self.shape.queries, self.rows
        if isinstance(queries, int) or rows == 1:
            body(self, tiles)
            return
        with T.If(queries >= rows):
            with T.Then():
                body(self, tiles)
            with T.Else():
                body(replace(self, rows=1), (tiles[0] * rows, T.min(tiles[1] * rows, queries)))

    def _emit_tiles(self, operands: _Operands, bias: _Bias | None, head: Index, tiles: tuple[Index, Index]) -> None:
        """Emit the loop over tiles of queries."""
        with span("tile", *tiles) as tile:
            query = bind("query", T.min(tile * self.rows, self.shape.queries - self.rows))
            scores = named("scores", T.alloc_buffer((self.rows * self.pitch,), "float32"))
            self._emit_scores(operands, scores, head, query, bias)
            factors = named("factors", T.alloc_buffer((self.rows,), "float32")) if self.levels else None
            probabilities = self._emit_softmax(scores, factors)
            self._emit_values(probabilities, operands.values, head, query, factors)

    def _origin(self, head: Index, sequence: Dim, size: int) -> Index:
        """Where a head of q, k or v starts; ``head`` counts through the batch."""
        heads = self.shape.heads
        return head // heads * (sequence * heads * size) + head % heads * size

    def _emit_pack(self, sources: Sequence[tirx.Buffer], head: Index, keys: tirx.Buffer, values: tirx.Buffer,
                   starts: tirx.Buffer | None) -> None:
        shape = self.shape
        key = Matrix(sources[1], bind("key_origin", self._origin(head, shape.keys, shape.depth)),
                     shape.heads * shape.depth, shape.keys, shape.depth)
        value = Matrix(sources[2], bind("value_origin", self._origin(head, shape.keys, shape.width)),
                       shape.heads * shape.width, shape.keys, shape.width)
        self._emit_panels(self.scores, self.key_steps, keys, key,
                          lambda unit, matrix, column, panel: self._emit_pack_keys(matrix, column, panel, starts))
        self._emit_panels(self.values, self.value_steps, values, value, emit_pack)

    def _emit_pack_keys(self, keys: Matrix, column: Index, panel: Panel, starts: tirx.Buffer | None) -> None:
        """Pack keys; ``starts`` gets what the sums of their scores begin with, which takes the queries' zero point
        away."""
        if starts is None or self.levels is None:
            emit_pack_transposed(self.unit, keys, column, panel)
            return
        emit_pack_transposed(self.unit, keys, column, panel, (starts, column))
        factor = splat(-self.levels.query.zero_point, self.unit.lanes, "int32")
        for j in range(panel.vectors):
            at = column + j * self.unit.lanes
            store(starts, at, load(starts, at, self.unit.lanes) * factor, self.unit.lanes)

    def _emit_panels(self, columns: Columns, steps: Dim, packed: tirx.Buffer, matrix: Matrix,
                     pack: Callable[[Arithmetic, Matrix, Index, Panel], None]) -> None:
        """Pack all column blocks of a head's keys or values."""
        with T.serial(columns.blocks) as block:
            named("block", block)
            first = bind("first", columns.offset(block, steps * self.unit.panel))
            column = bind("column", columns.offset(block, self.unit.lanes))

            def body(vectors: int, last: Index) -> None:
                pack(self.unit, matrix, column, Panel(packed, first, vectors, last))

            by_kind(columns, block, self.unit.lanes, body)

    def _emit_scores(self, operands: _Operands, scores: tirx.Buffer, head: Index, query: Index,
                     bias: _Bias | None) -> None:
        """Scores of a tile of queries: scaled, biased, -inf where there is no key."""
        unit, columns, left = self.unit, self.scores, self._queries(operands.queries, head, query)
        with T.serial(columns.blocks) as block:
            named("block", block)
            first = bind("first", columns.offset(block, self.key_steps * unit.panel))

            def body(vectors: int, last: Index) -> None:
                def finish(found: Sequence[Accumulated]) -> None:
                    for acc, i, j in found:
                        valid = last if j == vectors - 1 else unit.lanes
                        key = columns.offset(block, unit.lanes) + j * unit.lanes
                        value = self._score(acc, head, query + i, key, valid, bias)
                        store(scores, i * self.pitch + key, value, unit.lanes)

                initial = None if operands.starts is None else (operands.starts, columns.offset(block, unit.lanes))
                self._emit_product(left, Block(vectors, operands.keys, first, initial=initial), Finish(finish))

            by_kind(columns, block, unit.lanes, body)

    def _emit_product(self, left: Left, block: Block, finish: Finish) -> None:
        """Multiply the tile's rows, counted from 0, by a column block, and finish every vector of the result."""
        if self.matrix is not None:
            self.matrix.emit(left, 0, block, finish)
            return
        acc = emit_tile(self.unit, left, left.bases(0, self.rows, 0), block)
        for i, j in np.ndindex(self.rows, block.vectors):
            finish.store([Accumulated(load(acc[i][j], 0, self.unit.lanes), i, j)])

    def _queries(self, source: tirx.Buffer, head: Index, query: Index) -> Left:
        """The tile's queries: in place, or copied where a step would read past a query's end."""
        shape, unit = self.shape, self.unit
        origin, distance = self._origin(head, shape.queries, shape.depth), shape.heads * shape.depth
        reduction = Reduction((), shape.depth)
        if self.matrix is not None:
            return Left.by_row(source, lambda row, group: origin + (query + row) * distance, reduction, distance)
        bases = [bind(f"base_{i}", origin + (query + i) * distance) for i in range(self.rows)]
        if shape.depth % unit.depth == 0:
            return Left(source, lambda row, count, group: bases, reduction)
        pitch = self.key_steps * unit.depth
        copied = named("queries", T.alloc_buffer((self.rows * pitch,), unit.operand))
        for i, base in enumerate(bases):
            fill_run(copied, i * pitch + shape.depth, 0, pitch - shape.depth)
            copy_run(copied, i * pitch, source, base, shape.depth)
        starts = [tirx.const(i * pitch, "int32") for i in range(self.rows)]
        return Left(copied, lambda row, count, group: starts, reduction)

    def _score(self, acc: Vector, head: Index, query: Index, key: Index, valid: Index,
               bias: _Bias | None) -> Vector:
        lanes, shape, scale = self.unit.lanes, self.shape, splat(self.score_scale, self.unit.lanes)
        acc = T.Cast(vector_type("float32", lanes), acc) if self.levels else acc
        score = acc * scale
        if bias is not None:
            row = row_index(bias.shape[:3], (shape.batch, shape.heads, shape.queries), head * shape.queries + query)
            if is_one(bias.shape[3]):
                added = splat(load_float(bias.view, row, 1, 1, bias.storage), lanes)
            else:
                added = load_float(bias.view, row * shape.keys + key, lanes, valid, bias.storage)
            score = fma(acc, scale, added)
        nothing = splat(-math.inf, lanes)
        if not (isinstance(valid, int) and valid == lanes):
            score = T.Select(T.ramp(0, 1, lanes) < splat(valid, lanes, "int32"), score, nothing)
        if shape.causal is not None and not shape.is_static:
            ahead = bind("ahead", T.Cast("int32", query + shape.causal - key))
            score = T.Select(T.ramp(0, 1, lanes) <= splat(ahead, lanes), score, nothing)
        elif shape.causal is not None:
            seen = splat(query + shape.causal, lanes) if shape.causal else splat(query, lanes)
            score = T.Select(T.ramp(key, 1, lanes) <= seen, score, nothing)
        return score

    def _emit_softmax(self, scores: tirx.Buffer, factors: tirx.Buffer | None) -> tirx.Buffer:
        """Softmax of every row of ``scores``; the probabilities as the multiply-add reads them. In INT8 these are
        levels, and ``factors`` gets what the products of a row with values are worth."""
        operand = self.unit.operand
        narrow = operand != "float32"
        result = named("probabilities", T.alloc_buffer((self.rows * self.pitch,), operand)) if narrow else scores
        if self.matrix is not None:
            with T.serial(self.rows // _SOFTMAX_ROWS) as some:
                first = named("some", some) * _SOFTMAX_ROWS
                self._emit_softmax_rows(scores, result, [first + r for r in range(_SOFTMAX_ROWS)], factors)
            return result
        for rows in runs(range(self.rows), _SOFTMAX_ROWS):
            self._emit_softmax_rows(scores, result, list(rows), factors)
        return result

    def _emit_softmax_rows(self, scores: tirx.Buffer, result: tirx.Buffer, rows: list[Index],
                           factors: tirx.Buffer | None) -> None:
        """Softmax of ``rows``, side by side, so that one row's latencies hide behind the others."""
        starts = [row * self.pitch for row in rows]
        lanes, vectors = self.unit.lanes, ceil_div(self.shape.keys, self.unit.lanes)
        states = [named(f"state_{r}", T.alloc_buffer((lanes,), "float32")) for r in range(len(starts))]
        for state, at in zip(states, starts, strict=True):
            store(state, 0, load(scores, at, lanes), lanes)
        with span("i", 1, vectors) as i:
            for state, at in zip(states, starts, strict=True):
                score = T.bind(load(scores, at + i * lanes, lanes))
                store(state, 0, larger(score, load(state, 0, lanes)), lanes)
        highest = [bound(splat(reduced(T.bind(load(state, 0, lanes)), larger), lanes)) for state in states]
        for state in states:
            store(state, 0, splat(0.0, lanes), lanes)
        with T.serial(vectors) as i:
            named("i", i)
            below = [load(scores, at + i * lanes, lanes) - top for at, top in zip(starts, highest, strict=True)]
            powers = exp_of_negative(joined(below))
            if self.levels is not None:
                levels = splat(float(PROBABILITY_LEVELS), lanes * len(rows))
                powers = intrinsic("llvm.rint", powers * levels)
            for state, at, power in zip(states, starts, map(bound, apart(powers, len(rows))), strict=True):
                if self.levels is not None:
                    store(result, at + i * lanes, to_levels(power, 0), lanes)
                else:
                    store(scores, at + i * lanes, power, lanes)
                store(state, 0, load(state, 0, lanes) + power, lanes)
        totals = [reduced(T.bind(load(state, 0, lanes)), lambda a, b: a + b) for state in states]
        if self.levels is not None:
            for row, total in zip(rows, totals, strict=True):
                T.buffer_store(factors, tirx.const(self.levels.value.scale, "float32") / total, [row])
            return
        inverses = [bound(splat(tirx.const(1.0, "float32") / total, lanes)) for total in totals]
        with T.serial(vectors) as i:
            named("i", i)
            for at, factor in zip(starts, inverses, strict=True):
                probability = load(scores, at + i * lanes, lanes) * factor
                if result.dtype != scores.dtype:
                    probability = encode(probability, Storage(self.unit.precision.storage_dtype), self.features)
                store(result, at + i * lanes, probability, lanes)

    def _emit_values(self, probabilities: tirx.Buffer, values: tirx.Buffer, head: Index, query: Index,
                     factors: tirx.Buffer | None) -> None:
        """Probabilities times values, through the epilogue."""
        shape, unit, columns = self.shape, self.unit, self.values
        pitch = self.pitch
        left = Left.by_row(probabilities, lambda row, group: tirx.const(row * pitch, "int32")
                           if isinstance(pitch, int) else row * pitch, Reduction((), shape.keys), pitch)
        with T.serial(columns.blocks) as block:
            named("block", block)
            first = bind("first", columns.offset(block, self.value_steps * unit.panel))

            def body(vectors: int, last: Index) -> None:
                def finish(found: Sequence[Accumulated]) -> None:
                    for acc, i, j in found:
                        row = (head // shape.heads * shape.queries + query + i) * shape.heads + head % shape.heads
                        valid = last if j == vectors - 1 else unit.lanes
                        column = columns.offset(block, unit.lanes) + j * unit.lanes
                        if self.levels is not None and factors is not None:
                            acc = fma(T.Cast(vector_type("float32", unit.lanes), acc), splat(factors[i], unit.lanes),
                                      splat(self.levels.value_offset, unit.lanes))
                        self.epilogue.emit(acc, Position(row, column), valid)

                self._emit_product(left, Block(vectors, values, first), Finish(finish))

            by_kind(columns, block, unit.lanes, body)


def reduced(vector: Vector, combine: Callable[[Vector, Vector], Vector]) -> Vector:
    """All lanes of a vector combined into a scalar, by halving."""
    lanes = int(tvm.runtime.DataType(str(vector.ty.dtype)).lanes)
    while lanes > 1:
        lanes //= 2
        vector = bound(vector)
        low, high = (T.Shuffle([vector], list(range(first, first + lanes))) for first in (0, lanes))
        vector = combine(low, high)
    return bound(vector)


def _on_tiles(emitter: Attention, capabilities: Capabilities, split: int) -> Attention:
    """The emitter on matrix tiles where the target has them and both products are whole tiles."""
    shape, unit = emitter.shape, tile_arithmetic(emitter.unit.precision, capabilities)
    if unit is None or not all(isinstance(n, int) for n in (shape.queries, shape.keys)):
        return emitter
    whole = [n for n in _TILE_STEPS if not any(size % (n * unit.depth) for size in (shape.depth, shape.keys))]
    if shape.queries < _TILED_QUERIES or not whole or (whole[0] < max(_TILE_STEPS) and shape.keys < _KEYS_OF_HALF):
        return emitter
    keys, width = (Columns.cut(c, 2, unit.lanes) for c in (shape.keys, shape.width))
    parts = min(split, ceil_div(shape.queries, _TILED_QUERIES))
    block = Columns.cut(2 * unit.lanes, 2, unit.lanes)
    tiled = Schedule(_TILED_QUERIES, block, 1, 1, tiles=Tiles(_TILED_QUERIES // 2, 2, whole[0]))
    return replace(emitter, unit=unit, rows=tiled.rows, scores=keys, values=width, parts=parts, tiled=tiled)


def build_attention(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of an attention group with its epilogue."""
    call = request.group.anchor.value
    shape = AttentionShape.of(call, request.group.name)
    unit = arithmetic(request.precision, capabilities)
    product = Product(shape.queries, shape.keys, -(-shape.depth // unit.depth), typical=request.typical)
    schedule, schedules = request.pick(ranked(product, unit, capabilities, 1))
    widest = max(1, (capabilities.registers - 1) // (schedule.rows + 1))
    values = Columns.cut(shape.width, min(widest, -(-shape.width // unit.lanes)), unit.lanes)
    items = request.typically(shape.batch * shape.heads)
    split = next(s for s in range(1, threads + 1) if items * s % threads == 0 or items >= 8 * threads)
    parts = min(split, -(-request.typically(shape.queries) // schedule.rows))
    epilogue = Epilogue(request, capabilities, request.group.anchor)
    emitter = Attention(shape, unit, schedule.rows, schedule.columns, values, parts, capabilities.features, epilogue,
                        levels=_levels_of(request) if request.precision is Precision.INT8 else None)
    emitter = _on_tiles(emitter, capabilities, split)
    bias_argument = call.args[3] if len(call.args) > 3 else None
    constants: tuple[np.ndarray, ...] = ()
    if isinstance(bias_argument, Constant):
        constants = (np.ascontiguousarray(constant_value(bias_argument), dtype=np.float32),)

    def emit(parameters: Parameters) -> None:
        names = ("query", "key", "value")
        sources = [named(n, flat_view(parameters.inputs[input_index(request, a)]))
                   for n, a in zip(names, call.args[:3], strict=True)]
        if request.precision is Precision.BF16 and BFLOAT16 not in request.outputs:
            import_conversions(capabilities.features)
        emitter.emit(sources, _bias(request, bias_argument, parameters), threads)

    macs = shape.batch * shape.heads * shape.queries * shape.keys * (shape.depth + shape.width)
    kernel = build_kernel(request, emitter.unit, epilogue, constants, macs, emit)
    return kernel if emitter.tiled else replace(kernel, schedules=schedules)


def _levels_of(request: KernelRequest) -> _Levels:
    query, key, value = (request.inputs[input_index(request, a)].qparams for a in request.group.anchor.value.args[:3])
    if query is None or key is None or value is None:
        raise PlanError("INT8 operands must be stored in uint8", layer=request.group.name, found=request.inputs[:3])
    return _Levels(query, key, value)


def _bias(request: KernelRequest, argument: tvm.ir.Expr | None, parameters: Parameters) -> _Bias | None:
    """The view of an attention's bias: a parameter, or the kernel's first constant."""
    if argument is None:
        return None
    shape = (1,) * (4 - len(dims_of(argument))) + dims_of(argument)
    buffer, storage = parameters.constants[0] if isinstance(argument, Constant) else None, FLOAT32
    if buffer is None:
        index = input_index(request, argument)
        buffer, storage = parameters.inputs[index], request.inputs[index]
    return _Bias(named("bias", flat_view(buffer)), (shape[0], shape[1], shape[2], shape[3]), storage)
