"""What fusion groups compute in each precision, as the kernels do (docs/design.md, "Numerics").

Integer products are exact: they run in float32 where the largest possible sum is below 2**24 (every partial sum is
then an integer that float32 holds), else in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tvm import relax

from ..dims import NO_SYMBOLS
from ..errors import PlanError, VerificationError
from ..ir import COMPUTE_KINDS, Constant, Expr, Group, constant_value, op_name, outputs_of
from ..operators.quantization import (
    PROBABILITY_LEVELS,
    grid_of,
    quantize_matrices,
    quantize_weights,
    rounding_behind,
    scale_and_offset,
    sum_factors,
    summands,
    weight_channel_axis,
)
from ..operators.recurrent import operands_of, recurrence_of
from ..operators.reference import evaluate_call, evaluate_tensor, leaves_of
from ..operators.reference_nn import attention_scores
from ..operators.reference_recurrent import Products, evaluate_layer
from ..operators.semantics import Value, tensor_of
from ..precision import FLOAT32, LACKING_PRECISIONS, Precision, QParams, Storage
from .recurrent_products import IntegerProducts, RoundedProducts, Rounding

_ROUNDED_TO = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
_EXACT_IN_FLOAT32 = 2**24


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in memory: ``data`` is float32, float16, bfloat16, uint8 or the tensor's own type (integer,
    boolean, float64)."""

    data: torch.Tensor
    storage: Storage

    @classmethod
    def of(cls, real: torch.Tensor, storage: Storage) -> Stored:
        """Convert float32 values, as a kernel does when it writes them."""
        if storage.qparams is not None:
            return cls(quantize(real, storage.qparams).to(torch.uint8), storage)
        return cls(real.to(getattr(torch, storage.dtype)), storage)

    @property
    def real(self) -> torch.Tensor:
        """The values in float32 (tensors of other types as they are)."""
        if self.storage.qparams is not None:
            return dequantize(self.data, self.storage.qparams)
        return self.data.float() if self.data.dtype in (torch.float16, torch.bfloat16) else self.data


def quantize(real: torch.Tensor, qparams: QParams) -> torch.Tensor:
    """The levels 0…255 of float32 values, as integer-valued float32."""
    return (torch.round(real * qparams.inverse_scale) + qparams.zero_point).clamp(0, 255)


def dequantize(levels: torch.Tensor, qparams: QParams) -> torch.Tensor:
    """``(q - z) * s`` in float32."""
    return (levels.float() - qparams.zero_point) * qparams.scale


def channel_axis(call: relax.Call, rank: int) -> int:
    """The axis of the output channels of the result of a convolution or a matmul."""
    return rank - 1 if op_name(call) == "relax.matmul" else str(call.attrs.out_layout).index("C")


def rounded_weights(weights: torch.Tensor, call: relax.Call, precision: Precision, *,
                    per_channel: bool) -> torch.Tensor:
    """The float32 values that a weight stands for when the anchor ``call`` computes in ``precision``."""
    if precision is Precision.INT8:
        axis = weight_channel_axis(call)
        levels, scales = quantize_weights(weights.detach().numpy(), axis, per_channel=per_channel)
        along = [-1 if a == axis % weights.dim() else 1 for a in range(weights.dim())]
        return torch.from_numpy(levels).float() * torch.from_numpy(scales).reshape(along)
    return round_to(weights, precision)


