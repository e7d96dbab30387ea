"""The kernel of the recurrent layers ``narrowcast.lstm``, ``gru`` and ``rnn``.

Directions and tiles of samples are independent tasks; the samples of a tile share every read of the weights. Threads
share the tasks, or the products of the only one. A task goes through the sequence in chunks of steps: first the
products of the chunk's inputs, which are independent, then step by step the products with the states. Neither needs the
number of steps or of samples when the kernel is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, simplified
from ...errors import PlanError
from ...ir import Constant, Expr, constant_value, dims_of, shape_of
from ...operators.quantization import STATE_ZERO_POINT, quantize_matrices
from ...operators.recurrent import Activation, Recurrence, operands_of, recurrence_of
from ...precision import Precision
from ..target import Capabilities
from .isa import Arithmetic, arithmetic, bind, copy_run, fill_run
from .kernel import Kernel, KernelRequest, declare_parameters
from .loops import Loops, task_loop
from .packing import as_operand
from .recurrent_cells import Cell, States, slots_of
from .recurrent_packing import Packing
from .recurrent_products import Factors, Matrix, Operands, Row, Vectors, emit_products
from .signature import input_index
from .vector_math import Vector, splat
from .vector_memory import Index, flat_view, import_conversions, store

# Steps whose inputs are multiplied together.
_CHUNK = 16


@dataclass(frozen=True)
class _Sizes:
    """Extents of a layer.

    rows : rows of a product whose sums fit into the registers. tile : samples that share a read of the weights.
    """

    steps: Dim
    batch: Dim
    inputs: int
    hidden: int
    state: int
    lanes: int
    rows: int
    tile: int

    @property
    def blocks(self) -> int:
        """Vectors that hold the hidden units."""
        return -(-self.hidden // self.lanes)

    @property
    def state_width(self) -> int:
        """The hidden state, padded to whole vectors."""
        return -(-self.state // self.lanes) * self.lanes

    @property
    def chunk(self) -> int:
        return max(1, min(_CHUNK, self.steps)) if isinstance(self.steps, int) else _CHUNK


@dataclass(frozen=True)
class _Layer:
    """What the kernel reads and writes: flat buffers by the operands' names, packed operands, outputs.

    loops : over tasks and, where there is only one, over the blocks of its products. features : of the target.
    """

    form: Recurrence
    sizes: _Sizes
    tensors: Mapping[str, tirx.Buffer]
    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, Vectors]
    outputs: tuple[tirx.Buffer, ...]
    loops: Loops
    features: frozenset[str]


@dataclass(frozen=True)
class _Task:
    """One direction of ``samples`` consecutive samples.

    length : the steps that are computed, of all or of the only sample. cell : the arithmetic.
    """

    layer: _Layer
    cell: Cell
    direction: Index
    first: Index
    samples: int
    length: Index

    def time(self, step: Index) -> Index:
        """Which step of the sequence is the ``step``-th that is computed."""
        form, backward = self.layer.form, self.length - 1 - step
        if form.directions == 1:
            return backward if form.reverse else step
        return T.if_then_else(self.direction == 0, step, backward)


def build_recurrent(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a group that is one recurrent layer: the sequence in the precision's storage, float32 beside it and
    out. In FP32 weights may be constants or tensors; else w, r and a projection are constants."""
    call = request.group.bindings[0].value
    form, operands = recurrence_of(call), operands_of(call)
    loops = Loops.of(request, capabilities, threads)
    multiply = arithmetic(request.precision, capabilities)
    kinds = {"w": multiply, "r": multiply, "projection": arithmetic(Precision.FP32, capabilities)}
    sizes = _sizes_of(form, operands, loops, _rows_together(form, multiply, capabilities))
    packings = {n: p for n, p in _packings(form, sizes, multiply.depth).items() if n in operands}
    arrays = _constants(request, operands, packings, kinds)
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, list(arrays.values()))
        import_conversions(capabilities.features)
        tensors = {n: flat_view(c) for n, c in zip(arrays, parameters.constants, strict=True)}
        for name in operands.keys() - arrays.keys():
            tensors[name] = flat_view(parameters.inputs[input_index(request, operands[name])])
        packed = {n: tensors[n] if n in arrays else p.emit_pack(tensors[n], loops) for n, p in packings.items()}
        matrices = {n: Matrix(packings[n], packed[n], kind, *(
            Vectors(packings[n].by_row, tensors[part]) if part in arrays else None for part in _parts_of(n)))
            for n, kind in kinds.items() if n in packings}
        vectors = {n: Vectors(p, packed[n]) for n, p in packings.items() if n not in kinds}
        outputs = tuple(map(flat_view, parameters.outputs))
        with multiply.helpers():
            _emit(_Layer(form, sizes, tensors, matrices, vectors, outputs, loops, capabilities.features))
    return Kernel(builder.get(), tuple(arrays.values()), request.typically(_macs(form, sizes)),
                  tuple(request.group.symbols))


