"""Folding of per-channel affine maps into the weights of their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..ir import (
    Constant,
    Expr,
    GraphBuilder,
    constant,
    constant_value,
    dims_of,
    op_name,
    rewrite,
    same_dims,
    shape_of,
    with_main,
    without_dead_code,
)
from .base import Refusal
from .graph import Graph


@dataclass(frozen=True)
class FoldBatchNorm:
    """Fold per-channel multiplications and additions into the weights and the bias of a convolution or a product.

    Before::

        conv = relax.nn.conv2d(x, W); a = conv + b; m = a * scale; bn = m + shift

    After::

        conv = relax.nn.conv2d(x, scale * W); bn = conv + (scale * b + shift)

    The same holds before a convolution, where it does not pad or the shift is zero: the affine map of its input
    channels goes into its weights and its bias.

    Requires: the normal form; batch normalizations are written out (``Simplify``). Operators: conv1d, conv2d, conv3d,
    their transposes, and matmul with a constant right side [K, N].
    Ensures: behind such an operator follows at most one per-channel addition. Computed in float64, rounded once.
    Does not fire when: the convolution's output, or a value between, has another reader or is an output; a constant is
    not per channel; a shift would pass through padding (``refusals``).
    """

    name: str = "FoldBatchNorm"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        for plan in (_plan_behind, _plan_before):
            mod = _apply(mod, plan(Graph(mod["main"]), []))
        return mod

    def refusals(self, mod: tvm.IRModule) -> list[Refusal]:
        """The per-channel maps next to a convolution that stay, with the reason."""
        refused: list[Refusal] = []
        _apply(mod, _plan_behind(Graph(mod["main"]), refused))
        _plan_before(Graph(mod["main"]), refused)
        return refused


@dataclass(frozen=True)
class _Linear:
    """Where the channels of a linear operator are.

    output, input : axes of the weight; ``input`` counts within a group.
    channel : the axis of the activations.
    groups : of the convolution.
    pads : whether some outputs read padding; those of a transposed convolution always count as such.
    """

    call: relax.Call
    output: int
    input: int
    channel: int
    groups: int
    pads: bool
    is_transpose: bool = False

    @property
    def weight(self) -> np.ndarray:
        return constant_value(self.call.args[1]).astype(np.float64)

    @property
    def outputs(self) -> int:
        return shape_of(self.call.args[1])[self.output] * (self.groups if self.is_transpose else 1)

    @property
    def inputs(self) -> int:
        return shape_of(self.call.args[1])[self.input] * (1 if self.is_transpose else self.groups)

    def scaled_outputs(self, scale: np.ndarray) -> np.ndarray:
        """The weight with ``scale`` [outputs] multiplied to the output channels."""
        return self._scaled(scale, self.output, self.input) if self.is_transpose else self._direct(scale, self.output)

    def scaled_inputs(self, scale: np.ndarray) -> np.ndarray:
        """The weight with ``scale`` [inputs] multiplied to the input channels."""
        return self._direct(scale, self.input) if self.is_transpose else self._scaled(scale, self.input, self.output)

    def _direct(self, scale: np.ndarray, axis: int) -> np.ndarray:
        weight = self.weight
        return weight * scale.reshape([-1 if a == axis else 1 for a in range(weight.ndim)])

    def _scaled(self, scale: np.ndarray, axis: int, grouped: int) -> np.ndarray:
        """``scale`` along ``axis``, whose values differ from group to group; ``grouped`` runs through the groups."""
        weight = np.moveaxis(self.weight, (grouped, axis), (0, 1))
        per_group = weight.shape[0] // self.groups
        factor = np.repeat(scale.reshape(self.groups, -1), per_group, axis=0)
        scaled = weight * factor.reshape(*factor.shape, *(1,) * (weight.ndim - 2))
        return np.moveaxis(scaled, (0, 1), (grouped, axis))

    def bias_of_input_shift(self, shift: np.ndarray) -> np.ndarray:
        """What ``shift`` [inputs] adds to each output where nothing is padded."""
        shifted = self.scaled_inputs(shift)
        return shifted.sum(axis=tuple(a for a in range(shifted.ndim) if a != self.output))

    def per_channel(self, values: np.ndarray) -> Constant:
        """The float32 constant that broadcasts ``values`` [outputs] over the activations' channel axis."""
        trailing = len(dims_of(self.call)) - 1 - self.channel
        return constant(values.reshape(-1, *(1,) * trailing).astype(np.float32))

    def vector(self, expr: Expr, channels: int, rank: int) -> np.ndarray | None:
        """A constant that is per channel (or a scalar) as float64 [channels]; None for anything else."""
        if not isinstance(expr, Constant):
            return None
        value = constant_value(expr).astype(np.float64)
        if value.ndim > rank:
            return None
        value = value.reshape((1,) * (rank - value.ndim) + value.shape)
        if any(d != 1 for axis, d in enumerate(value.shape) if axis != self.channel):
            return None
        return np.broadcast_to(value.reshape(-1), (channels,))


def _linear(binding: relax.VarBinding | None) -> _Linear | None:
    name = op_name(binding.value) if binding is not None else None
    if binding is None or name is None:
        return None
    call = binding.value
    if name == "relax.matmul":
        right = call.args[1]
        if not isinstance(right, Constant) or len(dims_of(right)) != 2 or isinstance(call.args[0], Constant):
            return None
        return _Linear(call, output=1, input=0, channel=len(dims_of(call)) - 1, groups=1, pads=False)
    if not name.startswith("relax.nn.conv") or not isinstance(call.args[1], Constant):
        return None
    attrs = call.attrs
    kernel, data = str(attrs.kernel_layout), str(attrs.data_layout)
    transpose = name.endswith("_transpose")
    pads = transpose or any(int(p) for p in attrs.padding)
    return _Linear(call, kernel.index("O"), kernel.index("I"), data.index("C"), int(attrs.groups), pads, transpose)


