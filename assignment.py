"""The assignment: one precision per fusion group and the storage of every tensor, by an exact integer program.

What is least is the time of a call in microseconds; what is bounded is the predicted noise. The rules
(docs/design.md):

* A group that multiplies reads its ``exact_inputs`` in exactly its precision's storage. Whatever else groups with an
  epilogue read is *flexible*: it is read from the most precise storage there is, and the storage's noise counts if
  that is not float32.
* Groups with an epilogue write as many storages as are wanted in it. Movement groups write the one storage that they
  read, which all of their inputs must have. Everything else (what opaque and recurrent groups read and write, model
  inputs and model outputs) is float32.
* Tensors whose producer has no epilogue may get further storages by stand-alone casts, always to a less precise one.

Solved with HiGHS (Huangfu and Hall, "Parallelizing the dual revised simplex method", 2018) through SciPy, with a gap
of zero and without randomness: the same problem gives the same answer. Some hundred groups take a fraction of a second;
should a problem ever take minutes, the best answer of the first is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize, sparse

from .errors import PlanError
from .ir import (
    EPILOGUE_KINDS,
    GROUP_KINDS,
    MOVEMENT_KINDS,
    OPAQUE_KINDS,
    Group,
    dtype_of,
    outputs_of,
)
from .precision import STORAGE_PREFERENCE, Precision

TensorStorage = tuple[str, str]

# Ties are broken towards the more precise, less storage and fewer casts, by ten-thousandths of a microsecond.
_TIE_US = 1e-4
_TIME_LIMIT_S = 60.0
_USUAL_STORAGES = ("float32", "bfloat16", "uint8")
_RANK = {Precision.FP32: 0, Precision.BF16: 1, Precision.FP16: 1, Precision.INT8: 2}


@dataclass(frozen=True)
class GroupOptions:
    """A fusion group and what it may be.

    name : the group's name, which is also that of the tensor it computes.
    kind : one of ``ir.GROUP_KINDS``.
    cost_us : microseconds of one call by precision; its keys are the precisions allowed. Measured with the output
        stored once, in the precision's own storage (FP32: float32).
    inputs : names of the tensors it reads.
    exact_inputs : those it must read in exactly its precision's storage.
    noise : predicted noise of each precision but FP32, in the units of ``Problem.noise_limit``. It contains the
        rounding of the exact inputs.
    macs : multiply-adds of one call.
    shared_qparams : for a movement group with several inputs, whether their quantization parameters are the same.
    native : the element types of what it computes, one per element of a tuple; what is stored where it takes no part.
    """

    name: str
    kind: str
    cost_us: Mapping[Precision, float]
    inputs: tuple[str, ...] = ()
    exact_inputs: tuple[str, ...] = ()
    noise: Mapping[Precision, float] = field(default_factory=dict)
    macs: int = 0
    shared_qparams: bool = False
    native: tuple[str, ...] = ("float32",)

    @classmethod
    def of(cls, group: Group, cost_us: Mapping[Precision, float], noise: Mapping[Precision, float] | None = None, *,
           macs: int = 0, shared_qparams: bool = False) -> GroupOptions:
        """The options of a fusion group: its names and types from the graph, the rest as given."""
        exact = tuple(dict.fromkeys(group.inputs[i] for i in group.exact_inputs))
        return cls(group.name, group.kind, cost_us, group.inputs, exact, noise or {}, macs, shared_qparams,
                   native=tuple(dtype_of(v) for v in outputs_of(group.function)))

    @property
    def has_epilogue(self) -> bool:
        """Whether its kernel can write several storages."""
        return self.kind in EPILOGUE_KINDS


@dataclass(frozen=True)
class Problem:
    """What is to be assigned.

    groups : in execution order. A tensor that no group computes is a model input, or a field of an opaque group's
        tuple: float32, with casts for the rest.
    outputs : names of the model's outputs.
    floats : names of all floating point tensors; others keep their own type and take no part.
    store_us : microseconds of writing a tensor once in a storage, by (tensor, dtype); counted for what is written on
        top of or instead of what ``cost_us`` contains.
    cast_us : microseconds of a stand-alone cast, by (tensor, dtype it is cast to).
    storage_noise : predicted noise where flexible readers find nothing better than this storage, by (tensor, dtype).
    noise_limit : the largest sum of noise allowed; infinite where only speed counts.
    forced : precisions that are not open to choice, by group name.
    storages : dtypes that a tensor may be stored in, by name, where not float32, bfloat16 and uint8.

    Raises
    ------
    PlanError : an unknown kind or group, a precision that a group does not have, a cost that is not a number, noise
        that is missing or negative.
    """

    groups: tuple[GroupOptions, ...]
    outputs: tuple[str, ...]
    floats: frozenset[str]
    store_us: Mapping[TensorStorage, float] = field(default_factory=dict)
    cast_us: Mapping[TensorStorage, float] = field(default_factory=dict)
    storage_noise: Mapping[TensorStorage, float] = field(default_factory=dict)
    noise_limit: float = math.inf
    forced: Mapping[str, Precision] = field(default_factory=dict)
    storages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = list(self._faults())
        if problems:
            raise PlanError.collect(problems)

    def _faults(self) -> Iterable[PlanError]:
        by_name = {g.name: g for g in self.groups}
        if len(by_name) != len(self.groups):
            yield PlanError("two groups have the same name")
        if math.isnan(self.noise_limit) or self.noise_limit < 0:
            yield PlanError("unusable noise limit", found=self.noise_limit, expected="a number of at least 0")
        for name, precision in self.forced.items():
            if name not in by_name:
                yield PlanError("there is no such group", found=name, expected="a name out of plan.decisions",
                                hint="check the precision override")
            elif precision not in by_name[name].cost_us:
                yield PlanError(f"{precision} is not available for this group", layer=name,
                                expected=", ".join(map(str, by_name[name].cost_us)), hint="override it with another")
        for g in self.groups:
            if g.kind not in GROUP_KINDS:
                yield PlanError("unknown kind of group", layer=g.name, found=g.kind, expected=", ".join(GROUP_KINDS))
            if not g.cost_us or not all(math.isfinite(c) for c in g.cost_us.values()):
                yield PlanError("a group needs a finite cost of every precision", layer=g.name, found=dict(g.cost_us))
            for precision in g.cost_us:
                noise = g.noise.get(precision, 0.0 if precision is Precision.FP32 else math.nan)
                if not 0 <= noise < math.inf:
                    yield PlanError(f"the noise of {precision} is not a finite number of at least 0", layer=g.name,
                                    found=noise)
        for key, noise in self.storage_noise.items():
            if not 0 <= noise < math.inf:
                yield PlanError("the noise of a storage is not a finite number of at least 0", layer=key[0],
                                found=noise)

    def allowed(self, tensor: str) -> tuple[str, ...]:
        """The storages a tensor may have, most precise first."""
        own = self.storages.get(tensor, _USUAL_STORAGES)
        return tuple(d for d in STORAGE_PREFERENCE if d in own)

    def floats_of(self, group: GroupOptions) -> tuple[str, ...]:
        """The floating point tensors a group reads, each once."""
        return tuple(t for t in dict.fromkeys(group.inputs) if t in self.floats)

    def flexible_inputs(self, group: GroupOptions) -> tuple[str, ...]:
        """The floating point tensors a group reads from whatever is stored."""
        if not group.has_epilogue:
            return ()
        return tuple(t for t in self.floats_of(group) if t not in group.exact_inputs)


@dataclass(frozen=True)
class Assignment:
    """The answer to a problem.

    precisions : by group name, in execution order.
    stores : what each group's kernel writes, by tensor, most precise first; floating point tensors of groups only.
    casts : what stand-alone casts add, by tensor.
    cost_us : the predicted time of a call.
    noise : the predicted noise, at most ``problem.noise_limit``.
    contributions : the noise by group: its precision's and its tensor's storage's; model inputs never have any.
    """

    problem: Problem
    precisions: Mapping[str, Precision]
    stores: Mapping[str, tuple[str, ...]]
    casts: Mapping[str, tuple[str, ...]]
    cost_us: float
    noise: float
    contributions: Mapping[str, float]


def solve(problem: Problem) -> Assignment:
    """The fastest assignment inside the noise limit.

    Raises
    ------
    PlanError : nothing fits, because of what is forced or which storages are allowed.
    """
    limit = problem.noise_limit
    for margin in (1.0, 1 - 1e-5):  # the solver's own tolerance may overstep the limit by a millionth
        answer = _read(problem, _Model(problem, limit * margin))
        if answer.noise <= limit * (1 + 1e-9):
            return answer
    raise PlanError("the solver cannot keep the noise limit", found=answer.noise, expected=limit)


class _Model:
    """The integer program: variables, rows, and their solution.

    x[g, p]: group g computes in p. m[t, d]: t's producer writes it as d. c[t, d]: a cast does.
    u[t, d]: nothing better than d is stored of t, which has flexible readers.
    """

    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem = problem
        self._limit = limit
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._rows: list[tuple[dict[int, float], float, float]] = []
        self._noise: dict[int, float] = {}
        self.x: dict[tuple[str, Precision], int] = {}
        self.m: dict[TensorStorage, int] = {}
        self.c: dict[TensorStorage, int] = {}
        self._producers = {g.name: g for g in problem.groups}
        read = dict.fromkeys(t for g in problem.groups for t in problem.floats_of(g))
        self._flexible = {t for g in problem.groups for t in problem.flexible_inputs(g)}
        for tensor in [t for t in read if t not in self._producers] + [g.name for g in problem.groups]:
            if tensor in problem.floats:
                self._add_tensor(tensor)
        for group in problem.groups:
            self._add_precisions(group)
            self._add_reads(group)
        for tensor in problem.outputs:
            if tensor in problem.floats and tensor in self._producers:
                self._require({self.m[tensor, "float32"]: 1.0} if (tensor, "float32") in self.m else {}, 1.0)
        if 0 < limit < math.inf:
            self._rows.append(({v: n / limit for v, n in self._noise.items()}, -math.inf, 1.0))

    def solve(self) -> np.ndarray:
        """The values of the variables, rounded to integers."""
        if not self._rows:  # A network that only hands its inputs on.
            return np.zeros(len(self._cost), int)
        entries = [(r, v, k) for r, (row, _, _) in enumerate(self._rows) for v, k in row.items()]
        rows, columns, values = zip(*entries, strict=True)
        matrix = sparse.csr_array((values, (rows, columns)), shape=(len(self._rows), len(self._cost)))
        low, high = np.array([[low, high] for _, low, high in self._rows]).T
        result = optimize.milp(
            np.array(self._cost), integrality=np.ones(len(self._cost)),
            bounds=optimize.Bounds(np.zeros(len(self._cost)), np.array(self._upper)),
            constraints=optimize.LinearConstraint(matrix, low, high),
            options={"mip_rel_gap": 0.0, "time_limit": _TIME_LIMIT_S})
        if result.x is None:
            forced = self.problem.forced
            raise PlanError("no assignment of precisions is possible", found=result.message,
                            expected=f"noise of at most {self.problem.noise_limit:g}",
                            hint="force fewer precisions" if forced else "allow float32 storage and FP32 everywhere")
        return np.rint(result.x).astype(int)

    def _variable(self, cost: float, *, noise: float = 0.0, upper: float = 1.0) -> int:
        self._cost.append(cost)
        self._upper.append(upper if noise <= self._limit else 0.0)
        if noise > 0:
            self._noise[len(self._cost) - 1] = noise
        return len(self._cost) - 1

    def _require(self, terms: Mapping[int, float], low: float, high: float = math.inf) -> None:
        """A row ``low <= sum of terms <= high``; a row without terms keeps its meaning by an empty variable."""
        self._rows.append((dict(terms) or {self._variable(0.0, upper=0.0): 1.0}, low, high))

    def _add_tensor(self, tensor: str) -> None:
        problem, group = self.problem, self._producers.get(tensor)
        for rank, dtype in enumerate(problem.allowed(tensor), 1):
            if group is not None and (group.kind not in OPAQUE_KINDS or dtype == "float32"):
                cost = problem.store_us.get((tensor, dtype), 0.0)
                self.m[tensor, dtype] = self._variable(cost + rank * _TIE_US)
            if (group is None or not group.has_epilogue) and dtype != "float32":
                cost = problem.cast_us.get((tensor, dtype), 0.0)
                self.c[tensor, dtype] = self._variable(cost + 10 * rank * _TIE_US)
        if group is None:
            return
        self._require(self._written(tensor, STORAGE_PREFERENCE), 1.0, math.inf if group.has_epilogue else 1.0)
        for dtype in problem.allowed(tensor):
            if (tensor, dtype) in self.c:
                self._require({**self._written(tensor, _better(dtype)), self.c[tensor, dtype]: -1.0}, 0.0)
        if tensor in self._flexible:
            self._add_flexible(tensor)

    def _add_flexible(self, tensor: str) -> None:
        for dtype in self.problem.allowed(tensor):
            noise = self.problem.storage_noise.get((tensor, dtype), 0.0) if dtype != "float32" else 0.0
            if noise > 0 and (tensor, dtype) in self.m:
                worst = self._variable(0.0, noise=noise)
                self._require({worst: 1.0, self.m[tensor, dtype]: -1.0, **self._written(tensor, _better(dtype))}, 0.0)

    def _add_precisions(self, group: GroupOptions) -> None:
        problem = self.problem
        for precision, cost in group.cost_us.items():
            forced = problem.forced.get(group.name, precision)
            contained = problem.store_us.get((group.name, precision.storage_dtype), 0.0)
            if group.name not in problem.floats:
                contained = 0.0
            self.x[group.name, precision] = self._variable(
                cost - contained + _RANK[precision] * _TIE_US, noise=group.noise.get(precision, 0.0),
                upper=float(forced == precision))
        self._require({self.x[group.name, p]: 1.0 for p in group.cost_us}, 1.0, 1.0)

    def _add_reads(self, group: GroupOptions) -> None:
        for tensor in self.problem.floats_of(group):
            if group.kind in MOVEMENT_KINDS:
                for dtype in self.problem.allowed(group.name) if group.name in self.problem.floats else ():
                    self._require_stored(tensor, dtype, self.m[group.name, dtype])
            elif tensor in group.exact_inputs:
                for precision in group.cost_us:
                    self._require_stored(tensor, precision.storage_dtype, self.x[group.name, precision])
            elif not group.has_epilogue:
                self._require_stored(tensor, "float32", None)
        several = len(self.problem.floats_of(group)) > 1 and not group.shared_qparams
        if group.kind in MOVEMENT_KINDS and several and (group.name, "uint8") in self.m:
            self._upper[self.m[group.name, "uint8"]] = 0.0

    def _require_stored(self, tensor: str, dtype: str, where: int | None) -> None:
        """``tensor`` is stored as ``dtype`` where variable ``where`` is 1 (None: always)."""
        if tensor not in self._producers and dtype == "float32":
            return
        stored = {s[tensor, dtype]: 1.0 for s in (self.m, self.c) if (tensor, dtype) in s}
        self._require(stored | ({} if where is None else {where: -1.0}), 1.0 if where is None else 0.0)

    def _written(self, tensor: str, dtypes: Sequence[str]) -> dict[int, float]:
        return {self.m[tensor, d]: 1.0 for d in dtypes if (tensor, d) in self.m}


def _better(dtype: str) -> tuple[str, ...]:
    """The storages that are more precise."""
    return STORAGE_PREFERENCE[:STORAGE_PREFERENCE.index(dtype)]


def _read(problem: Problem, model: _Model) -> Assignment:
    """Solve, and account for the solution anew, by the rules and not by the solver's variables."""
    values = model.solve()
    precisions = {g: p for (g, p), v in model.x.items() if values[v]}
    stores, casts = ({t: tuple(d for d in STORAGE_PREFERENCE if (t, d) in own and values[own[t, d]])
                      for t in dict.fromkeys(t for t, _ in own)} for own in (model.m, model.c))
    casts = {t: dtypes for t, dtypes in casts.items() if dtypes}
    cost = (sum(_group_cost(problem, g, precisions[g.name], stores.get(g.name, ())) for g in problem.groups)
            + sum(problem.cast_us.get((t, d), 0.0) for t, dtypes in casts.items() for d in dtypes))
    flexible = {t for g in problem.groups for t in problem.flexible_inputs(g)}
    contributions = {}
    for group in problem.groups:
        best = stores.get(group.name, ("float32",))[0]
        storage = problem.storage_noise.get((group.name, best), 0.0) if best != "float32" else 0.0
        contributions[group.name] = (group.noise.get(precisions[group.name], 0.0)
                                     + (storage if group.name in flexible else 0.0))
    return Assignment(problem, precisions, stores, casts, cost, math.fsum(contributions.values()), contributions)


def _group_cost(problem: Problem, group: GroupOptions, precision: Precision, stores: Sequence[str]) -> float:
    """Microseconds of a group's call with these storages written."""
    if group.name not in problem.floats:
        return group.cost_us[precision]
    contained = problem.store_us.get((group.name, precision.storage_dtype), 0.0)
    return group.cost_us[precision] - contained + sum(problem.store_us.get((group.name, d), 0.0) for d in stores)
