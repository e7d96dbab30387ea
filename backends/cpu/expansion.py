"""Two groups as one kernel: a pointwise convolution and the depthwise one that alone reads its result.

A unit of the depthwise kernel computes the channels and rows that it needs into its widened input, which stays in the
cache of its core. The tensor between, the largest of an inverted residual block, is never written to memory, nor read
by another core. Rows that two units need are computed twice. Results are those of the two kernels on vectors, to the
bit: what is between is rounded to the storage that the plan gives it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...ir import constant_value, uses_of
from ..target import Capabilities
from .convolution import Geometry
from .depthwise import Blocks, Depthwise, Unit, choose_blocks, copied_blocks, prepare_depthwise
from .epilogue import Epilogue, Position
from .gemm import dequantize, prepare, ways_to_multiply, with_slack
from .isa import Arithmetic, arithmetic, bind, named
from .kernel import ChainRequest, Kernel, Parameters, buffer_dtype, declare, output_buffers
from .left_rows import MatrixRows
from .microkernel import emit_tile
from .nothing import computes_nothing
from .operands import Block, Left, Reduction
from .packing import pack_weights
from .signature import input_index
from .tiling import LAUNCH_CYCLES, SHARED_BYTES, Columns, Product, tile_cycles
from .vector_memory import Index, flat_view, load, store

_MOST_PIXELS = 14
# Vectors of channels whose accumulators leave room for enough pixels, on every target.
_MOST_VECTORS = 3


def links(chain: ChainRequest, capabilities: Capabilities) -> bool:
    """Whether one kernel can compute both groups of a chain: the second's data, not a residual, is what the first
    computes."""
    first, second = chain.first, chain.second
    if (first.group.kind, second.group.kind) != ("conv", "depthwise") or len(first.group.parameters) != 1:
        return False
    if len(first.outputs) != 1 or computes_nothing(first) or computes_nothing(second):
        return False
    call, unit = second.group.anchor.value, arithmetic(first.precision, capabilities)
    link = chain.link
    pointwise, depthwise = (Geometry.of(r.group.anchor.value, r.group.name) for r in (first, second))
    return (link == input_index(second, call.args[0]) and second.inputs[link] == first.outputs[0]
            and len(uses_of(second.group.function)[call.args[0]]) == 1
            and pointwise.is_pointwise and depthwise.is_planar and all(isinstance(d, int) for d in depthwise.size)
            and unit.lanes == capabilities.vector_bits // 32 and not unit.block
            and pointwise.channels % unit.depth == 0
            and {s.name for s in first.group.symbols} <= {s.name for s in second.group.symbols})


def on_vectors(capabilities: Capabilities) -> Capabilities:
    """A target without matrix registers: its kernel of the first group rounds as the kernel of both does."""
    return replace(capabilities, features=frozenset(f for f in capabilities.features if not f.startswith("amx")))


def gains(chain: ChainRequest, capabilities: Capabilities, threads: int) -> bool:
    """Whether one kernel takes less time than two, by the models of both kernels: against the time that the tensor
    between takes to other cores or memory, and a launch, stand rows that are computed twice and narrower blocks."""
    first, second = chain.first, chain.second
    unit = arithmetic(first.precision, capabilities)
    inner = Geometry.of(first.group.anchor.value, first.group.name)
    rows = MatrixRows(inner.positions, inner.channels)
    alone = next(ways_to_multiply(first, capabilities, threads, rows, inner.outputs)).cycles
    _, following = copied_blocks(second, capabilities, threads)
    between = first.typically(inner.positions) * inner.outputs * np.dtype(buffer_dtype(first.outputs[0])).itemsize
    moved = 2 * between / (SHARED_BYTES * threads)
    if threads == 1 and between <= capabilities.l2_bytes / 2:
        moved = 0.0
    _, together = _blocks(chain, unit, capabilities, threads)
    return together < alone + following + moved + (LAUNCH_CYCLES if threads > 1 else 0.0)


def build_expanded(chain: ChainRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a pointwise convolution and a depthwise one that are linked (``links``)."""
    first, second = chain.first, chain.second
    unit, link = arithmetic(first.precision, capabilities), chain.link
    weights = constant_value(first.group.anchor.value.args[1])
    matrix = weights.reshape(len(weights), -1).T
    epilogue, scaling, operand = prepare(first, capabilities, matrix[None, None])
    blocks, _ = _blocks(chain, unit, capabilities, threads)
    packed = pack_weights(operand, Columns.cut(len(weights), blocks.vectors, unit.lanes), unit)
    of_first = (packed, *(with_slack(a, unit.lanes) for a in scaling), *epilogue.constants)
    emitter, of_second = prepare_depthwise(second, capabilities, threads, blocks)
    arrays = (*of_first, *of_second, *emitter.epilogue.constants)
    with IRBuilder() as builder, T.prim_func():
        parameters = declare(second.group.name, chain.input_buffers, arrays, second.group.symbols,
                             output_buffers(second))
        own, others = parameters.constants[:len(of_first)], parameters.constants[len(of_first):]
        epilogue.bind(Parameters((parameters.inputs[link],), own, ()))
        emitter.epilogue.bind(Parameters(parameters.inputs, others, parameters.outputs))
        source = named("x", flat_view(parameters.inputs[link]))
        pixels = _pixels(emitter.geometry.size[2], blocks.vectors, unit, capabilities)
        expansion = _Expansion(emitter, epilogue, unit, source, len(matrix), own[:1 + len(scaling)], pixels)
        with unit.helpers():
            emitter.emit(expansion.emit_line, others[0], others[1:len(of_second)])
    inner = first.typically(Geometry.of(first.group.anchor.value, first.group.name).positions) * matrix.size
    outer = second.typically(emitter.macs)
    return Kernel(builder.get(), arrays, inner + outer, tuple(second.group.symbols), parts=(inner, outer))


