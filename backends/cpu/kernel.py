"""What a kernel is asked to be, and what it is: the contract between the emitters and the rest of the compiler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, as_dim, evaluate_dim
from ...errors import PlanError
from ...ir import Group, dims_of, with_symbols
from ...precision import Precision, Storage

# Element types of storages as TIR buffers and NumPy arrays carry them: TVM's LLVM code generation has no bfloat.
_BUFFER_DTYPES = {"bfloat16": "uint16"}

# Schedules of a kernel that a request can ask for: the model is seldom further off.
MOST_SCHEDULES = 6
_Way = TypeVar("_Way")
# Shape and element type.
BufferType = tuple[tuple[Dim, ...], str]


def buffer_dtype(storage: Storage) -> str:
    """The element type of a buffer with this storage: bfloat16 travels as ``uint16``, everything else as it is."""
    return _BUFFER_DTYPES.get(storage.dtype, storage.dtype)


@dataclass(frozen=True)
class KernelRequest:
    """One fusion group with everything decided.

    group : the group; its function's constants (weights, biases) are inside its body.
    precision : what its multiply-adds read.
    inputs : the storage of every tensor that the group's function takes, in order.
    outputs : every materialisation of the tensor that the group computes; at least one, no two equal.
    per_channel : whether INT8 weights have one scale per output channel.
    correction : what INT8 adds to each output channel before the epilogue; empty: nothing.
    typical : an extent for every symbol, by name: what is fast at these is chosen; every extent is computed rightly.
    schedule : which of the kernel's ``schedules`` to take, counted from 0, the best by the model.
    """

    group: Group
    precision: Precision
    inputs: tuple[Storage, ...]
    outputs: tuple[Storage, ...]
    per_channel: bool = True
    correction: tuple[float, ...] = ()
    typical: tuple[tuple[str, int], ...] = ()
    schedule: int = 0

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.group.parameters):
            raise PlanError("a kernel needs one storage per input", layer=self.group.name, found=len(self.inputs),
                            expected=len(self.group.parameters))
        if not self.outputs:
            raise PlanError("a kernel needs at least one output", layer=self.group.name)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requests of equal kernels, inside one graph."""
        return (self.group.function, self.precision, self.inputs, self.outputs, self.per_channel, self.correction,
                self.schedule)

    @property
    def requests(self) -> tuple[KernelRequest, ...]:
        """Of the groups that the kernel computes."""
        return (self,)

    @property
    def result(self) -> KernelRequest:
        """Of the group whose result the kernel writes."""
        return self

    @property
    def reads(self) -> tuple[tuple[str, Storage], ...]:
        """Name and storage of every tensor that the kernel takes."""
        return tuple(zip(self.group.inputs, self.inputs, strict=True))

    @property
    def input_buffers(self) -> list[BufferType]:
        """Shape and element type of the buffer of every tensor that the kernel takes."""
        return [(dims_of(p), buffer_dtype(s)) for p, s in zip(self.group.parameters, self.inputs, strict=True)]

    def typically(self, extent: Dim) -> int:
        """An extent, or a number of elements, at the typical extents of the symbols."""
        return evaluate_dim(extent, dict(self.typical))

    def pick(self, ranked: Iterable[_Way]) -> tuple[_Way, tuple[str, ...]]:
        """The way to compute the group that the request asks for, of those that a model ranks, the best first; and in
        words the few best, no two equal, which are what a request can ask for.

        Raises PlanError where there are fewer.
        """
        best: dict[str, _Way] = {}
        for way in ranked:
            best.setdefault(str(way), way)
            if len(best) == MOST_SCHEDULES:
                break
        if self.schedule >= len(best):
            raise PlanError("the kernel has no such schedule", layer=self.group.name, found=self.schedule,
                            expected=f"less than {len(best)}")
        return list(best.values())[self.schedule], tuple(best)


@dataclass(frozen=True)
class ChainRequest:
    """Two fusion groups as one kernel: the second alone reads what the first, which reads one tensor, computes.

    The kernel takes what the second takes, with the first's input in place of the first's result.

    link : the parameter of the second that is the first's result.
    """

    first: KernelRequest
    second: KernelRequest
    link: int

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requests of equal kernels, inside one graph."""
        return (self.first.key, self.second.key)

    @property
    def requests(self) -> tuple[KernelRequest, ...]:
        """Of the groups that the kernel computes, in order."""
        return (self.first, self.second)

    @property
    def result(self) -> KernelRequest:
        """Of the group whose result the kernel writes."""
        return self.second

    @property
    def reads(self) -> tuple[tuple[str, Storage], ...]:
        """Name and storage of every tensor that the kernel takes."""
        own = list(self.second.reads)
        (own[self.link],) = self.first.reads
        return tuple(own)

    @property
    def input_buffers(self) -> list[BufferType]:
        """Shape, in the second's symbols, and element type of the buffer of every tensor that the kernel takes."""
        symbols = {s.name: s for s in self.second.group.symbols}
        (parameter,), buffers = self.first.group.parameters, self.second.input_buffers
        ty = with_symbols(parameter.ty, {s: symbols[s.name] for s in self.first.group.symbols})
        buffers[self.link] = tuple(as_dim(d) for d in ty.shape), buffer_dtype(self.first.inputs[0])
        return buffers


