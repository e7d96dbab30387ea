"""Precision as data: what a value is stored as, what an op computes in, and why.

Everything here is frozen and round-trips through JSON. Deciding yields a :class:`PrecisionPlan`; lowering, the
reference evaluator and the report only read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import numpy as np

from .errors import PlanError


class Precision(StrEnum):
    """What the multiply-adds of an op read. Accumulators and epilogues are s32/float32 throughout; in FP16 on
    vectors the sums of ``FP16_BLOCK`` products are float16 before they are added to those."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"

    @property
    def storage_dtype(self) -> str:
        """The element type of the tensors an op of this precision reads."""
        return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "uint8"}[self.value]


# What the multiply-adds of some kinds of groups do not read.
LACKING_PRECISIONS = {"recurrent": frozenset({Precision.FP16})}
# Products that FP16 adds up in float16 before the sum is added to a float32 accumulator.
FP16_BLOCK = 16


@dataclass(frozen=True)
class QParams:
    """Affine u8 quantization of a tensor: ``real = scale * (q - zero_point)``, ``q`` in 0…255.

    ``q = clip(round_half_even(real / scale) + zero_point, 0, 255)``, computed in float32 as ``real * (1 / scale)``
    with the reciprocal rounded to float32.
    """

    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0 and 0 <= self.zero_point <= 255):
            raise PlanError(
                "unusable quantization parameters",
                found=(self.scale, self.zero_point),
                expected="a finite scale above 0 and a zero point in 0…255",
            )

    @classmethod
    def from_range(cls, low: float, high: float) -> QParams:
        """The parameters that cover [low, high] extended to contain 0, so that 0 is exact; the zero point is 0 where
        nothing is negative."""
        low, high = min(float(low), 0.0), max(float(high), 0.0)
        scale = float(np.float32(max(high - low, 1e-30) / 255.0))
        scale = max(scale, float(np.finfo(np.float32).tiny))
        return cls(scale=scale, zero_point=int(np.clip(np.rint(-low / scale), 0, 255)))

    @property
    def largest(self) -> float:
        """The largest magnitude that is represented."""
        return self.scale * max(self.zero_point, 255 - self.zero_point)

    @property
    def inverse_scale(self) -> float:
        """``1 / scale`` rounded to float32, the factor that kernels multiply by."""
        return float(np.float32(1.0) / np.float32(self.scale))


@dataclass(frozen=True)
class Storage:
    """One materialisation of a tensor in memory.

    dtype : "float32", "float16", "bfloat16", "uint8" with ``qparams``, or without any a tensor's own integer or boolean
        type.
    """

    dtype: str
    qparams: QParams | None = None

    def __post_init__(self) -> None:
        if self.qparams is not None and self.dtype != "uint8":
            raise PlanError("only uint8 storage has quantization parameters", found=self)


FLOAT32 = Storage("float32")
FLOAT16 = Storage("float16")
BFLOAT16 = Storage("bfloat16")
# The order in which a consumer that may read any storage prefers them.
STORAGE_PREFERENCE = ("float32", "float16", "bfloat16", "uint8")


def readable(stored: Sequence[Storage], required: Precision | Storage | None = None) -> Storage:
    """The materialisation of a tensor that a consumer reads; evaluator and lowering share the rule.

    stored : all materialisations of the tensor.
    required : for an operand that is multiplied, the group's precision: its storage type must be there. For a movement
        group, the storage that the group writes: exactly that one must be there. None for a consumer that may read
        any: it reads the most precise, in the order of ``STORAGE_PREFERENCE``; an integer or boolean tensor has one.

    Raises PlanError where the plan stores nothing that the consumer can read.
    """
    if isinstance(required, Storage):
        found = [s for s in stored if s == required]
    elif required is not None:
        found = [s for s in stored if s.dtype == required.storage_dtype]
    else:
        rank = {dtype: i for i, dtype in enumerate(STORAGE_PREFERENCE)}
        found = sorted(stored, key=lambda s: rank.get(s.dtype, len(rank)))
    if not found:
        raise PlanError(
            "the plan stores nothing that a consumer can read", found=[s.dtype for s in stored], expected=required
        )
    return found[0]