def _constants(request: KernelRequest, operands: Mapping[str, Expr], packings: Mapping[str, Packing],
               kinds: Mapping[str, Arithmetic]) -> dict[str, np.ndarray]:
    """The constant operands as the kernel takes them, and where they are levels their ``starts`` and ``units``."""
    found: dict[str, np.ndarray] = {}
    for name, operand in operands.items():
        if not isinstance(operand, Constant):
            continue
        values = constant_value(operand)
        if name not in packings:
            found[name] = np.ascontiguousarray(values)
        elif name not in kinds:
            found[name] = packings[name].pack_vectors(values)
        elif kinds[name].precision is not Precision.INT8:
            found[name] = packings[name].pack(as_operand(values, kinds[name].precision), kinds[name])
        else:
            found |= _levels(request, name, values, packings[name], kinds[name])
    return found


def _levels(request: KernelRequest, name: str, values: np.ndarray, packing: Packing,
            multiply: Arithmetic) -> dict[str, np.ndarray]:
    """An INT8 operand. The scale of the sequence is part of the units; that of a state is known at every step."""
    levels, units = quantize_matrices(values, per_channel=request.per_channel)
    zero_point = STATE_ZERO_POINT
    if name == "w":
        qparams = request.inputs[request.group.exact_inputs[0]].qparams
        if qparams is None:
            raise PlanError("an INT8 operand must be stored in uint8", layer=request.group.name)
        zero_point, units = qparams.zero_point, units * np.float32(qparams.scale)
    starts = -zero_point * levels.astype(np.int32).sum(axis=-1, dtype=np.int32)
    vectors = (packing.by_row.pack_vectors(numbers) for numbers in (starts, units))
    return {name: packing.pack(levels, multiply), **dict(zip(_parts_of(name), vectors, strict=True))}


def _parts_of(name: str) -> tuple[str, str]:
    """The names of an INT8 operand's ``starts`` and ``units``."""
    return f"{name}.starts", f"{name}.units"