@dataclass(frozen=True)
class Kernel:
    """The code of one fusion group, or of a chain of two.

    func : its parameters are one buffer per parameter of the group's function (its storage's ``buffer_dtype``, the
        logical shape), one per entry of ``constants``, one int64 per symbol, then one buffer per requested output (the
        logical shape). A group that computes a tuple has one output buffer per element.
    constants : the packed weights and other arrays, in the order of the parameters.
    macs : multiply-adds of one call, at the typical extents of symbols.
    symbols : what the function takes between constants and outputs.
    schedules : the schedules that requests of the kernel can ask for, in words, no two equal; none: there is one.
    parts : the multiply-adds of every group of a chain.
    """

    func: tvm.tirx.PrimFunc
    constants: tuple[np.ndarray, ...]
    macs: int
    symbols: tuple[tirx.Var, ...] = ()
    schedules: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Parameters:
    """The buffers of a kernel's parameters, in the contract's order."""

    inputs: tuple[tvm.ir.Expr, ...]
    constants: tuple[tvm.ir.Expr, ...]
    outputs: tuple[tvm.ir.Expr, ...]


def declare_parameters(request: KernelRequest, constants: Sequence[np.ndarray]) -> Parameters:
    """Declare a kernel's name and parameters inside the ``T.prim_func`` that is being built.

    The function is named after the layer. Inputs are called ``x0``…, constants ``c0``…, outputs ``y0``….
    """
    group = request.group
    return declare(group.name, request.input_buffers, constants, group.symbols, output_buffers(request))


def declare(layer: str, inputs: Sequence[BufferType], constants: Sequence[np.ndarray], symbols: Sequence[tirx.Var],
            outputs: Sequence[BufferType]) -> Parameters:
    """``declare_parameters`` of buffers given by shape and element type."""
    T.func_name(identifier(layer))
    T.func_attr({"tirx.noalias": True, "layer": layer})
    read = tuple(_declare(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(inputs))
    arrays = tuple(_declare(f"c{i}", array.shape, str(array.dtype)) for i, array in enumerate(constants))
    for symbol in symbols:
        T.arg(symbol.name, symbol)
    written = tuple(_declare(f"y{i}", shape, dtype) for i, (shape, dtype) in enumerate(outputs))
    assume_extents(symbols)
    return Parameters(read, arrays, written)


def are_extents(symbols: Iterable[tirx.Var]) -> tvm.ir.Expr:
    """The condition that all symbols are at least 1."""
    return tirx.all(*(s >= 1 for s in symbols))


def assume_extents(symbols: Sequence[tirx.Var]) -> None:
    """Let the rest of the function that is being built run where all symbols are at least 1, as they always are: what
    is known of them turns divisions of indices into single instructions."""
    if not symbols:
        return
    for frame in (T.If(are_extents(symbols)), T.Then()):
        frame.add_callback(partial(frame.__exit__, None, None, None))  # it ends with the enclosing frame
        frame.__enter__()


def output_buffers(request: KernelRequest) -> list[BufferType]:
    """Shape and element type of every output buffer: one per requested storage, or per element of a tuple."""
    shapes = output_shapes(request.group.function)
    if isinstance(request.group.function.ret_ty, relax.TupleType):
        return shapes
    return [(shapes[0][0], buffer_dtype(storage)) for storage in request.outputs]


def output_shapes(function: relax.Function) -> list[tuple[tuple[Dim, ...], str]]:
    """Shape and element type of the tensor that a function computes, or of every element of a tuple."""
    result = function.ret_ty
    fields = result.fields if isinstance(result, relax.TupleType) else [result]
    return [(tuple(as_dim(d) for d in field.shape), str(field.dtype)) for field in fields]


def _declare(name: str, shape: Sequence[Dim], dtype: str) -> tvm.ir.Expr:
    return T.arg(name, T.buffer(tuple(shape), dtype))


def identifier(name: str) -> str:
    """A layer's name as a symbol: ``features.0.conv`` becomes ``features_0_conv``."""
    symbol = re.sub(r"\W", "_", name)
    return symbol if symbol[:1].isalpha() or symbol[:1] == "_" else f"_{symbol}"