def round_to(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Values rounded to nearest even in a floating point precision, as float32."""
    return values if precision is Precision.FP32 else values.to(_ROUNDED_TO[precision]).float()


def probability_levels(scores: torch.Tensor) -> torch.Tensor:
    """What INT8 multiplies with the values: u8 levels, as float32, of the powers of the scores [..., keys]."""
    powers = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return torch.round(powers * PROBABILITY_LEVELS)


class GroupProgram:
    """A fusion group ready to be evaluated: its bindings, and ``constants``, the values of the constants among them."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.bindings = group.bindings
        self.params = group.parameters
        self.extents: Mapping[str, int] = NO_SYMBOLS
        self.results = outputs_of(group.function)
        self.is_tuple = isinstance(group.function.ret_ty, relax.TupleType)
        self.constants = {leaf: tensor_of(constant_value(leaf)) for b in self.bindings for leaf in leaves_of(b.value)
                          if isinstance(leaf, Constant)}
        self._levels: dict[tuple[Constant, bool], tuple[np.ndarray, np.ndarray]] = {}

    def at(self, extents: Mapping[str, int]) -> GroupProgram:
        """This program where the symbols have these extents."""
        if not self.group.symbols:
            return self
        bound = copy.copy(self)
        bound.extents = extents
        return bound

    def widened(self, bindings: int | None = None) -> GroupProgram:
        """This program in float64; with ``bindings``, only its first ones, the result being the last of them."""
        wide = copy.copy(self)
        wide.constants = {c: v.double() if v.is_floating_point() else v for c, v in self.constants.items()}
        if bindings is not None:
            wide.bindings = self.bindings[:bindings]
            wide.results, wide.is_tuple = [wide.bindings[-1].var], False
        return wide

    @property
    def weight(self) -> Constant | None:
        """The constant that the anchor multiplies with, if it does."""
        call = self.group.anchor.value if self.group.kind in ("conv", "depthwise", "matmul") else None
        return call.args[1] if call is not None else None

    def weight_levels(self, per_channel: bool) -> tuple[np.ndarray, np.ndarray]:
        """``quantize_weights`` of the weight; computed once."""
        key = (self.weight, per_channel)
        if key not in self._levels:
            axis = weight_channel_axis(self.group.anchor.value)
            weights = self.constants[self.weight].detach().numpy()
            self._levels[key] = quantize_weights(weights, axis, per_channel=per_channel)
        return self._levels[key]

    def matrix_levels(self, leaf: Constant, per_channel: bool) -> tuple[np.ndarray, np.ndarray]:
        """``quantize_matrices`` of a constant of a recurrent layer; computed once."""
        key = (leaf, per_channel)
        if key not in self._levels:
            self._levels[key] = quantize_matrices(self.constants[leaf].detach().numpy(), per_channel=per_channel)
        return self._levels[key]

    def compute(self, inputs: Sequence[Stored], precision: Precision, *, per_channel: bool = True,
                correction: Sequence[float] = ()) -> Value:
        """The group's value (float32, or of an opaque group's own types) before it is converted to its storages."""
        values, done = self.start(inputs, precision, per_channel=per_channel, correction=correction)
        return self.finish(values, done, inputs)

    def anchor_error(self, exact: Sequence[Stored], stored: Sequence[Stored], precision: Precision, *,
                     per_channel: bool = True) -> torch.Tensor:
        """The mean over everything but the output channel of what the anchor's value in ``precision``, on ``stored``
        inputs, lacks to its FP32 value on ``exact`` ones; [channels]."""
        values, done = self.start(stored, precision, per_channel=per_channel)
        wanted, _ = self.start(exact, Precision.FP32)
        for binding in self.bindings[1:done]:
            wanted[binding.var] = self._evaluate(binding, wanted)
        last = self.bindings[done - 1].var
        found, expected = values[last], wanted[last]
        assert isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor)
        axis = channel_axis(self.bindings[0].value, found.dim())
        return (expected - found).movedim(axis, -1).flatten(0, -2).mean(dim=0)

    def start(self, inputs: Sequence[Stored], precision: Precision, *,
              per_channel: bool = True, correction: Sequence[float] = (),
              flips: torch.Generator | None = None) -> tuple[dict[relax.Var, Value], int]:
        """Evaluate the anchor only: the values so far, and how many bindings they cover; the last of these is the
        anchor's float32 value, with the bias where that is merged. Where it is rounded to a grid at once, the
        rounding's value is there as well.

        flips : of ``recurrent_products.Rounding``.
        """
        operands = dict(zip(self.params, inputs, strict=True))
        values: dict[relax.Var, Value] = {p: s.real for p, s in operands.items()}
        first = self.bindings[0]
        if precision is Precision.FP32 or self.group.kind not in COMPUTE_KINDS:
            values[first.var] = self._evaluate(first, values)
            return values, 1
        if first.var.name != self.group.name:
            raise VerificationError("a group with a prologue has no low precision", layer=self.group.name)
        anchor = _Anchor(self, operands, precision, per_channel, correction)
        if self.group.kind == "recurrent":
            values[first.var] = anchor.recurrent(Rounding(flips))
            return values, 1
        y, done, rounded = anchor.compute()
        values[self.bindings[done - 1].var] = y
        if rounded is not None:
            values[self.bindings[done].var] = rounded
        return values, done

    def finish(self, values: dict[relax.Var, Value], done: int, inputs: Sequence[Stored] = ()) -> Value:
        """Evaluate the bindings from number ``done`` on in float32, the earlier ones' values given.

        inputs : what the group reads, where levels are to be added as kernels add them.
        """
        grids = {p: s.storage.qparams for p, s in zip(self.params, inputs, strict=False)}
        for binding in self.bindings[done:]:
            if binding.var not in values:
                total = self._rounded_sum(binding, values, grids) if inputs else None
                values[binding.var] = self._evaluate(binding, values) if total is None else total
            grid = grid_of(binding.value)
            grids[binding.var] = grid.qparams if grid is not None else None
        results: list[torch.Tensor] = []
        for result in self.results:
            value = self.value_of(result, values)
            results.extend(value if isinstance(value, tuple) else (value,))
        return tuple(results) if self.is_tuple else results[0]

    def _rounded_sum(self, binding: relax.VarBinding, values: Mapping[relax.Var, Value],
                     grids: Mapping[relax.Var, QParams | None]) -> torch.Tensor | None:
        """The value of a rounded sum of two tensors on grids, computed from their levels; None for anything else."""
        operands = summands(self.bindings, binding)
        qparams = [grids.get(v) for v in operands]
        grid = grid_of(binding.value)
        if len(operands) != 2 or qparams[0] is None or qparams[1] is None or grid is None or grid.qparams is None:
            return None
        levels = [torch.round(tensor / torch.tensor(q.scale)).double() + q.zero_point
                  for v, q in zip(operands, qparams, strict=True)
                  if q is not None and isinstance(tensor := values[v], torch.Tensor)]
        first, second, fixed = sum_factors(qparams[0], qparams[1], grid)
        steps = (levels[0] * first + (levels[1] * second + fixed).float().double()).float()
        return dequantize(torch.round(steps).clamp(0, grid.high - grid.low), grid.qparams)

    def value_of(self, leaf: Expr, values: dict[relax.Var, Value]) -> Value:
        """The value of a variable or a constant."""
        return self.constants[leaf] if isinstance(leaf, Constant) else values[leaf]

    def _evaluate(self, binding: relax.VarBinding, values: dict[relax.Var, Value]) -> Value:
        expr = binding.value
        if isinstance(expr, relax.TupleGetItem):
            return values[expr.tuple_value][expr.index]
        if isinstance(expr, (relax.Var, Constant)):
            return self.value_of(expr, values)
        if isinstance(expr, relax.Tuple):
            return tuple(self.value_of(f, values) for f in expr.fields)  # type: ignore[misc]
        leaves = [self.value_of(leaf, values) for leaf in leaves_of(expr)]
        return evaluate_call(expr, leaves, binding.var.name, self.extents)


