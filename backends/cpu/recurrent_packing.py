"""Weights of recurrent layers as their kernel reads them: one vector of every gate side by side for the same units.

The layout is [direction][block of units][depth][gate][lane]; units are filled up with 0. Constants are packed when the
kernel is built, tensors whenever it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .loops import Loops, task_loop
from .vector_memory import Index


@dataclass(frozen=True)
class Packing:
    """How one operand [directions, rows, depth] (without ``depth`` where that is 1) is packed.

    starts : for every packed gate the rows at which its units begin; several are added up.
    units : rows of a gate.
    rows : rows of the operand.
    depth : elements of a row.
    """

    directions: int
    starts: tuple[tuple[int, ...], ...]
    units: int
    rows: int
    depth: int
    lanes: int

    @property
    def gates(self) -> int:
        return len(self.starts)

    @property
    def blocks(self) -> int:
        return -(-self.units // self.lanes)

    @property
    def size(self) -> int:
        """Packed elements."""
        return self.directions * self.blocks * self.depth * self.gates * self.lanes

    def at(self, direction: Index, block: Index, k: Index = 0, gate: int = 0) -> Index:
        """Where the vector of a gate for one block of units begins."""
        return (((direction * self.blocks + block) * self.depth + k) * self.gates + gate) * self.lanes

    def pack(self, array: np.ndarray) -> np.ndarray:
        """A constant operand, packed."""
        array = array.reshape(self.directions, self.rows, self.depth)
        padded = np.zeros((self.directions, self.gates, self.blocks * self.lanes, self.depth), np.float32)
        for gate, starts in enumerate(self.starts):
            padded[:, gate, :self.units] = sum(array[:, s:s + self.units] for s in starts)
        split = padded.reshape(self.directions, self.gates, self.blocks, self.lanes, self.depth)
        return np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3)).reshape(-1)

    def emit_pack(self, source: tirx.Buffer, loops: Loops) -> tirx.Buffer:
        """Pack an operand in a flat buffer at run time; returns where it lies."""
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
