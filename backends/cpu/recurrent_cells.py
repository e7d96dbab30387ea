"""One step of a recurrent layer for a tile of samples: products with the states, then the cell's own arithmetic.

The products are added in place to what the input gave, for all units; only then the states are overwritten. Below FP32
the states are rounded to operands before they are multiplied (``recurrent_products.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...operators.recurrent import Activation, Recurrence
from . import vector_math as vm
from .loops import Loops, task_loop
from .recurrent_products import Factors, Matrix, Operands, Row, Vectors, emit_products
from .vector_math import Vector, bound, fma, splat
from .vector_memory import Index, load, store

# How much more work than a whole kernel a step must be for threads to share it: they meet again after every product.
_LAUNCHES = 4

_ACTIVATIONS: dict[str, Callable[[Vector, Vector, Vector], Vector]] = {
    "affine": lambda x, alpha, beta: fma(x, alpha, beta),
    "elu": lambda x, alpha, beta: T.Select(x < _like(x, 0.0), alpha * (vm.exp(x) - _like(x, 1.0)), x),
    "hardsigmoid": lambda x, alpha, beta: vm.smaller(vm.larger(fma(x, alpha, beta), 0.0), 1.0),
    "leakyrelu": lambda x, alpha, beta: T.Select(x < _like(x, 0.0), x * alpha, x),
    "relu": lambda x, alpha, beta: vm.larger(x, 0.0),
    "scaledtanh": lambda x, alpha, beta: alpha * vm.tanh(beta * x),
    "sigmoid": lambda x, alpha, beta: vm.sigmoid(x),
    "softplus": lambda x, alpha, beta: vm.softplus(x),
    "softsign": lambda x, alpha, beta: x / (_like(x, 1.0) + vm.intrinsic("llvm.fabs", x)),
    "tanh": lambda x, alpha, beta: vm.tanh(x),
    "thresholdedrelu": lambda x, alpha, beta: T.Select(alpha < x, x, _like(x, 0.0)),
}


def _like(x: Vector, value: float) -> Vector:
    return splat(value, vm.lanes_of(x))


def activate(x: Vector, activation: Activation, clip: float | None = None) -> Vector:
    """The activation of ``x``, whose magnitude is bounded by ``clip`` first."""
    if clip is not None:
        x = vm.smaller(vm.larger(x, -clip), clip)
    x = bound(x)
    return bound(_ACTIVATIONS[activation.name](x, _like(x, activation.alpha), _like(x, activation.beta)))


@dataclass(frozen=True)
class States:
    """The states of a tile's samples, each padded to whole vectors: hidden [samples][state], cell and scratch (what a
    reset or a projection reads) [samples][hidden].

    operands : where what is multiplied with r lies.
    """

    samples: int
    hidden: tirx.Buffer
    cell: tirx.Buffer
    scratch: tirx.Buffer
    operands: Operands


@dataclass(frozen=True)
class Cell:
    """The arithmetic of one direction's steps.

    activations : of the gates, the candidate and the output.
    matrices, vectors : packed operands by name: r, and where the layer has them peepholes and projection.
    blocks : vectors that hold the hidden units.
    loops : over the blocks of a product.
    """

    form: Recurrence
    activations: tuple[Activation, ...]
    matrices: Mapping[str, Matrix]
    vectors: Mapping[str, Vectors]
    blocks: int
    lanes: int
    loops: Loops

    @property
    def slots(self) -> int:
        """Vectors of sums for every block of units: one a gate; a GRU whose reset comes after the product keeps the
        candidate's two sums apart."""
        return slots_of(self.form)

    @property
    def pitch(self) -> int:
        """Elements of the sums of one sample."""
        return self.blocks * self.slots * self.lanes

    def step(self, direction: Index, states: States, sums: tirx.Buffer, at: Index) -> None:
        """Advance the states by one step; ``sums`` [samples][block][slot] from ``at`` on hold what the input gave."""
        {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.form.cell](direction, states, sums, at)

    def _products(self, direction: Index, states: States, source: tirx.Buffer, target: tuple[tirx.Buffer, Index],
                  pairs: list[tuple[int, int]]) -> None:
        """Add the products of r with ``source`` [samples][state] to the sums."""
        r, (sums, at) = self.matrices["r"], target
        factors = states.operands.emit(source, states.samples)
        rows = [Row(factor, sums, at + i * self.pitch, self.slots) for i, factor in enumerate(factors)]
        work = states.samples * r.packing.vectors // _LAUNCHES
        with task_loop(self.blocks, work, self.loops) as block:
            emit_products(rows, r, direction, block, pairs, lambda row, slot: load(
                sums, row.at + (block * self.slots + slot) * self.lanes, self.lanes))

    def _for_each_block(self, states: States, sums: tirx.Buffer, at: Index,
                        body: Callable[[list[Vector], Index, Index], None]) -> None:
        """Call ``body(sums, unit, block)`` for every vector of units; ``unit`` is where it lies in a state."""
        with T.serial(states.samples) as i, T.serial(self.blocks) as block:
            number = i * self.blocks + block
            begin = at + number * (self.slots * self.lanes)
            vectors = [load(sums, begin + s * self.lanes, self.lanes) for s in range(self.slots)]
            body(vectors, number * self.lanes, block)

    def _lstm(self, direction: Index, states: States, sums: tirx.Buffer, at: Index) -> None:
        self._products(direction, states, states.hidden, (sums, at), [(g, g) for g in range(4)])
        clip, (gate, candidate, output) = self.form.clip, self.activations
        peepholes = self.vectors.get("peepholes")
        target = states.scratch if "projection" in self.matrices else states.hidden

        def body(vectors: list[Vector], unit: Index, block: Index) -> None:
            def seen(x: Vector, number: int, cell: Vector) -> Vector:
                return x if peepholes is None else fma(peepholes.at(direction, block, number), cell, x)

            i, o, f, g = vectors
            old = bound(load(states.cell, unit, self.lanes))
            i = activate(seen(i, 0, old), gate, clip)
            f = _like(i, 1.0) - i if self.form.input_forget else activate(seen(f, 2, old), gate, clip)
            new = bound(f * old + i * activate(g, candidate, clip))
            store(states.cell, unit, new)
            store(target, unit, activate(seen(o, 1, new), gate, clip) * activate(new, output))

        self._for_each_block(states, sums, at, body)
        if "projection" in self.matrices:
            self._project(direction, states)

    def _project(self, direction: Index, states: States) -> None:
        """The hidden states as products of the outputs, which lie in the scratch."""
        projection = self.matrices["projection"]
        blocks, pitch = projection.packing.blocks, self.blocks * self.lanes
        rows = [Row(Factors(states.scratch, i * pitch), states.hidden, i * blocks * self.lanes, 1)
                for i in range(states.samples)]
        with T.serial(blocks) as block:
            emit_products(rows, projection, direction, block, [(0, 0)], lambda row, slot: splat(0.0, self.lanes))

    def _gru(self, direction: Index, states: States, sums: tirx.Buffer, at: Index) -> None:
        clip, (gate, candidate) = self.form.clip, self.activations
        late = self.form.linear_before_reset

        def reset(vectors: list[Vector], unit: Index, block: Index) -> None:
            old = load(states.hidden, unit, self.lanes)
            store(states.scratch, unit, activate(vectors[1], gate, clip) * old)

        def advance(vectors: list[Vector], unit: Index, block: Index) -> None:
            z, r, *parts = vectors
            total = fma(activate(r, gate, clip), parts[1], parts[0]) if late else parts[0]
            new, old = activate(total, candidate, clip), load(states.hidden, unit, self.lanes)
            store(states.hidden, unit, fma(activate(z, gate, clip), old - new, new))

        pairs = [(0, 0), (1, 1)]
        self._products(direction, states, states.hidden, (sums, at), [*pairs, (2, 3)] if late else pairs)
        if not late:
            self._for_each_block(states, sums, at, reset)
            self._products(direction, states, states.scratch, (sums, at), [(2, 2)])
        self._for_each_block(states, sums, at, advance)

    def _rnn(self, direction: Index, states: States, sums: tirx.Buffer, at: Index) -> None:
        self._products(direction, states, states.hidden, (sums, at), [(0, 0)])
        self._for_each_block(states, sums, at, lambda vectors, unit, block: store(
            states.hidden, unit, activate(vectors[0], self.activations[0], self.form.clip)))


def slots_of(form: Recurrence) -> int:
    """``Cell.slots``."""
    return form.gates + (form.cell == "gru" and form.linear_before_reset)