def _rows_together(form: Recurrence, multiply: Arithmetic, capabilities: Capabilities) -> int:
    """Rows of a product whose sums, for all gates, fit into the registers beside what is multiplied."""
    most = max(1, min(8, multiply.lanes // form.gates))
    fitting = (n for n in range(1, most + 1) if multiply.registers(n, form.gates) <= capabilities.registers)
    return max(fitting, default=1)


def _sizes_of(form: Recurrence, operands: Mapping[str, Expr], loops: Loops, rows: int) -> _Sizes:
    steps, batch, _ = dims_of(operands["x"])
    _, outputs, inputs = shape_of(operands["w"])
    lanes, usual = loops.vector_bytes // 4, loops.typically(batch)
    own = max(1, min(usual, -(-usual * form.directions // loops.threads)))  # samples for each thread, in equal tiles
    tile = 1 if "lengths" in operands else -(-own // -(-own // rows))
    return _Sizes(steps, batch, inputs, outputs // form.gates, shape_of(operands["r"])[2], lanes, rows, tile)


def _packings(form: Recurrence, s: _Sizes, step: int) -> dict[str, Packing]:
    """How every packed operand is laid out; biases are packed as the sums' first values, one vector a slot.

    step : elements that a multiply-add with w or r takes.
    """
    gates = [g * s.hidden for g in range(form.gates)]
    biases: list[tuple[int, ...]] = [(g, form.gates * s.hidden + g) for g in gates]
    if slots_of(form) > form.gates:
        biases[2:] = [(biases[2][0],), (biases[2][1],)]
    rows, lanes, directions = form.gates * s.hidden, s.lanes, form.directions
    single = tuple((g,) for g in gates)
    return {
        "w": Packing(directions, single, s.hidden, rows, s.inputs, lanes, step),
        "r": Packing(directions, single, s.hidden, rows, s.state, lanes, step),
        "b": Packing(directions, tuple(biases), s.hidden, 2 * rows, 1, lanes),
        "peepholes": Packing(directions, single[:3], s.hidden, 3 * s.hidden, 1, lanes),
        "projection": Packing(directions, ((0,),), s.state, s.state, s.hidden, lanes),
    }


def _macs(form: Recurrence, s: _Sizes) -> Dim:
    projection = s.state * s.hidden if s.state != s.hidden else 0
    each = form.gates * s.hidden * (s.inputs + s.state) + projection
    return s.steps * s.batch * (form.directions * each)


def _emit(layer: _Layer) -> None:
    s, form = layer.sizes, layer.form
    whole, rest = (s.batch, 0) if s.tile == 1 else (simplified(s.batch // s.tile), simplified(s.batch % s.tile))
    # A rest that is known is one smaller tile; of one that is not every sample is a tile.
    tail = rest if isinstance(rest, int) else 1
    tiles = whole + (min(rest, 1) if isinstance(rest, int) else rest)
    tasks, work = form.directions * tiles, simplified(_macs(form, s) // s.lanes)
    single = replace(layer.loops, threads=1)
    outer, inner = (single, layer.loops) if layer.loops.typically(tasks) == 1 else (layer.loops, single)
    layer = replace(layer, loops=inner)
    with task_loop(tasks, work, outer) as task:
        each = max(tiles, 1) if isinstance(tiles, int) else tiles
        direction, tile = T.floordiv(task, each), bind("tile", T.floormod(task, each))
        if tail == 0:
            _emit_directions(layer, direction, tile * s.tile, s.tile)
        else:
            with T.If(tile < whole):
                with T.Then():
                    _emit_directions(layer, direction, tile * s.tile, s.tile)
                with T.Else():
                    _emit_directions(layer, direction, whole * s.tile + (tile - whole), tail)


def _emit_directions(layer: _Layer, direction: Index, first: Index, samples: int) -> None:
    """A task; directions share their code unless their activations differ."""
    form = layer.form
    own = [form.activations_of(d) for d in range(form.directions)]
    if len(set(own)) == 1:
        _emit_task(layer, _cell(layer, own[0]), direction, first, samples)
        return
    for d, activations in enumerate(own):
        with T.If(direction == d), T.Then():
            _emit_task(layer, _cell(layer, activations), direction, first, samples)


def _cell(layer: _Layer, activations: tuple[Activation, ...]) -> Cell:
    s = layer.sizes
    return Cell(layer.form, activations, layer.matrices, layer.vectors, s.blocks, s.lanes, layer.loops)


def _emit_task(layer: _Layer, cell: Cell, direction: Index, first: Index, samples: int) -> None:
    s = layer.sizes
    length: Index = s.steps
    if "lengths" in layer.tensors:
        given = T.Cast("int64", layer.tensors["lengths"][first])
        length = bind("length", T.max(T.min(given, T.Cast("int64", s.steps)), T.int64(0)))
    task = _Task(layer, cell, direction, first, samples, length)
    states = _initial_states(task)
    together = max(1, min(s.rows // samples, s.chunk))
    sums = T.alloc_buffer((-(-s.chunk // together) * together * samples * cell.pitch,), "float32")
    with T.serial(-(-length // s.chunk)) as chunk:
        begin = chunk * s.chunk
        count = bind("count", T.min(s.chunk, length - begin))
        _input_products(task, sums, begin, count, together)
        with T.serial(count) as step:
            cell.step(direction, states, sums, step * (samples * cell.pitch))
            _write(task, 0, task.time(begin + step) * layer.form.directions + direction, states.hidden, s.state)
    if "lengths" in layer.tensors:
        with T.serial(s.steps - length) as step:
            row = (length + step) * layer.form.directions + direction
            fill_run(layer.outputs[0], (row * s.batch + first) * s.state, 0, s.state)
    _write(task, 1, direction, states.hidden, s.state)
    if layer.form.cell == "lstm":
        _write(task, 2, direction, states.cell, s.hidden)


def _initial_states(task: _Task) -> States:
    """The tile's states before the first step; 0 where none is given or the only sample has no step."""
    layer, s, lanes = task.layer, task.layer.sizes, task.layer.sizes.lanes
    widths = {"h0": s.state_width, "c0": s.blocks * lanes}
    buffers = {name: T.alloc_buffer((task.samples * width,), "float32") for name, width in widths.items()}
    for name, width in widths.items():
        fill_run(buffers[name], 0, 0, task.samples * width)
        if name in layer.tensors and "lengths" in layer.tensors:
            with T.If(task.length > 0), T.Then():
                _read(task, name, buffers[name], width)
        elif name in layer.tensors:
            _read(task, name, buffers[name], width)
    scratch = T.alloc_buffer((task.samples * widths["c0"],), "float32")
    operands = Operands.allocate(layer.matrices["r"], task.samples, layer.features)
    return States(task.samples, buffers["h0"], buffers["c0"], scratch, operands)


def _read(task: _Task, name: str, state: tirx.Buffer, width: int) -> None:
    """Copy the tile's first states [directions, batch, units] to rows of ``width``."""
    s = task.layer.sizes
    extent = s.state if name == "h0" else s.hidden
    for i in range(task.samples):
        source = (task.direction * s.batch + task.first + i) * extent
        copy_run(state, i * width, task.layer.tensors[name], source, extent)


def _input_products(task: _Task, sums: tirx.Buffer, begin: Index, count: Index, together: int) -> None:
    """The sums' first values for ``count`` steps: biases and products of the inputs, of ``together`` steps at once.

    The last ones go beyond the chunk where its steps do not divide; they read its last step again.
    """
    layer, cell, s = task.layer, task.cell, task.layer.sizes
    biases, pairs = layer.vectors.get("b"), [(g, g) for g in range(layer.form.gates)]

    def initial(slot: int, block: Index) -> Vector:
        return splat(0.0, s.lanes) if biases is None else biases.at(task.direction, block, slot)

    work = s.chunk * task.samples * layer.matrices["w"].packing.vectors
    with task_loop(s.blocks, work, layer.loops) as block, T.serial(-(-count // together)) as group:
        rows = []
        for step in (group * together + j for j in range(together)):
            time = task.time(begin + (step if together == 1 else T.min(step, count - 1)))
            for i in range(task.samples):
                source = bind("row", (time * s.batch + task.first + i) * s.inputs)
                factors = Factors(layer.tensors["x"], source)
                rows.append(Row(factors, sums, (step * task.samples + i) * cell.pitch, cell.slots))
        emit_products(rows, layer.matrices["w"], task.direction, block, pairs, lambda row, slot: initial(slot, block))
        for slot in range(layer.form.gates, cell.slots):
            for row in rows:
                store(sums, row.at + (block * cell.slots + slot) * s.lanes, initial(slot, block))


def _write(task: _Task, output: int, row: Index, state: tirx.Buffer, extent: int) -> None:
    """Copy the tile's states, padded to vectors, to an output [rows, batch, extent]."""
    s = task.layer.sizes
    width = -(-extent // s.lanes) * s.lanes
    for i in range(task.samples):
        copy_run(task.layer.outputs[output], (row * s.batch + task.first + i) * extent, state, i * width, extent)
