"""Transposed convolutions as convolutions of stride 1 whose results are interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, prod

import numpy as np
import tvm
from tvm import relax

from ..ir import Constant, Expr, constant, constant_value, dims_of, op_name, same_dims
from .graph import Emit, Graph, Replacement, replace_matches
from .kinds import ELEMENTWISE, TRANSPOSED_CONVOLUTION

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


@dataclass(frozen=True)
class DecomposeTransposedConvolutions:
    """Write transposed convolutions as convolutions of stride 1, followed by a depth-to-space movement.

    Before::

        up = relax.nn.conv2d_transpose(x, W[I, 2, 2, O], strides=2, NHWC, IHWO); bias = relax.add(up, b[O])

    After::

        up = relax.nn.conv2d(x, W'[4 O, 1, 1, I], NHWC, OHWI); bias = relax.add(up, b'[4 O])
        split = relax.reshape(bias, [N, H, W, 2, 2, O]); turned = relax.permute_dims(split, [0, 1, 3, 2, 4, 5])
        relax.reshape(turned, [N, 2 H, 2 W, O])

    With stride s the outputs at positions of one rest modulo s, a *phase*, are a convolution of stride 1 with every
    s-th tap (Shi et al. 2016, "Is the deconvolution layer the same as a convolutional layer?"). The phases read one
    window, of the taps that any of them has, and so are the outputs of one convolution; with groups each is a
    convolution of its own, so that depthwise ones stay depthwise. Elementwise operators behind with constants per
    channel are computed before the interleaving, where they are the convolution's epilogue.

    Requires: the normal form, transposed convolutions channels-last (``ToChannelsLast``).
    Ensures: no transposed convolution has constant weights.
    Does not fire when: the weights are computed at run time, so that their taps cannot be dealt out in advance.
    """

    name: str = "DecomposeTransposedConvolutions"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, _find)


def _find(graph: Graph, binding: relax.VarBinding) -> Replacement | None:
    """A replacement for the last operator of a layer: the transposed convolution or what can be computed with it."""
    first: relax.VarBinding | None = binding
    while first is not None and op_name(first.value) not in TRANSPOSED_CONVOLUTION:
        source = next((a for a in getattr(first.value, "args", ()) if isinstance(a, relax.Var)), None)
        first = graph.producer(source) if source is not None and _is_by_channel(first, source) else None
    if first is None:
        return None
    chain = _layer(graph, first)
    data, weight = first.value.args
    if not chain[-1].var.same_as(binding.var) or not isinstance(weight, Constant):
        return None
    return Replacement((data,), lambda emit, x: _decomposed(emit, x, chain))


def _layer(graph: Graph, first: relax.VarBinding) -> list[relax.VarBinding]:
    """A transposed convolution and the operators, each the only reader of the one before, that work by channel."""
    chain = [first]
    while (reader := graph.only_reader(chain[-1].var)) is not None and _is_by_channel(reader, chain[-1].var):
        chain.append(reader)
    return chain


def _is_by_channel(binding: relax.VarBinding, source: relax.Var) -> bool:
    """Whether what an operator makes of an element of ``source`` depends on its channel, the last axis, only."""
    if op_name(binding.value) not in ELEMENTWISE or not same_dims(binding.var, source):
        return False
    others = [a for a in binding.value.args if isinstance(a, (relax.Var, Constant)) and not a.same_as(source)]
    return all(isinstance(a, Constant) and set(constant_value(a).shape[:-1]) <= {1} for a in others)


@dataclass(frozen=True)
class _Axis:
    """How a spatial axis of a transposed convolution is decomposed.

    Output o is at o + origin = stride · q + r, element q of phase r. Tap k adds input i to the output
    o = stride · i + dilation · k − before, so phase r = (dilation · k + origin − before) mod stride reads it
    ``lag`` = q − i = ⌊(dilation · k + origin − before) / stride⌋ elements back.

    first, last : the largest and the least lag; the window's first element is ``first`` back.
    step : elements from a tap of the window to the next.
    growth : elements of a phase beyond those of the input.
    """

    stride: int
    dilation: int
    offset: int
    origin: int
    first: int
    last: int
    growth: int

    @property
    def step(self) -> int:
        return self.dilation if self.stride == 1 else 1

    @property
    def taps(self) -> int:
        """Of the window."""
        return (self.first - self.last) // self.step + 1

    @property
    def padding(self) -> tuple[int, int]:
        """Of the convolution: before and after."""
        return self.first, self.growth - self.last

    def place(self, tap: int) -> tuple[int, int]:
        """Phase, and tap of its window, of a tap of the transposed convolution."""
        lag, phase = divmod(self.dilation * tap + self.offset, self.stride)
        return phase, (self.first - lag) // self.step

    @classmethod
    def of(cls, taps: int, stride: int, dilation: int, padding: tuple[int, int], further: int) -> _Axis:
        """The decomposition with the shortest window; ``further`` is the output padding."""
        span = (taps - 1) * dilation
        surplus = span + 1 - stride - sum(padding) + further  # The output has stride · input + surplus elements.

        def window(origin: int) -> tuple[int, int]:
            return (span + origin - padding[0]) // stride, (origin - padding[0]) // stride

        origin = min(range(stride), key=lambda o: (window(o)[0] - window(o)[1], o))
        (first, last), growth = window(origin), ceil((surplus + origin) / stride)
        step = dilation if stride == 1 else 1
        # Where padding crops the ends of the input, the window gets taps of zero that read them.
        first += max(ceil(-first / step), 0) * step
        last -= max(ceil((last - growth) / step), 0) * step
        return cls(stride, dilation, origin - padding[0], origin, first, last, growth)


def _axes_of(call: relax.Call) -> list[_Axis]:
    attrs, taps = call.attrs, constant_value(call.args[1]).shape[1:-1]
    strides, dilation, padding, further = ([int(v) for v in values] for values in (
        attrs.strides, attrs.dilation, attrs.padding, attrs.output_padding))
    ends = zip(padding[:len(taps)], padding[len(taps):], strict=True)
    return [_Axis.of(*axis) for axis in zip(taps, strides, dilation, ends, further, strict=True)]


def _weights(call: relax.Call, axes: Sequence[_Axis]) -> np.ndarray:
    """The weights [phases, outputs, *taps, inputs of a group] of the convolutions that the phases are."""
    weight, groups = constant_value(call.args[1]), int(call.attrs.groups)
    inputs, outputs = weight.shape[0] // groups, weight.shape[-1]
    result = np.zeros((*(a.stride for a in axes), groups * outputs, *(a.taps for a in axes), inputs), weight.dtype)
    for taps in np.ndindex(weight.shape[1:-1]):
        phase, place = zip(*(axis.place(tap) for axis, tap in zip(axes, taps, strict=True)), strict=True)
        by_group = weight[(slice(None), *taps)].reshape(groups, inputs, outputs).transpose(0, 2, 1)
        result[(*phase, slice(None), *place)] = by_group.reshape(groups * outputs, inputs)
    return result.reshape(-1, *result.shape[len(axes):])


def _decomposed(emit: Emit, x: Expr, chain: Sequence[relax.VarBinding]) -> Expr:
    """The value of a layer whose first operator is a transposed convolution of ``x``."""
    first, groups = chain[0], int(chain[0].value.attrs.groups)
    axes = _axes_of(first.value)
    weights = _weights(first.value, axes)
    if groups == 1:
        weights = weights.reshape(1, -1, *weights.shape[2:])
    phases = []
    for weight in weights:
        value = emit(_convolution(x, weight, axes, groups), name=first.var.name)
        for source, binding in pairwise(chain):
            value = emit(_for_channels(binding.value, source.var, value), name=binding.var.name)
        phases.append(value)
    together = phases[0] if len(phases) == 1 else emit(relax.op.concat(phases, axis=-1), "phases")
    return _interleaved(emit, together, axes, chain[-1].var)


def _convolution(x: Expr, weight: np.ndarray, axes: Sequence[_Axis], groups: int) -> relax.Call:
    spatial = "DHW"[-len(axes):]
    before, after = zip(*(axis.padding for axis in axes), strict=True)
    return _CONVOLUTIONS[len(axes)](
        x, constant(weight), padding=[*before, *after], dilation=[axis.step for axis in axes], groups=groups,
        data_layout=f"N{spatial}C", kernel_layout=f"O{spatial}I")


def _for_channels(call: relax.Call, source: relax.Var, value: relax.Var) -> relax.Call:
    """An operator by channel of ``source`` applied to ``value``, which has its channels several times."""
    times = dims_of(value)[-1] // dims_of(source)[-1]

    def operand(arg: Expr) -> Expr:
        if arg.same_as(source):
            return value
        if not isinstance(arg, Constant) or constant_value(arg).size == 1:
            return arg
        return constant(np.tile(constant_value(arg), times))

    return relax.Call(call.op, [operand(a) for a in call.args], call.attrs, call.ty_args)


def _interleaved(emit: Emit, phases: relax.Var, axes: Sequence[_Axis], result: relax.Var) -> Expr:
    """The elements of phases [N, *size, phases · channels] in the places that they have in ``result``."""
    rank, strides, extents = len(axes), [axis.stride for axis in axes], dims_of(result)
    if prod(strides) > 1:
        batch, *size, _ = dims_of(phases)
        split = emit(relax.op.reshape(phases, [batch, *size, *strides, extents[-1]]), "split")
        order = [i for axis in range(1, rank + 1) for i in (axis, axis + rank)]
        turned = emit(relax.op.permute_dims(split, [0, *order, 2 * rank + 1]), "turned")
        interleaved = [q * s for q, s in zip(size, strides, strict=True)]
        phases = emit(relax.op.reshape(turned, [batch, *interleaved, extents[-1]]), "interleaved")
    if same_dims(phases, result):
        return phases
    starts = [axis.origin for axis in axes]
    ends = [s + d for s, d in zip(starts, extents[1:-1], strict=True)]
    return relax.op.strided_slice(phases, list(range(1, rank + 1)), starts, ends)
