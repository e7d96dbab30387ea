"""The reference evaluator: a grouped module run in PyTorch under a plan, as the kernels compute it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import tvm
from tvm import relax

from ..errors import DataError, PlanError
from ..ir import (
    MOVEMENT_KINDS,
    Group,
    groups_of,
    is_static,
    op_bindings,
    outputs_of,
    shape_of,
    tensors_of,
    variables_of,
)
from ..operators.reference import extents_of, learn_extents
from ..operators.semantics import Value, torch_dtype
from ..precision import FLOAT32, Decision, Precision, PrecisionPlan, Storage, readable
from .numerics import GroupProgram, Stored, as_stored

Inputs = Mapping[str, torch.Tensor | np.ndarray] | Sequence[torch.Tensor | np.ndarray]
Visit = Callable[[str, torch.Tensor], None]


@dataclass(frozen=True)
class Evaluation:
    """What running a plan computed.

    values : by tensor name (model inputs, groups, elements of tuples), float32: what a consumer that may read any
        storage reads. Integer tensors keep their type.
    materialised : by tensor name and storage type, what lies in memory: float32, float16, bfloat16, uint8 levels.
    outputs : what the network returns, in order, as float32 or their own type.
    extents : of the symbols, by name, of the last sample.
    """

    values: dict[str, torch.Tensor]
    materialised: dict[tuple[str, str], torch.Tensor]
    outputs: tuple[torch.Tensor, ...]
    extents: Mapping[str, int]


class Evaluator:
    """Runs a module in grouped form. Constants are converted once and shared by all runs.

    Inputs are arrays by name or in order, of the shapes of ``main``'s parameters; where all have a leading axis that is
    the same multiple of the parameter's, they are a batch and run one after the other, each with exactly the shapes of
    the program. Where a dim is symbolic they are one sample. DataError for inputs that do not fit.
    """

    def __init__(self, grouped_mod: tvm.IRModule) -> None:
        main = grouped_mod["main"]
        self.params = tensors_of(main)
        self.bindings = op_bindings(main)
        self.outputs = [v.name for v in outputs_of(main)]
        self.programs = {g.name: GroupProgram(g) for g in groups_of(grouped_mod)}
        self._last_use: dict[str, int] = {}
        for i, binding in enumerate(self.bindings):
            self._last_use.update((v.name, i) for v in variables_of(binding.value))
        self._last_use.update((name, len(self.bindings)) for name in self.outputs)

    @property
    def groups(self) -> list[Group]:
        """The groups in execution order."""
        return [p.group for p in self.programs.values()]

    @torch.no_grad()
    def run(self, inputs: Inputs, plan: PrecisionPlan | None = None) -> dict[str, torch.Tensor]:
        """The float32 value of every tensor by name; without a plan everything is FP32."""
        return self.evaluate(inputs, plan).values

    @torch.no_grad()
    def run_outputs(self, inputs: Inputs, plan: PrecisionPlan | None = None) -> tuple[torch.Tensor, ...]:
        """Only what the network returns; everything else is dropped after its last use."""
        return self.evaluate(inputs, plan, keep=()).outputs

    @torch.no_grad()
    def visit(self, inputs: Inputs, visit: Visit, plan: PrecisionPlan | None = None) -> None:
        """Call ``visit(name, values)`` for every floating point tensor as it is computed, model inputs included, and
        keep nothing."""
        self.evaluate(inputs, plan, keep=(), visit=visit)

    @torch.no_grad()
    def evaluate(self, inputs: Inputs, plan: PrecisionPlan | None = None, *, keep: Collection[str] | None = None,
                 visit: Visit | None = None) -> Evaluation:
        """Run, keeping the tensors in ``keep`` (None: all).

        Raises PlanError where the plan lacks a decision or stores nothing that a consumer can read.
        """
        runs = [_Run(self, plan, keep, visit).execute(sample) for sample in self.samples_of(inputs)]
        return runs[0] if len(runs) == 1 else _concatenated(runs)

    def samples_of(self, inputs: Inputs) -> Iterator[dict[str, torch.Tensor]]:
        """The inputs by name, cut into samples of the shapes of ``main``'s parameters, each of its type."""
        named = self._named(inputs)
        if not all(is_static(p) for p in self.params):
            yield named
            return
        counts = {name: self._count(param, named[name]) for name, param in ((p.name, p) for p in self.params)}
        if len(set(counts.values())) > 1:
            raise DataError("the inputs have different batch sizes", found=counts)
        for i in range(next(iter(counts.values()), 1)):
            yield {p.name: _slice(named[p.name], i, shape_of(p)) for p in self.params}

    def extents_of(self, sample: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """The symbols' extents in one sample, by name."""
        return extents_of(self.params, [sample[p.name] for p in self.params])

    def _named(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        names = [p.name for p in self.params]
        if isinstance(inputs, Mapping):
            given = dict(inputs)
        else:
            given = dict(zip(names, inputs, strict=False)) if len(inputs) == len(names) else {}
        if set(given) != set(names):
            raise DataError("the inputs are not those of the network", expected=names,
                            found=sorted(given) if isinstance(inputs, Mapping) else f"{len(inputs)} arrays")
        return {p.name: torch.as_tensor(given[p.name]).to(torch_dtype(p.ty.dtype)) for p in self.params}

    @staticmethod
    def _count(param: relax.Var, values: torch.Tensor) -> int:
        expected, found = shape_of(param), tuple(values.shape)
        if found == expected:
            return 1
        if expected and len(found) == len(expected) and found[1:] == expected[1:] and found[0] and expected[0] \
                and found[0] % expected[0] == 0:
            return found[0] // expected[0]
        raise DataError("an input has the wrong shape", layer=param.name, found=found, expected=expected)


def _slice(values: torch.Tensor, index: int, shape: tuple[int, ...]) -> torch.Tensor:
    return values[index * shape[0]:(index + 1) * shape[0]] if tuple(values.shape) != shape else values


def _concatenated(runs: Sequence[Evaluation]) -> Evaluation:
    def join(parts: Iterable[torch.Tensor]) -> torch.Tensor:
        tensors = list(parts)
        return torch.cat(tensors) if tensors[0].dim() else torch.stack(tensors)

    return Evaluation({k: join([r.values[k] for r in runs]) for k in runs[0].values},
                      {k: join([r.materialised[k] for r in runs]) for k in runs[0].materialised},
                      tuple(map(join, zip(*(r.outputs for r in runs), strict=True))), runs[-1].extents)


class _Run:
    """One sample through the network."""

    def __init__(self, evaluator: Evaluator, plan: PrecisionPlan | None, keep: Collection[str] | None,
                 visit: Visit | None) -> None:
        self.evaluator = evaluator
        self.plan = plan
        self.decisions = {d.op: d for d in plan.decisions} if plan is not None else {}
        self.keep = keep
        self.visit = visit
        self.stored: dict[str, list[Stored]] = {}
        self.tuples: dict[str, tuple[torch.Tensor, ...]] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.materialised: dict[tuple[str, str], torch.Tensor] = {}

    def execute(self, inputs: Mapping[str, torch.Tensor]) -> Evaluation:
        self.extents = self.evaluator.extents_of(inputs)
        for name, values in inputs.items():
            self._enter(name, [as_stored(values)])
        for position, binding in enumerate(self.evaluator.bindings):
            name, value = binding.var.name, binding.value
            if isinstance(value, relax.TupleGetItem):
                self._enter(name, [as_stored(self.tuples[value.tuple_value.name][value.index])])
            else:
                self._call(self.evaluator.programs[name].at(self.extents))
            for used in (*(v.name for v in variables_of(value)), name):
                self._drop(used, position)
        outputs = tuple(self._read(name).real for name in self.evaluator.outputs)
        return Evaluation(self.values, self.materialised, outputs, self.extents)

    def _drop(self, name: str, position: int) -> None:
        if self.evaluator._last_use.get(name, position) <= position:
            self.stored.pop(name, None)
            self.tuples.pop(name, None)

    def _decision(self, group: Group) -> Decision | None:
        if self.plan is None:
            return None
        if group.name not in self.decisions:
            raise PlanError("the plan has no decision for a group", layer=group.name)
        return self.decisions[group.name]

    def _call(self, program: GroupProgram) -> None:
        group, decision = program.group, self._decision(program.group)
        if decision is not None and group.kind in MOVEMENT_KINDS:
            self._enter(group.name, [self._moved(program, storage) for storage in decision.stores])
            return
        precision = decision.precision if decision is not None else Precision.FP32
        inputs = [self._read(name, self._required(group, i, precision)) for i, name in enumerate(group.inputs)]
        value = program.compute(inputs, precision, per_channel=decision is None or decision.per_channel,
                                correction=decision.correction if decision is not None else ())
        learn_extents(group.bindings[0], value, self.extents)
        if isinstance(value, tuple):
            self.tuples[group.name] = value
            return
        own = as_stored(value)
        stores = decision.stores if decision is not None and own.storage == FLOAT32 else (own.storage,)
        self._enter(group.name, [Stored.of(own.data, s) if s != own.storage else own for s in stores])

    def _required(self, group: Group, index: int, precision: Precision) -> Precision | None:
        return precision if self.plan is not None and index in group.exact_inputs else None

    def _moved(self, program: GroupProgram, storage: Storage) -> Stored:
        """The value of a movement group, whose inputs all lie in the storage that it writes."""
        inputs = [self._read(name, storage) for name in program.group.inputs]
        value: Value = program.compute(inputs, Precision.FP32)
        if isinstance(value, tuple):
            raise PlanError("a movement group computes one tensor", layer=program.group.name)
        return Stored.of(value, storage)

    def _read(self, name: str, required: Precision | Storage | None = None) -> Stored:
        found = self.stored[name]
        try:
            choice = readable([s.storage for s in found], required)
        except PlanError as error:
            raise PlanError(error.problem, layer=name, found=error.found, expected=error.expected) from error
        return next(s for s in found if s.storage == choice)

    def _enter(self, name: str, stored: list[Stored]) -> None:
        """Record a tensor's materialisations, those of stand-alone casts included."""
        self.stored[name] = stored
        for storage in self.plan.casts.get(name, ()) if self.plan is not None else ():
            stored.append(Stored.of(self._read(name).real, storage))
        best = self._read(name)
        is_float = best.storage.dtype in ("float32", "float16", "bfloat16")
        if self.visit is not None and (best.storage.qparams or is_float):
            self.visit(name, best.real)
        if self.keep is None or name in self.keep:
            self.values[name] = best.real
            self.materialised.update({(name, s.storage.dtype): s.data for s in stored})


def fp32_plan(evaluator: Evaluator) -> PrecisionPlan:
    """The plan that computes and stores everything in FP32."""
    return PrecisionPlan(tuple(Decision(g.name, g.kind, Precision.FP32, "everything in FP32", (FLOAT32,))
                               for g in evaluator.groups))