def _affine(linear: _Linear, call: Expr, source: Expr, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """``(scale, shift)`` where ``call`` is ``source * scale + shift`` in one operation; None for anything else."""
    name = op_name(call)
    if name not in ("relax.add", "relax.subtract", "relax.multiply", "relax.divide"):
        return None
    first = call.args[0].same_as(source)
    if not same_dims(call, source) or (name == "relax.divide" and not first):
        return None
    value = linear.vector(call.args[1 if first else 0], channels, len(dims_of(source)))
    if value is None or (name == "relax.divide" and not np.all(value)):
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    if name == "relax.multiply":
        return value, zero
    if name == "relax.divide":
        return 1.0 / value, zero
    if name == "relax.add":
        return one, value
    return (one, -value) if first else (-one, value)


@dataclass(frozen=True)
class _Fold:
    """One convolution's new weight and bias, and the bindings that become its value."""

    linear: relax.VarBinding
    weight: np.ndarray
    shift: Constant | None
    chain: tuple[relax.VarBinding, ...]
    source: Expr


def _plan_behind(graph: Graph, refused: list[Refusal]) -> list[_Fold]:
    folds = []
    for binding in graph.bindings:
        linear = _linear(binding)
        if linear is None:
            continue
        chain, scale, shift = [], np.ones(linear.outputs), np.zeros(linear.outputs)
        last = binding
        while (reader := graph.only_reader(last.var)) is not None:
            step = _affine(linear, reader.value, last.var, linear.outputs)
            if step is None:
                break
            scale, shift = scale * step[0], shift * step[0] + step[1]
            chain.append(reader)
            last = reader
        _refuse_shared(graph, linear, last, refused)
        if len(chain) > 1 or (chain and op_name(chain[0].value) != "relax.add"):
            weight = linear.scaled_outputs(scale)
            bias = linear.per_channel(shift) if np.any(shift) else None
            folds.append(_Fold(binding, weight, bias, tuple(chain), binding.value.args[0]))
    return folds


def _refuse_shared(graph: Graph, linear: _Linear, last: relax.VarBinding, refused: list[Refusal]) -> None:
    if graph.only_reader(last.var) is not None:
        return
    for reader in graph.uses.get(last.var, []):
        if _affine(linear, reader.value, last.var, linear.outputs) is not None:
            refused.append((reader.var.name, f"the value of {last.var.name} has another reader"))


def _plan_before(graph: Graph, refused: list[Refusal]) -> list[_Fold]:
    folds = []
    for binding in graph.bindings:
        linear = _linear(binding)
        if linear is None:
            continue
        scale, shift, source = np.ones(linear.inputs), np.zeros(linear.inputs), binding.value.args[0]
        while (producer := graph.producer(source)) is not None and graph.only_reader(source) is not None:
            operand = next((a for a in getattr(producer.value, "args", []) if isinstance(a, relax.Var)), None)
            step = _affine(linear, producer.value, operand, linear.inputs) if operand is not None else None
            if step is None or operand is None:
                break
            scale, shift, source = scale * step[0], shift + scale * step[1], operand
        if source.same_as(binding.value.args[0]):
            continue
        if linear.pads and np.any(shift):
            refused.append((binding.var.name, "a shift of the input would pass through the padding"))
            continue
        bias = linear.bias_of_input_shift(shift) if np.any(shift) else None
        folds.append(_Fold(binding, linear.scaled_inputs(scale),
                           linear.per_channel(bias) if bias is not None else None, (), source))
    return folds


def _apply(mod: tvm.IRModule, folds: Sequence[_Fold]) -> tvm.IRModule:
    starts = {fold.linear.var: fold for fold in folds}
    starts_of = {b.var: fold.linear.var for fold in folds for b in fold.chain}
    ends = {fold.chain[-1].var: fold for fold in folds if fold.chain}
    rebuilt: dict[relax.Var, Expr] = {}

    def visit(builder: GraphBuilder, binding: relax.VarBinding, value: Expr) -> Expr:
        result = value
        if binding.var in starts:
            result = _emit_linear(builder, binding, starts[binding.var], rebuilt)
        elif binding.var in starts_of:
            result = rebuilt[starts_of[binding.var]]
            fold = ends.get(binding.var)
            if fold is not None and fold.shift is not None:
                result = relax.op.add(result, fold.shift)
        if not isinstance(result, (relax.Var, Constant)):
            result = builder.emit(result, binding.var.name)
        rebuilt[binding.var] = result
        return result

    return with_main(mod, without_dead_code(rewrite(mod["main"], visit)))


def _emit_linear(builder: GraphBuilder, binding: relax.VarBinding, fold: _Fold, rebuilt: dict[relax.Var, Expr]) -> Expr:
    call = binding.value
    source = rebuilt.get(fold.source, fold.source)
    weight = constant(fold.weight.astype(np.float32))
    result = builder.emit(relax.Call(call.op, [source, weight], call.attrs, call.ty_args), binding.var.name)
    if fold.shift is None or fold.chain:
        return result
    return builder.emit(relax.op.add(result, fold.shift), binding.var.name)