def _blocks(chain: ChainRequest, unit: Arithmetic, capabilities: Capabilities, threads: int) -> tuple[Blocks, float]:
    """The depthwise kernel's blocks, and the predicted cycles of the slowest thread."""
    first, second = chain.first, chain.second
    geometry = Geometry.of(second.group.anchor.value, second.group.name).at(second.typically)
    depth, width = Geometry.of(first.group.anchor.value, first.group.name).channels, geometry.size[2]

    def widening(vectors: int) -> float:
        pixels = _pixels(width, vectors, unit, capabilities)
        product = Product(pixels, vectors * unit.lanes, Reduction((), depth).steps(unit))
        cycles = tile_cycles(pixels, vectors, product, unit, capabilities)
        return ceil(width / pixels) / width * cycles / vectors

    return choose_blocks(geometry, unit.lanes, capabilities, threads, widening, width * depth * unit.operand_bytes,
                         _MOST_VECTORS)


@dataclass(frozen=True)
class _Expansion:
    """Emits lines of the tensor between.

    depthwise : what reads them; epilogue : of what is computed.
    source, depth : the data, flat, and the channels of a pixel.
    constants : packed weights in blocks of a unit's vectors, scaling.
    pixels : computed at once.
    """

    depthwise: Depthwise
    epilogue: Epilogue
    arithmetic: Arithmetic
    source: tirx.Buffer
    depth: int
    constants: tuple[tirx.Buffer, ...]
    pixels: int

    def emit_line(self, wide: tirx.Buffer, at: Index, pixel: Index, unit: Unit) -> None:
        """Emit a line of a unit (see ``depthwise.Line``)."""
        width, lanes = self.depthwise.geometry.size[2], self.arithmetic.lanes
        reduction = Reduction((), self.depth)
        left = Left.by_row(self.source, lambda row, group: row * self.depth, reduction, self.depth)
        vectors, area = self.depthwise.blocks.vectors, self.depthwise.area
        first = bind("weights", unit.vector * (reduction.steps(self.arithmetic) * self.arithmetic.panel))
        with T.serial(ceil(width / self.pixels)) as number:
            x = named("pixels", number) * self.pixels
            if width % self.pixels:
                x = T.min(x, width - self.pixels)
            x = bind("x", x)
            row = bind("pixel", pixel + x)
            bases = [bind(f"base_{i}", base) for i, base in enumerate(left.bases(row, self.pixels, 0))]
            acc = emit_tile(self.arithmetic, left, bases, Block(vectors, self.constants[0], first))
            for i, number in np.ndindex(self.pixels, vectors):
                column = (unit.vector + number) * lanes
                value = dequantize(load(acc[i][number], 0, lanes), self.constants[1:], column, lanes)
                valid = unit.valid if number == vectors - 1 else lanes
                (stored,) = self.epilogue.encoded(self.epilogue.apply(value, Position(row + i, column), valid))
                store(wide, at + number * area + (x + i) * lanes, self.depthwise.widened(stored), lanes)


def _pixels(width: int, vectors: int, unit: Arithmetic, capabilities: Capabilities) -> int:
    """Pixels of a line that are computed at once, of so many vectors of channels: such that few are computed twice."""
    fitting = [p for p in range(1, min(width, _MOST_PIXELS) + 1)
               if unit.registers(p, vectors) <= capabilities.registers]
    return min(fitting, key=lambda p: (ceil(width / p) * (p + 1), -p))
