"""Weights of recurrent layers as their kernel reads them: one vector of every gate side by side for the same units.

The layout is [direction][block of units][depth / step][gate][lane, step]; units and depth are filled up with 0.
Constants are packed when the kernel is built, float32 tensors whenever it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .isa import Arithmetic
from .loops import Loops, task_loop
from .packing import pack_weights
from .tiling import Columns
from .vector_memory import Index


@dataclass(frozen=True)
class Packing:
    """How one operand [directions, rows, depth] (without ``depth`` where that is 1) is packed.

    starts : for every packed gate the rows at which its units begin; several are added up.
    units : rows of a gate.
    rows : rows of the operand.
    depth : elements of a row.
    step : consecutive elements of a row that one multiply-add takes.
    """

    directions: int
    starts: tuple[tuple[int, ...], ...]
    units: int
    rows: int
    depth: int
    lanes: int
    step: int = 1

    @property
    def gates(self) -> int:
        return len(self.starts)

    @property
    def blocks(self) -> int:
        return -(-self.units // self.lanes)

    @property
    def steps(self) -> int:
        """Multiply-adds that a row takes."""
        return -(-self.depth // self.step)

    @property
    def vectors(self) -> int:
        """Packed vectors of one direction."""
        return self.blocks * self.steps * self.gates

    @property
    def size(self) -> int:
        """Packed elements."""
        return self.directions * self.vectors * self.lanes * self.step

    def at(self, direction: Index, block: Index, k: Index = 0, gate: int = 0) -> Index:
        """Where the vector of a gate for step ``k`` of one block of units begins."""
        return (((direction * self.blocks + block) * self.steps + k) * self.gates + gate) * (self.lanes * self.step)

    def pack(self, array: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        """A constant matrix, packed as an arithmetic reads it."""
        columns = Columns(self.gates, self.blocks, 0, 0)
        return pack_weights(self._by_column(array)[:, None], columns, arithmetic)

    @property
    def by_row(self) -> Packing:
        """How numbers are packed of which every row has one."""
        return replace(self, depth=1, step=1)

    def pack_vectors(self, array: np.ndarray) -> np.ndarray:
        """A constant [directions, rows], packed."""
        return self._by_column(array).reshape(-1)

    def _by_column(self, array: np.ndarray) -> np.ndarray:
        """[directions, depth, columns], the columns being [block][gate][lane]."""
        array = array.reshape(self.directions, self.rows, self.depth)
        padded = np.zeros((self.directions, self.gates, self.blocks * self.lanes, self.depth), array.dtype)
        for gate, starts in enumerate(self.starts):
            padded[:, gate, :self.units] = sum(array[:, s:s + self.units] for s in starts)
        split = padded.reshape(self.directions, self.gates, self.blocks, self.lanes, self.depth)
        columns = self.gates * self.blocks * self.lanes
        return split.transpose(0, 4, 2, 1, 3).reshape(self.directions, self.depth, columns)

    def emit_pack(self, source: tirx.Buffer, loops: Loops) -> tirx.Buffer:
        """Pack a float32 operand in a flat buffer at run time; returns where it lies."""
        packed = T.alloc_buffer((self.size,), "float32")
        with task_loop(self.directions * self.blocks, self.size, loops) as task, T.serial(self.depth) as k:
            direction, block = T.floordiv(task, self.blocks), T.floormod(task, self.blocks)
            for gate, starts in enumerate(self.starts):
                with T.serial(self.lanes) as lane:
                    unit = block * self.lanes + lane
                    rows = [source[(direction * self.rows + s + unit) * self.depth + k] for s in starts]
                    value = rows[0] if len(rows) == 1 else rows[0] + rows[1]
                    inside = T.if_then_else(unit < self.units, value, T.float32(0))
                    T.buffer_store(packed, inside, [self.at(direction, block, k, gate) + lane])
        return packed
