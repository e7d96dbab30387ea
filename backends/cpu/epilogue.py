"""The elementwise tail of a fusion group as vector code: from the anchor's result to the stored outputs.

How an anchor's kernel uses it::

    epilogue = Epilogue(request, capabilities, anchor=request.group.anchor)
    packed = (weights, scales)                       # the kernel's own constants
    constants = (*packed, *epilogue.constants)       # the epilogue's come last
    with IRBuilder() as builder, T.prim_func():
        parameters = declare_parameters(request, constants)     # T.arg for inputs, constants, outputs
        weights, scales = parameters.constants[:2]
        epilogue.bind(parameters)                    # flat views of operands and outputs; once, outside all loops
        with T.parallel(0, rows) as row:
            ...
            acc = T.bind(...)                        # float32xL: the anchor's result before any epilogue
            epilogue.emit(acc, Position(row, column), lanes)
    func = builder.get()

``row`` counts the rows of the output with all leading dimensions flattened (NHWC: ``(n * H + h) * W + w``), ``column``
is the first element on the last axis. ``lanes`` is how many of the vector's elements exist (an int or an expression;
at most L): nothing is read or written beyond them, so the last vector of a row is safe.

``epilogue.bias`` is a float32 vector ``[columns]``, or None: the constant that the group adds to the anchor first.
With ``take_bias=True`` it is the kernel's to add (start accumulators with it, or merge it into an INT8 offset) and
``emit`` does not add it; otherwise ``bias`` is None and ``emit`` adds it. With it goes a rounding to a grid that is
next: where ``epilogue.rounding`` is one, ``acc`` is the anchor's result divided by the grid's scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, is_equal_dim, is_one, product_of
from ...errors import UnsupportedOperatorError
from ...ir import Constant, constant_value, dims_of, op_name, outputs_of, uses_of
from ...operators.quantization import Grid, grid_of, rounding_behind, sum_factors, summands
from ...precision import FLOAT32, QParams, Storage
from ..target import Capabilities
from .elementwise_ops import clamped, emit_op, is_polynomial, scalar_of, tensor_operands
from .kernel import KernelRequest, Parameters
from .vector_math import Vector, apart, bound, fma, joined, lanes_of, runs, splat
from .vector_memory import LINE_BYTES, Index, encode, flat_view, import_conversions, load_float, prefetch, store

# Levels themselves as values.
_LEVELS = Storage("uint8", QParams(1.0, 0))


class Position(NamedTuple):
    """Where a vector lies in the group's output: flattened row, first column."""

    row: Index
    column: Index


class Part(NamedTuple):
    """A vector of the anchor's result (None for elementwise groups), where it lies, and how many of its elements
    exist."""

    acc: Vector | None
    position: Position
    lanes: Index


# Parts whose steps are interleaved where a step waits for the one before it: fewer leave a core with little to do.
_TOGETHER = 8


@dataclass(frozen=True)
class _Operand:
    """A tensor that an elementwise op reads: where it comes from and how it broadcasts against the output.

    source : index of the group's parameter, or of the epilogue's constant.
    shape : right-aligned to the output's rank, 1 where it broadcasts.
    """

    is_constant: bool
    source: int
    shape: tuple[int, ...]
    storage: Storage