@dataclass(frozen=True)
class Decision:
    """What was decided for one fusion group, and why.

    op : the group's name: the layer's name in the user's model.
    kind : the group's kind (``ir.GROUP_KINDS``).
    precision : what its multiply-adds read; FP32 for groups without.
    reason : one sentence.
    stores : the materialisations of the tensor it computes that its own kernel writes; at least one.
    per_channel : whether INT8 weights have a scale per output channel (the default) or one for the tensor.
    correction : what an INT8 group adds to each output channel before its epilogue (bias correction); empty: nothing.
    macs : multiply-adds per call.
    cost_us : microseconds per call, measured; None where nothing was measured.
    error : the predicted share of the output's noise that the decision causes; None where not predicted.
    schedule : which of its kernel's schedules is taken, counted from the best by the model; other than 0 where that was
        measured to be faster.
    """

    op: str
    kind: str
    precision: Precision
    reason: str
    stores: tuple[Storage, ...] = (FLOAT32,)
    per_channel: bool = True
    correction: tuple[float, ...] = ()
    macs: int = 0
    cost_us: float | None = None
    error: float | None = None
    schedule: int = 0


@dataclass(frozen=True)
class PrecisionPlan:
    """A decision for every fusion group, in execution order, and the storage of every tensor.

    casts : extra materialisations, by tensor name, that a stand-alone cast makes because the producing kernel has no
        epilogue to do it.
    module_hash : structural hash of the grouped module the plan belongs to.
    seed : the seed it was found with.
    """

    decisions: tuple[Decision, ...]
    casts: Mapping[str, tuple[Storage, ...]] = field(default_factory=dict)
    module_hash: str = ""
    seed: int = 0

    def __getitem__(self, op: str) -> Decision:
        for decision in self.decisions:
            if decision.op == op:
                return decision
        raise KeyError(op)

    @property
    def key(self) -> tuple[object, ...]:
        """What determines the emitted program: two plans with equal keys differ in reasons and figures at most."""
        return (
            tuple((d.op, d.precision, d.stores, d.per_channel, d.correction, d.schedule) for d in self.decisions),
            tuple(sorted((tensor, storages) for tensor, storages in self.casts.items() if storages)),
            self.module_hash,
        )

    @property
    def is_exact(self) -> bool:
        """Whether everything is computed and stored in FP32."""
        stored = [s for d in self.decisions for s in d.stores] + [s for c in self.casts.values() for s in c]
        return all(d.precision is Precision.FP32 for d in self.decisions) and all(
            s.dtype not in ("bfloat16", "float16") and s.qparams is None for s in stored
        )

    def stored(self, tensor: str) -> tuple[Storage, ...]:
        """All materialisations of a group's tensor: its kernel's own, then those of stand-alone casts.

        For a model input only the casts; what the user passes comes on top.
        """
        own = next((d.stores for d in self.decisions if d.op == tensor), ())
        return (*own, *self.casts.get(tensor, ()))

    def to_json(self) -> str:
        """The plan as JSON, keys sorted, so that equal plans are equal text."""
        return json.dumps(asdict(self), sort_keys=True, indent=1, default=str)

    @classmethod
    def from_json(cls, text: str) -> PrecisionPlan:
        """The plan that ``to_json`` wrote; PlanError for any other text."""
        try:
            raw = json.loads(text)
            decisions = tuple(
                Decision(
                    **{
                        **d,
                        "precision": Precision(d["precision"]),
                        "stores": tuple(_storage(s) for s in d["stores"]),
                        "correction": tuple(d["correction"]),
                    }
                )
                for d in raw["decisions"]
            )
            casts = {k: tuple(_storage(s) for s in v) for k, v in raw["casts"].items()}
            return cls(decisions, casts, raw["module_hash"], raw["seed"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(
                "the text is not a precision plan", found=str(error), hint="pass what PrecisionPlan.to_json wrote"
            ) from error


def _storage(raw: Mapping[str, object]) -> Storage:
    qparams = raw["qparams"]
    return Storage(str(raw["dtype"]), QParams(**qparams) if isinstance(qparams, Mapping) else None)
