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
``emit`` does not add it; otherwise ``bias`` is None and ``emit`` adds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax
from tvm.script.ir_builder import tirx as T

from ...errors import UnsupportedOperatorError
from ...ir import Constant, Dim, constant_value, dims_of, is_equal_dim, op_name, outputs_of, product_of, uses_of
from ...operators.quantization import grid_of
from ...precision import FLOAT32, Storage
from ..target import Capabilities
from .elementwise_ops import emit_op, scalar_of, tensor_operands
from .kernel import KernelRequest, Parameters
from .vector_math import Vector, bound, lanes_of, splat
from .vector_memory import Index, flat_view, import_conversions, load_float, store_float


class Position(NamedTuple):
    """Where a vector lies in the group's output: flattened row, first column."""

    row: Index
    column: Index


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
    bias : see the module's docstring.
    shape : the output's shape; for elementwise groups neighbouring dimensions are merged where all operands allow it.
    vector_lanes : float32 elements in the target's widest register.

    Raises UnsupportedOperatorError, naming the layer, for an op that has no vector code.
    """

    def __init__(self, request: KernelRequest, capabilities: Capabilities, anchor: relax.VarBinding | None = None,
                 *, take_bias: bool = False) -> None:
        self.request = request
        self.constants: list[np.ndarray] = []
        self.bias: np.ndarray | None = None
        self._features = capabilities.features
        self.vector_lanes = capabilities.vector_bits // 32
        function = request.group.function
        self._result = outputs_of(function)[0]
        self.shape = dims_of(self._result) or (1,)
        self._anchor = anchor.var if anchor is not None else None
        self._steps = self._collect_steps(anchor)
        if take_bias and anchor is not None:
            self._take_bias(function)
        last = self._steps[-1] if self._steps else None
        self._drop_implied_steps()
        self._operands: dict[relax.Var | Constant, _Operand] = {}
        for binding in self._steps:
            for operand in tensor_operands(binding.value):
                self._add_operand(operand, binding)
        if last is not None:
            self._add_operand(self._result, last)
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

    def _drop_implied_steps(self) -> None:
        """Remove last steps that every output implies: a rounding to the grid that is stored, and a relu before an
        unsigned storage with zero point 0, which holds nothing below 0."""
        stored = [s.qparams for s in self.request.outputs]
        while self._steps:
            call = self._steps[-1].value
            grid = grid_of(call)
            rounds = grid is not None and grid.fills_storage and all(q == grid.qparams for q in stored)
            clamps = op_name(call) == "relax.nn.relu" and all(q is not None and q.zero_point == 0 for q in stored)
            if not (rounds or clamps):
                return
            self._result = call.args[0]
            self._steps.pop()

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

    def emit(self, acc: Vector | None, position: Position, lanes: Index) -> None:
        """Apply the chain to ``acc`` and store into every output; ``acc`` is None for elementwise groups."""
        self.store(self.apply(acc, position, lanes), position, lanes)

    def apply(self, acc: Vector | None, position: Position, lanes: Index) -> Vector:
        """The chain's result for the vector at ``position``, float32, not yet stored."""
        width = lanes_of(acc) if acc is not None else self.vector_lanes if not is_one(self.columns) else 1
        values: dict[relax.Var | Constant, Vector] = {}
        if self._anchor is not None:
            values[self._anchor] = bound(acc)
        for binding in self._steps:
            operands = [self._value(operand, values, position, width, lanes)
                        for operand in tensor_operands(binding.value)]
            values[binding.var] = bound(emit_op(binding.value, operands, self.request.group.name))
        return self._value(self._result, values, position, width, lanes)

    def _value(self, operand: tvm.ir.Expr, values: dict[relax.Var | Constant, Vector], position: Position, width: int,
               lanes: Index) -> Vector:
        if operand in values:
            return values[operand]
        scalar = scalar_of(operand)
        if scalar is not None:
            return splat(scalar, width)
        values[operand] = bound(self._load(operand, position, width, lanes))
        return values[operand]

    def _load(self, key: relax.Var | Constant, position: Position, width: int, lanes: Index) -> Vector:
        operand, view = self._operands[key], self._views[key]
        index = row_index(operand.shape[:-1], self.shape[:-1], position.row)
        if is_one(operand.shape[-1]) and (width > 1 or not is_one(self.columns)):
            return splat(load_float(view, index, 1, 1, operand.storage), width)
        return load_float(view, index * operand.shape[-1] + position.column, width, lanes, operand.storage)

    def store(self, value: Vector, position: Position, lanes: Index) -> None:
        """Convert a float32 vector and write its first ``lanes`` elements into every output storage."""
        index = position.row * self.columns + position.column
        for view, storage in zip(self._outputs, self.request.outputs, strict=True):
            store_float(view, index, value, lanes, storage, self._features)


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


def is_one(extent: Dim) -> bool:
    """Whether an extent is the number 1; a symbolic one is taken for any."""
    return isinstance(extent, int) and extent == 1


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