class Epilogue:
    """The elementwise ops that follow an anchor, or all ops of an elementwise group (``anchor=None``).

    Attributes
    ----------
    constants : arrays that the kernel has to append to its own constants.
    bias, rounding : see the module's docstring.
    shape : the output's shape; for elementwise groups neighbouring dimensions are merged where all operands allow it.
    vector_lanes : float32 elements in the target's widest register.

    Raises UnsupportedOperatorError, naming the layer, for an op that has no vector code.
    """

    def __init__(self, request: KernelRequest, capabilities: Capabilities, anchor: relax.VarBinding | None = None,
                 *, take_bias: bool = False) -> None:
        self.request = request
        self.constants: list[np.ndarray] = []
        self.bias: np.ndarray | None = None
        self.rounding: Grid | None = None
        self._features = capabilities.features
        self.vector_lanes = capabilities.vector_bits // 32
        function = request.group.function
        self._result = outputs_of(function)[0]
        self.shape = dims_of(self._result) or (1,)
        self._anchor = anchor.var if anchor is not None else None
        self._steps = self._collect_steps(anchor)
        if take_bias and anchor is not None:
            self._take_bias(function)
            self._take_rounding()
        self._drop_implied_relu()
        self._operands: dict[relax.Var | Constant, _Operand] = {}
        for binding in self._steps:
            for operand in tensor_operands(binding.value):
                self._add_operand(operand, binding)
        self._sums = self._find_sums()
        self._storages = self._find_storages()
        if anchor is None:
            self._coalesce()
        self._views: dict[relax.Var | Constant, tvm.ir.Expr] = {}
        self._outputs: list[tvm.ir.Expr] = []

    @property
    def columns(self) -> Dim:
        """Length of the output's last axis."""
        return self.shape[-1]

    @property
    def rows(self) -> Dim:
        """Product of all other dimensions."""
        return product_of(self.shape[:-1])

    @property
    def is_identity(self) -> bool:
        """Whether nothing is computed: the anchor's result is stored as it is."""
        return not self._steps

    def _collect_steps(self, anchor: relax.VarBinding | None) -> list[relax.VarBinding]:
        bindings = self.request.group.bindings
        if anchor is None:
            return list(bindings)
        position = next(i for i, b in enumerate(bindings) if b.var.same_as(anchor.var))
        return list(bindings[position + 1:])

    def _take_bias(self, function: relax.Function) -> None:
        """Remove the first step where it adds a constant that varies along the last axis only, and keep it."""
        if not self._steps or len(uses_of(function).get(self._anchor, [])) != 1:
            return
        first = self._steps[0]
        if op_name(first.value) not in ("relax.add", "relax.subtract"):
            return
        left, right = first.value.args
        if isinstance(left, Constant) and op_name(first.value) == "relax.add":
            left, right = right, left
        if not (left.same_as(self._anchor) and isinstance(right, Constant)):
            return
        array = constant_value(right)
        if array.dtype != np.float32 or array.size not in (1, (array.shape or (1,))[-1]):
            return
        sign = np.float32(1 if op_name(first.value) == "relax.add" else -1)
        self.bias = np.ascontiguousarray(np.broadcast_to(sign * array.reshape(-1), (self.columns,)))
        self._anchor = first.var
        self._steps = self._steps[1:]

    def _take_rounding(self) -> None:
        """Remove the first step where it rounds the anchor's value to a grid and nothing else reads that."""
        bindings = self.request.group.bindings
        done = next(i for i, b in enumerate(bindings) if b.var.same_as(self._anchor)) + 1
        self.rounding = rounding_behind(bindings, done)
        if self.rounding is not None:
            self._anchor = self._steps[0].var
            self._steps = self._steps[1:]

    def _drop_implied_relu(self) -> None:
        """Remove a last relu that every output implies: an unsigned storage with zero point 0 holds nothing below 0."""
        if self._anchor is None or not self._steps or op_name(self._steps[-1].value) != "relax.nn.relu":
            return
        if all(s.qparams is not None and s.qparams.zero_point == 0 for s in self.request.outputs):
            self._result = self._steps.pop().value.args[0]

    def _find_sums(self) -> dict[relax.Var, tuple[relax.Var, relax.Var]]:
        """The rounded sums of two tensors on grids, by the rounding; their additions are no steps anymore."""
        found = {}
        for binding in list(self._steps):
            operands = summands(self.request.group.bindings, binding)
            grid = grid_of(binding.value)
            if operands and grid is not None and grid.qparams is not None and all(map(self._qparams_of, operands)):
                found[binding.var] = (operands[0], operands[1])
                self._steps = [s for s in self._steps if not s.var.same_as(binding.value.args[0])]
        return found

    def _qparams_of(self, var: relax.Var) -> QParams | None:
        """The parameters whose levels ``var`` is there in."""
        if var in self._operands:
            return self._operands[var].storage.qparams
        if self.rounding is not None and var.same_as(self._anchor):
            return self.rounding.qparams
        grids = [grid_of(s.value) for s in self._steps if s.var.same_as(var)]
        return grids[0].qparams if grids and grids[0] is not None else None

    def _find_storages(self) -> tuple[Storage, ...]:
        """What results are stored as. Where the last step rounds to the grid that every output is, its steps are
        stored instead of its values: the storage is the rounding."""
        last = self._steps[-1].value if self._steps else None
        grid = grid_of(last) if last is not None else self.rounding
        outputs = self.request.outputs
        self._stores_steps = grid is not None and grid.fills_storage and all(s.qparams == grid.qparams for s in outputs)
        if not self._stores_steps or grid is None or grid.qparams is None:
            return outputs
        is_sum = last is not None and self._steps[-1].var in self._sums
        return (Storage("uint8", QParams(1.0, 0 if is_sum else grid.qparams.zero_point)),) * len(outputs)

    def _add_operand(self, operand: tvm.ir.Expr, binding: relax.VarBinding) -> None:
        computed = [b.var for b in self._steps] + ([self._anchor] if self._anchor is not None else [])
        if scalar_of(operand) is not None or operand in self._operands or any(operand.same_as(v) for v in computed):
            return
        shape = self._aligned_shape(operand, binding)
        params = self.request.group.parameters
        if isinstance(operand, Constant):
            self._operands[operand] = _Operand(True, len(self.constants), shape, _constant_storage(operand))
            self.constants.append(np.ascontiguousarray(constant_value(operand)))
            return
        source = next((i for i, p in enumerate(params) if p.same_as(operand)), None)
        if source is None:
            raise UnsupportedOperatorError("an operand of the epilogue is neither a parameter nor a constant",
                                           layer=self.request.group.name, found=str(operand))
        self._operands[operand] = _Operand(False, source, shape, self.request.inputs[source])

    def _aligned_shape(self, operand: tvm.ir.Expr, binding: relax.VarBinding) -> tuple[Dim, ...]:
        """The operand's shape with the output's rank; prelu's slope lies along its axis."""
        shape, rank = dims_of(operand), len(self.shape)
        call = binding.value
        if op_name(call) == "relax.nn.prelu" and operand.same_as(call.args[1]) and len(shape) == 1:
            axis = int(call.attrs.axis) % rank
            shape = tuple(shape[0] if d == axis else 1 for d in range(rank))
        shape = (1,) * (rank - len(shape)) + shape
        if len(shape) != rank or not all(is_one(s) or is_equal_dim(s, d)
                                         for s, d in zip(shape, self.shape, strict=True)):
            raise UnsupportedOperatorError("an operand does not broadcast to the output of its group",
                                           layer=self.request.group.name, found=shape, expected=self.shape)
        return shape

    def _coalesce(self) -> None:
        """Merge neighbouring dimensions in which every operand either broadcasts in both, or in none."""
        keys = list(self._operands)
        merged = merge_dimensions([self.shape, *(self._operands[k].shape for k in keys)])
        self.shape = merged[0]
        for key, shape in zip(keys, merged[1:], strict=True):
            self._operands[key] = replace(self._operands[key], shape=shape)

    def bind(self, parameters: Parameters) -> None:
        """Declare flat views of operands and outputs; to be called once inside the ``T.prim_func``, outside of loops.

        The epilogue's constants are the last ``len(self.constants)`` of ``parameters.constants``.
        """
        own = parameters.constants[len(parameters.constants) - len(self.constants):]
        for key, operand in self._operands.items():
            buffer = own[operand.source] if operand.is_constant else parameters.inputs[operand.source]
            self._views[key] = flat_view(buffer)
        self._outputs = [flat_view(buffer) for buffer in parameters.outputs]
        if any(s.dtype == "bfloat16" for s in self.request.outputs):
            import_conversions(self._features)

    @cached_property
    def together(self) -> int:
        """Parts that ``emit_all`` is best given at once: several for polynomials, whose steps wait for each other for
        longer than a core looks ahead."""
        calls = [binding.value for binding in self._steps]
        is_float = all(str(call.ty.dtype) == "float32" for call in calls)
        return _TOGETHER if is_float and any(is_polynomial(call) for call in calls) else 1

    def emit(self, acc: Vector | None, position: Position, lanes: Index) -> None:
        """Apply the chain to ``acc`` and store into every output; ``acc`` is None for elementwise groups."""
        self._emit_together([Part(acc, position, lanes)])

    def emit_all(self, parts: Sequence[Part]) -> None:
        """``emit`` for each of the parts, ``together`` of them at a time."""
        for some in runs(parts, self.together):
            self._emit_together(some)

    def _emit_together(self, parts: Sequence[Part]) -> None:
        for part, value in zip(parts, apart(self._apply(parts), len(parts)), strict=True):
            self.store(value, part.position, part.lanes)

    def apply(self, acc: Vector | None, position: Position, lanes: Index) -> Vector:
        """The chain's result for the vector at ``position``, float32, not yet stored."""
        return self._apply([Part(acc, position, lanes)])

    def _apply(self, parts: Sequence[Part]) -> Vector:
        """The chain's results for several vectors side by side."""
        accs = [part.acc for part in parts if part.acc is not None]
        acc = joined(accs) if accs else None
        own = self.vector_lanes if not is_one(self.columns) else 1
        width = lanes_of(acc) if acc is not None else own * len(parts)
        values: dict[relax.Var | Constant, Vector] = {}
        if self._anchor is not None:
            values[self._anchor] = bound(acc)
        levels: dict[relax.Var | Constant, Vector] = {}
        if self.rounding is not None:
            if self._stores_steps and not self._steps:
                return values[self._anchor]
            self._round(self._anchor, self.rounding, values[self._anchor], values, levels)
        for binding in self._steps:
            layer, grid = self.request.group.name, grid_of(binding.value)
            read = [] if binding.var in self._sums else tensor_operands(binding.value)
            operands = [self._value(operand, values, parts, width) for operand in read]
            if grid is None:
                values[binding.var] = bound(emit_op(binding.value, operands, layer))
                continue
            if binding.var in self._sums:
                steps = self._sum(binding, levels, parts, width)
            else:
                steps = bound(operands[0] / splat(grid.scale, width))
            if self._stores_steps and binding is self._steps[-1]:
                return steps
            zero = grid.zero_point - grid.low if binding.var in self._sums else 0
            self._round(binding.var, grid, steps, values, levels, zero)
        return self._value(self._result, values, parts, width)

    @staticmethod
    def _round(var: relax.Var, grid: Grid, steps: Vector, values: dict[relax.Var | Constant, Vector],
               levels: dict[relax.Var | Constant, Vector], zero: int = 0) -> None:
        """Enter the value on the grid, and its level in storage, that is next to ``steps``, which contain ``zero``."""
        width = lanes_of(steps)
        offset = float(grid.low - grid.zero_point + zero)
        rounded = bound(clamped(steps, offset, offset + grid.high - grid.low))
        levels[var] = bound(rounded - splat(offset, width))
        values[var] = bound((rounded - splat(float(zero), width)) * splat(grid.scale, width))

    def _sum(self, binding: relax.VarBinding, levels: dict[relax.Var | Constant, Vector], parts: Sequence[Part],
             width: int) -> Vector:
        """The steps, zero point included, of a rounded sum, from the levels of what is added."""
        operands = self._sums[binding.var]
        qparams = [self._qparams_of(v) for v in operands]
        assert qparams[0] is not None and qparams[1] is not None
        for var in operands:
            if var not in levels:
                levels[var] = bound(self._load_all(var, parts, width, _LEVELS))
        first, second, fixed = sum_factors(qparams[0], qparams[1], Grid.of(binding.value))
        inner = bound(fma(levels[operands[1]], splat(second, width), splat(fixed, width)))
        return bound(fma(levels[operands[0]], splat(first, width), inner))

    def _value(self, operand: tvm.ir.Expr, values: dict[relax.Var | Constant, Vector], parts: Sequence[Part],
               width: int) -> Vector:
        if operand in values:
            return values[operand]
        scalar = scalar_of(operand)
        if scalar is not None:
            return splat(scalar, width)
        values[operand] = bound(self._load_all(operand, parts, width, self._operands[operand].storage))
        return values[operand]

    def _load_all(self, key: relax.Var | Constant, parts: Sequence[Part], width: int, storage: Storage) -> Vector:
        """An operand's values of all parts, as if it were stored as ``storage``."""
        own = width // len(parts)
        return joined([self._load(key, part.position, own, part.lanes, storage) for part in parts])

    def _load(self, key: relax.Var | Constant, position: Position, width: int, lanes: Index,
              storage: Storage) -> Vector:
        operand, view = self._operands[key], self._views[key]
        index = row_index(operand.shape[:-1], self.shape[:-1], position.row)
        if is_one(operand.shape[-1]) and (width > 1 or not is_one(self.columns)):
            return splat(load_float(view, index, 1, 1, storage), width)
        return load_float(view, index * operand.shape[-1] + position.column, width, lanes, storage)

    def fetch(self, position: Position, number: int = 0) -> None:
        """Fetch what ``emit`` at a position reads of tensors as large as the output, and writes. Of several vectors
        number ``number`` fetches nothing that is in one line with what those before it fetch."""
        index, before = position.row * self.columns + position.column, number * self.vector_lanes
        for key, operand in self._operands.items():
            view = self._views[key]
            if all(map(is_equal_dim, operand.shape, self.shape)) and not before * _size(view) % LINE_BYTES:
                prefetch(view, index, level=1)
        for view in self._outputs:
            if not before * _size(view) % LINE_BYTES:
                prefetch(view, index, level=1, write=True)

    def store(self, value: Vector, position: Position, lanes: Index) -> None:
        """Convert a float32 vector and write its first ``lanes`` elements into every output storage."""
        index = position.row * self.columns + position.column
        for view, stored in zip(self._outputs, self.encoded(value), strict=True):
            store(view, index, stored, lanes)

    def encoded(self, value: Vector) -> list[Vector]:
        """A float32 vector as each of the output storages has it."""
        return [encode(value, storage, self._features) for storage in self._storages]


