"""What rounding each group's operands, and each tensor's storage, does to the network's output.

The measure is the noise-to-signal ratio of the float outputs: the mean over their elements of
``((y' - y) / std)**2``, std being the output's standard deviation over the calibration data. To first order a rounding
error delta of an operand changes the output by J delta. For r drawn from the unit normal distribution,
``E <r, J delta>**2 = ||J delta||**2`` (Hutchinson 1990, A stochastic estimator of the trace), and
``<r, J delta> = <J' r, delta>``: one backward pass from r gives the products for all operands of all groups at once.

Per sample there is one forward and one backward pass in FP32. Gradients are turned into scalar products as they
arrive and dropped, so memory is that of one backward pass plus, in 16 bits, the rounding errors of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from tvm import relax

from ..errors import DataError
from ..ir import EPILOGUE_KINDS, MOVEMENT_KINDS, Group
from ..operators.semantics import Value
from ..precision import BFLOAT16, FLOAT16, FP16_BLOCK, LACKING_PRECISIONS, Precision, PrecisionPlan, QParams, Storage
from .evaluator import Evaluator, Inputs
from .numerics import GroupProgram, Stored, as_stored, rounded_weights
from .statistics import TensorStatistics

Progress = Callable[[int, int], None]
_STORAGE_PRECISIONS = {"float16": Precision.FP16, "bfloat16": Precision.BF16, "uint8": Precision.INT8}
# Kinds that round what they compute inside: probabilities, states.
_ROUNDING_INSIDE = ("attention", "recurrent")
# Noise of FP16 products in units of what rounding their operands makes. A sum of k products in float16 is rounded
# relative to sqrt(k) of them, a product twice relative to one, by the roundings of its operands. On matrix tiles, which
# add up in float32, it is an upper bound.
_FP16_SUMS = 1.0 + (FP16_BLOCK + 1) / 4


@dataclass(frozen=True)
class Sensitivities:
    """Predicted noise-to-signal ratios of the network's output. FP32 and float32 have none.

    compute : by (group, precision): when the group's multiply-adds read their operands and weights in that precision.
        Only precisions that the group has.
    storage : by (tensor, dtype): when those readers that may read any storage (float kinds, epilogue operands, the
        unmultiplied operands of attention) read the tensor in this storage. Movement groups pass storage on: what is
        read behind them counts for the tensor they write.
    samples : the number of samples behind the estimate.
    """

    compute: Mapping[tuple[str, Precision], float]
    storage: Mapping[tuple[str, str], float]
    samples: int


def output_scales(evaluator: Evaluator, statistics: Mapping[str, TensorStatistics]) -> dict[str, float]:
    """The standard deviation of every floating point output by name, 1 for an output that never changes."""
    return {name: statistics[name].std or 1.0 for name in evaluator.outputs if name in statistics}


def estimate_sensitivities(
    evaluator: Evaluator, samples: Sequence[Inputs], qparams: Mapping[str, QParams], scales: Mapping[str, float], *,
    seed: int = 0, draws: int = 1, per_channel: bool = True,
    precisions: Sequence[Precision] = (Precision.BF16, Precision.INT8), progress: Progress | None = None,
) -> Sensitivities:
    """Estimate all sensitivities over ``samples``.

    qparams : the u8 parameters by tensor; a tensor without them has no uint8 entries, nor has a group that reads it.
    scales : of the float outputs, from ``output_scales``.
    draws : random directions per sample, each one backward pass; the estimate's relative standard error is about
        ``sqrt(2 / (samples * draws))`` where one direction of the output dominates.
    per_channel : whether INT8 weights have a scale per output channel.
    precisions : that groups may have; BF16 and INT8, whose storages every target has, are always among them.
    progress : called as ``progress(done, total)`` after each of ``samples``.

    The same arguments give the same result. Raises DataError where there are no samples, no float output, or a
    gradient is not finite.
    """
    if not samples:
        raise DataError("sensitivities need at least one sample")
    pass_ = _BackwardPass(evaluator, qparams, scales, per_channel, Precision.FP16 in precisions)
    totals: dict[_Key, float] = dict.fromkeys(pass_.keys, 0.0)
    count, generator = 0, torch.Generator().manual_seed(seed)
    for done, inputs in enumerate(samples, start=1):
        for sample in evaluator.samples_of(inputs):
            for products in pass_.run(sample, generator, draws):
                for key, product in products.items():
                    totals[key] += product**2
            count += 1
        if progress is not None:
            progress(done, len(samples))
    elements = count * draws * pass_.output_elements
    kinds = {g.name: g.kind for g in evaluator.groups}
    compute = {(name, p): total / elements * (_FP16_SUMS if p is Precision.FP16 and kinds[name] != "depthwise" else 1.0)
               for (name, p), total in totals.items() if isinstance(p, Precision)}
    storage = {(name, d): total / elements for (name, d), total in totals.items() if not isinstance(d, Precision)}
    return Sensitivities(compute, storage, count)


@torch.no_grad()
def measure_noise(evaluator: Evaluator, samples: Sequence[Inputs], plan: PrecisionPlan,
                  scales: Mapping[str, float]) -> float:
    """The noise-to-signal ratio that a whole plan really has, by running it: what the estimates predict."""
    total, elements = 0.0, 0
    for inputs in samples:
        exact, found = evaluator.run_outputs(inputs), evaluator.run_outputs(inputs, plan)
        for name, a, b in zip(evaluator.outputs, exact, found, strict=True):
            if name in scales:
                total += float(((a.double() - b.double()) / scales[name]).square().sum())
                elements += a.numel()
    if not elements:
        raise DataError("noise needs at least one sample and a floating point output")
    return total / elements


_Key = tuple[str, "Precision | str"]


class _BackwardPass:
    """Forward in FP32 with a hook on every edge and weight, then backward from a random direction."""

    def __init__(self, evaluator: Evaluator, qparams: Mapping[str, QParams], scales: Mapping[str, float],
                 per_channel: bool, has_fp16: bool) -> None:
        self.evaluator = evaluator
        self.scales = scales
        self.per_channel = per_channel
        floats = [FLOAT16, BFLOAT16] if has_fp16 else [BFLOAT16]
        self.storages = {s.dtype: dict.fromkeys(_float_tensors(evaluator, qparams), s) for s in floats}
        self.storages["uint8"] = {name: Storage("uint8", q) for name, q in qparams.items()}
        self.precisions = {g.name: self._precisions(g) for g in evaluator.groups}
        self.weight_errors = {
            (name, precision): self._weight_error(program, precision, per_channel)
            for name, program in evaluator.programs.items() if program.weight is not None
            for precision in self.precisions[name]}
        self.keys: list[_Key] = [(name, p) for name, ps in self.precisions.items() for p in ps]
        self.keys += [(tensor, dtype) for dtype, tensors in self.storages.items() for tensor in tensors]
        self.output_elements = 0

    def _precisions(self, group: Group) -> list[Precision]:
        if not group.exact_inputs:
            return []
        lacking = set(LACKING_PRECISIONS.get(group.kind, ()))
        if not all(group.inputs[i] in self.storages["uint8"] for i in group.exact_inputs):
            lacking.add(Precision.INT8)
        return [p for dtype, p in _STORAGE_PRECISIONS.items() if dtype in self.storages and p not in lacking]

    @staticmethod
    def _weight_error(program: GroupProgram, precision: Precision, per_channel: bool) -> torch.Tensor:
        weights = program.constants[program.weight]
        rounded = rounded_weights(weights, program.group.anchor.value, precision, per_channel=per_channel)
        return (rounded - weights).bfloat16()

    def run(self, sample: Mapping[str, torch.Tensor], generator: torch.Generator,
            draws: int) -> Iterator[dict[_Key, float]]:
        """The scalar products of one sample by key, for each of ``draws`` directions."""
        values: dict[str, Value] = {name: _differentiable(x) for name, x in sample.items()}
        extents = self.evaluator.extents_of(sample)
        for binding in self.evaluator.bindings:
            name, expr = binding.var.name, binding.value
            if isinstance(expr, relax.TupleGetItem):
                values[name] = values[expr.tuple_value.name][expr.index]
            else:
                values[name] = self._group(self.evaluator.programs[name].at(extents), values)
        outputs = [(y, self.scales[name]) for name in self.evaluator.outputs if name in self.scales
                   and isinstance(y := values[name], torch.Tensor) and y.is_floating_point()]
        del values
        self.output_elements = sum(y.numel() for y, _ in outputs)
        if not outputs:
            raise DataError("the network has no floating point output to measure noise on")
        for draw in range(draws):
            self.products: dict[_Key, float] = {}
            objective = sum(((torch.randn(y.shape, generator=generator) * y).sum() / scale for y, scale in outputs),
                            torch.zeros(()))
            if objective.requires_grad:
                objective.backward(retain_graph=draw + 1 < draws)
            yield self.products

    def _group(self, program: GroupProgram, values: Mapping[str, Value]) -> Value:
        group = program.group
        edges = [self._edge(group, i, values[name]) for i, name in enumerate(group.inputs)]
        if program.weight is not None:
            program = copy.copy(program)
            program.constants = {**program.constants, program.weight: self._weight(program)}
        value = program.finish(dict(zip(program.params, edges, strict=True)), 0)
        results = tuple(_differentiable(v) for v in (value if isinstance(value, tuple) else (value,)))
        if group.kind in _ROUNDING_INSIDE:
            errors = cache(partial(self._errors, program, [e.detach() for e in edges if isinstance(e, torch.Tensor)]))
            for index, result in enumerate(results):
                _on_gradient(result, partial(self._add_all, group.name, errors, index))
        return results if isinstance(value, tuple) else results[0]

    def _edge(self, group: Group, index: int, value: Value) -> Value:
        """The tensor as this reader reads it: a view of its own, whose gradient is multiplied with rounding errors."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or group.kind in MOVEMENT_KINDS:
            return value
        tensor, exact = group.inputs[index], index in group.exact_inputs
        if group.kind not in EPILOGUE_KINDS or (exact and group.kind in _ROUNDING_INSIDE):
            return value
        edge, plain = value.view_as(value), value.detach()

        def multiply(gradient: torch.Tensor) -> None:
            for dtype, precision in _STORAGE_PRECISIONS.items():
                storage = self.storages.get(dtype, {}).get(tensor)
                if storage is None or (exact and precision not in self.precisions[group.name]):
                    continue
                error = Stored.of(plain, storage).real - plain
                self._add((group.name, precision) if exact else (tensor, dtype), gradient, error)

        _on_gradient(edge, multiply)
        return edge

    def _weight(self, program: GroupProgram) -> torch.Tensor:
        name = program.group.name
        leaf = program.constants[program.weight].detach().requires_grad_()

        def multiply(parameter: torch.Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                for precision in self.precisions[name]:
                    self._add((name, precision), gradient, self.weight_errors[name, precision].float())

        leaf.register_post_accumulate_grad_hook(multiply)
        return leaf

    @torch.no_grad()
    def _errors(self, program: GroupProgram, edges: Sequence[torch.Tensor]) -> dict[Precision, list[torch.Tensor]]:
        """By precision, what a group that rounds inside lacks to FP32 where its results leave it."""
        group = program.group

        def results(precision: Precision, stored: Sequence[Stored]) -> tuple[torch.Tensor, ...]:
            value = program.compute(stored, precision, per_channel=self.per_channel)
            return value if isinstance(value, tuple) else (value,)

        plain, errors = [as_stored(e) for e in edges], {}
        exact = results(Precision.FP32, plain)
        for precision in self.precisions[group.name]:
            storages = self.storages[precision.storage_dtype]
            stored = [Stored.of(e, storages[group.inputs[i]]) if i in group.exact_inputs else plain[i]
                      for i, e in enumerate(edges)]
            errors[precision] = [a - b for a, b in zip(results(precision, stored), exact, strict=True)]
        return errors

    def _add_all(self, name: str, errors: Callable[[], dict[Precision, list[torch.Tensor]]], index: int,
                 gradient: torch.Tensor) -> None:
        for precision, error in errors().items():
            self._add((name, precision), gradient, error[index])

    def _add(self, key: _Key, gradient: torch.Tensor, error: torch.Tensor) -> None:
        product = float((gradient * error).sum(dtype=torch.float64))
        if product != product or abs(product) == float("inf"):
            raise DataError("the gradient is not finite", layer=key[0],
                            hint="look for divisions by zero or overflow in the layers behind it")
        self.products[key] = self.products.get(key, 0.0) + product


def _float_tensors(evaluator: Evaluator, qparams: Mapping[str, QParams]) -> list[str]:
    """Names of the floating point tensors that some group reads, and of all that have parameters."""
    read = dict.fromkeys(qparams)
    for program in evaluator.programs.values():
        for param, name in zip(program.params, program.group.inputs, strict=True):
            if isinstance(param.ty, relax.TensorType) and str(param.ty.dtype).startswith("float"):
                read[name] = None
    return list(read)


def _differentiable(value: torch.Tensor) -> torch.Tensor:
    if value.is_floating_point() and not value.requires_grad:
        return value.detach().requires_grad_()
    return value


def _on_gradient(tensor: torch.Tensor, use: Callable[[torch.Tensor], None]) -> None:
    """Call ``use`` with the gradient of ``tensor`` when it arrives, leaving the gradient as it is."""
    if tensor.requires_grad:
        tensor.register_hook(lambda gradient: use(gradient.detach()))