@dataclass(frozen=True)
class _Anchor:
    """The first op of a compute group in a precision below FP32."""

    program: GroupProgram
    operands: dict[relax.Var, Stored]
    precision: Precision
    per_channel: bool
    correction: Sequence[float]

    @property
    def call(self) -> relax.Call:
        return self.program.bindings[0].value

    def compute(self) -> tuple[torch.Tensor, int, torch.Tensor | None]:
        """The anchor's value in float32, how many bindings it covers (two where a bias is merged), and the value of the
        rounding behind these where integers are rounded at once."""
        name, kind = self.program.group.name, self.program.group.kind
        if kind == "attention":
            return (self._integer_attention() if self.precision is Precision.INT8 else self._attention()), 1, None
        if self.precision is not Precision.INT8:
            operands = [self._rounded(a) for a in self.call.args]
            return evaluate_tensor(self.call, operands, name, self.program.extents), 1, None
        return (self._batched(), 1, None) if kind == "batched_matmul" else self._integer()

    def recurrent(self, rounding: Rounding) -> Value:
        """The results of a recurrent layer."""
        group = self.program.group
        if self.precision in LACKING_PRECISIONS[group.kind]:
            raise PlanError(f"recurrent layers have no {self.precision.upper()} form", layer=group.name)
        form, operands = recurrence_of(self.call), operands_of(self.call)
        x, w, r = (operands[n] for n in ("x", "w", "r"))
        products: list[Products]
        if self.precision is Precision.INT8:
            levels, qparams = self._centred(x)
            w_own, r_own = (zip(*self.program.matrix_levels(e, self.per_channel), strict=True) for e in (w, r))
            products = [IntegerProducts.of(a, b, qparams.scale, rounding) for a, b in zip(w_own, r_own, strict=True)]
        else:
            levels = self._rounded(x)
            weights = zip(self._rounded(w), self._rounded(r), strict=True)
            products = [RoundedProducts(*own, rounding) for own in weights]
        tensors = {n: self._real(e) for n, e in operands.items()}
        return evaluate_layer(form, {**tensors, "x": levels}, products)

    def _real(self, expr: Expr) -> torch.Tensor:
        return self.program.constants[expr] if isinstance(expr, Constant) else self.operands[expr].real

    def _rounded(self, expr: Expr) -> torch.Tensor:
        return round_to(self._real(expr), self.precision)

    def _bias_of_scores(self) -> torch.Tensor | None:
        return self._real(self.call.args[3]) if len(self.call.args) > 3 else None

    def _attention(self) -> torch.Tensor:
        q, k, v = (self._rounded(a) for a in self.call.args[:3])
        probabilities = torch.softmax(attention_scores(q, k, self._bias_of_scores(), self.call), dim=-1)
        return torch.matmul(round_to(probabilities, self.precision), v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)

    def _integer_attention(self) -> torch.Tensor:
        (q, of_q), (k, of_k), (v, of_v) = map(self._centred, self.call.args[:3])
        unit = np.float64(of_q.scale) * of_k.scale
        scores = attention_scores(q.double() * float(unit), k.double(), self._bias_of_scores(), self.call).float()
        levels = probability_levels(scores).double()
        sums = torch.matmul(levels, v.double().permute(0, 2, 1, 3))
        return (sums * (of_v.scale / levels.sum(dim=-1, keepdim=True))).float().permute(0, 2, 1, 3)

    def _centred(self, expr: Expr) -> tuple[torch.Tensor, QParams]:
        stored = self.operands[expr]
        qparams = stored.storage.qparams
        if qparams is None:
            raise PlanError("an INT8 operand must be stored in uint8", layer=self.program.group.name,
                            found=stored.storage.dtype)
        return stored.data.float() - qparams.zero_point, qparams

    def _batched(self) -> torch.Tensor:
        (a, qa), (b, qb) = map(self._centred, self.call.args)
        bound = float(a.abs().max()) * float(b.abs().max()) * a.shape[-1]
        sums = self._exactly(a, b, bound)
        return sums.float() * float(np.float32(np.float64(qa.scale) * qb.scale))

    def _exactly(self, a: torch.Tensor, b: torch.Tensor, bound: float) -> torch.Tensor:
        if bound >= _EXACT_IN_FLOAT32:
            a, b = a.double(), b.double()
        return evaluate_tensor(self.call, [a, b], self.program.group.name, self.program.extents).double()

    def _integer(self) -> tuple[torch.Tensor, int, torch.Tensor | None]:
        """``acc * scale + offset`` with the accumulator of a kernel whose padding holds the zero point."""
        x, qparams = self._centred(self.call.args[0])
        levels, scales = self.program.weight_levels(self.per_channel)
        weights = torch.from_numpy(levels).float()
        by_channel = np.moveaxis(levels, weight_channel_axis(self.call), -1)
        absolute = np.abs(by_channel.astype(np.int64)).reshape(-1, len(scales)).sum(axis=0)
        bound = float(absolute.max(initial=0)) * max(qparams.zero_point, 255 - qparams.zero_point)
        centred = self._exactly(x, weights, bound)
        sums = by_channel.reshape(-1, len(scales)).astype(np.int64).sum(axis=0)
        accumulators = centred + self._along_channels(qparams.zero_point * sums, centred.dim())
        bias = self._bias(len(scales))
        done = 1 if bias is None else 2
        grid = rounding_behind(self.program.bindings, done)
        scale, offset = scale_and_offset(by_channel, scales, qparams, None if bias is None else bias.numpy(),
                                         self.correction, grid)
        factor, addend = (self._along_channels(a, centred.dim()) for a in (scale, offset))
        if offset.dtype == np.int32:
            y = (accumulators + addend).float() * factor
        else:
            y = accumulators.float() * factor + addend
        if grid is None:
            return y, done, None
        inside = torch.round(y).clamp(grid.low - grid.zero_point, grid.high - grid.zero_point)
        return y * grid.scale, done, inside * grid.scale

    def _along_channels(self, values: np.ndarray, rank: int) -> torch.Tensor:
        axis = channel_axis(self.call, rank)
        return torch.from_numpy(values).reshape([-1 if a == axis else 1 for a in range(rank)])

    def _bias(self, channels: int) -> torch.Tensor | None:
        """The constant along the last axis (or the scalar) that the next binding adds to the anchor's value, where
        nothing else reads that; it is merged into the offset."""
        bindings = self.program.bindings
        anchor = bindings[0].var
        readers = [b for b in bindings if any(leaf.same_as(anchor) for leaf in leaves_of(b.value))]
        if len(bindings) < 2 or len(readers) != 1 or not readers[0].var.same_as(bindings[1].var):
            return None
        call = bindings[1].value
        if op_name(call) not in ("relax.add", "relax.subtract"):
            return None
        left, right = call.args
        if isinstance(left, Constant) and op_name(call) == "relax.add":
            left, right = right, left
        if not (left.same_as(anchor) and isinstance(right, Constant)):
            return None
        values = self.program.constants[right]
        if values.numel() not in (1, values.shape[-1] if values.dim() else 1):
            return None
        sign = -1.0 if op_name(call) == "relax.subtract" else 1.0
        return (sign * values).flatten().expand(channels)


def as_stored(values: torch.Tensor) -> Stored:
    """A tensor of the user's: float32, or its own integer or boolean type, or float64."""
    if values.dtype in (torch.float16, torch.bfloat16):
        return Stored(values.float(), FLOAT32)
    return Stored(values, Storage(str(values.dtype).removeprefix("torch.")))