def _size(view: tvm.ir.Expr) -> int:
    """Bytes of an element of a buffer."""
    return np.dtype(str(view.dtype)).itemsize


def row_index(shape: Sequence[Dim], full: Sequence[Dim], row: Index) -> Index:
    """The flat row of a tensor with leading dimensions ``shape`` (1 where it broadcasts) for row ``row`` of ``full``.

    Neighbouring dimensions that are both broadcast, or both not, are taken together, so a tensor of the same leading
    shape costs no arithmetic.
    """
    runs: list[tuple[Dim, bool]] = []  # extent, and whether the operand has it, outermost first
    for have, want in zip(shape, full, strict=True):
        if is_one(want):
            continue
        present = not is_one(have)
        if runs and runs[-1][1] == present:
            runs[-1] = (runs[-1][0] * want, present)
        else:
            runs.append((want, present))
    result: Index = 0
    inner: Dim = 1
    stride: Dim = 1
    for position, (extent, present) in reversed(list(enumerate(runs))):
        if present:
            digit = row if is_one(inner) else T.floordiv(row, inner)
            digit = digit if position == 0 else T.floormod(digit, extent)
            result = result + digit * stride
            stride = stride * extent
        inner = inner * extent
    return result


def merge_dimensions(shapes: Sequence[tuple[Dim, ...]]) -> list[tuple[Dim, ...]]:
    """Shapes of one rank with as few dimensions as describe the same broadcasting against the first of them.

    Dimensions of extent 1 are dropped; what remains has at least one dimension.
    """
    merged: list[list[Dim]] = []  # one entry per kept dimension: its extent in every shape
    for extents in zip(*shapes, strict=True):
        if is_one(extents[0]):
            continue
        if merged and all(is_one(a) == is_one(b) for a, b in zip(merged[-1], extents, strict=True)):
            merged[-1] = [a * b for a, b in zip(merged[-1], extents, strict=True)]
        else:
            merged.append(list(extents))
    return list(zip(*merged, strict=True)) if merged else [(1,) for _ in shapes]


def _constant_storage(operand: Constant) -> Storage:
    return Storage("bool") if str(operand.ty.dtype) == "bool" else FLOAT32

