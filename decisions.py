"""From an assignment to a precision plan: storages get their parameters, and every decision its sentence of reason."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .assignment import Assignment, GroupOptions
from .errors import PlanError
from .ir import COMPUTE_KINDS, MOVEMENT_KINDS, OPAQUE_KINDS
from .precision import Decision, Precision, PrecisionPlan, QParams, Storage


def build_plan(assignment: Assignment, qparams: Mapping[str, QParams], reasons: Mapping[str, str] | None = None, *,
               per_channel: Mapping[str, bool] | None = None, module_hash: str = "", seed: int = 0) -> PrecisionPlan:
    """The plan that carries out ``assignment``.

    Parameters
    ----------
    qparams : quantization parameters by tensor, of every tensor that may be stored as uint8. What a movement group
        writes has those of what it reads.
    reasons : sentences that replace those of ``explain``, by group.
    per_channel : by group, whether INT8 weights have a scale per output channel; true where not given.
    module_hash, seed : of the plan.

    Raises
    ------
    PlanError : a tensor to be stored as uint8 has no quantization parameters, or a movement group's inputs have
        different ones.
    """
    problem = assignment.problem
    known = dict(qparams)
    sentences = {**explain(assignment), **(reasons or {})}
    decisions = []
    for group in problem.groups:
        if group.kind in MOVEMENT_KINDS and "uint8" in assignment.stores.get(group.name, ()):
            known[group.name] = _moved_qparams(group, problem.floats_of(group), known)
        precision = assignment.precisions[group.name]
        stores = (tuple(_storage(group.name, d, known) for d in assignment.stores.get(group.name, ()))
                  or tuple(Storage(d) for d in group.native))
        decisions.append(Decision(
            op=group.name, kind=group.kind, precision=precision, reason=sentences[group.name], stores=stores,
            per_channel=(per_channel or {}).get(group.name, True), macs=group.macs, cost_us=group.cost_us[precision],
            error=assignment.contributions[group.name] / assignment.noise if assignment.noise > 0 else 0.0))
    casts = {t: tuple(_storage(t, d, known) for d in dtypes) for t, dtypes in assignment.casts.items()}
    return PrecisionPlan(tuple(decisions), casts, module_hash, seed)


def explain(assignment: Assignment) -> dict[str, str]:
    """One sentence per group: why it has its precision, or why it has no choice."""
    return {g.name: _explain_group(assignment, g) for g in assignment.problem.groups}


def _explain_group(assignment: Assignment, group: GroupOptions) -> str:
    if group.kind in MOVEMENT_KINDS:
        stored = assignment.stores.get(group.name, ())
        return f"moves elements, {stored[0]} as what it reads" if stored else "moves elements"
    if group.kind in OPAQUE_KINDS:
        return "computes in its own types: there is no kernel of lower precision for it"
    if group.kind not in COMPUTE_KINDS:
        return "computes in FP32 whatever it reads"
    chosen = assignment.precisions[group.name]
    if group.name in assignment.problem.forced:
        return f"{_label(chosen)}: forced by the caller"
    if len(group.cost_us) == 1:
        return f"{_label(chosen)}: the target has no other precision for it"
    if chosen is Precision.FP32:
        return _explain_fp32(assignment, group)
    return _explain_low(assignment, group, chosen)


def _explain_low(assignment: Assignment, group: GroupOptions, chosen: Precision) -> str:
    limit = assignment.problem.noise_limit
    fp32 = group.cost_us.get(Precision.FP32)
    if fp32 is None:
        return f"{_label(chosen)}: the fastest of the precisions that the target has for it"
    saved = fp32 - group.cost_us[chosen]
    if saved > 0:
        text = f"{_label(chosen)} saves {_us(saved)} of {_us(fp32)}{_for_share(group.noise[chosen], limit)}"
    else:
        text = (f"{_label(chosen)}: takes {_us(-saved)} more than FP32, but spares storing its input as float32"
                f"{_for_share(group.noise[chosen], limit)}")
    faster = [p for p, cost in group.cost_us.items() if cost < group.cost_us[chosen] and p is not Precision.FP32]
    if faster and math.isfinite(limit) and limit > 0:
        other = min(faster, key=lambda p: group.cost_us[p])
        text += f"; {_label(other)} would take {_share(group.noise[other], limit)}"
    return text


def _explain_fp32(assignment: Assignment, group: GroupOptions) -> str:
    limit = assignment.problem.noise_limit
    fp32 = group.cost_us[Precision.FP32]
    others = [p for p in group.cost_us if p is not Precision.FP32]
    best = min(others, key=lambda p: group.cost_us[p])
    saved = fp32 - group.cost_us[best]
    if saved <= 0:
        return f"FP32: {' and '.join(map(_label, others))} would save nothing"
    would = f"FP32: {_label(best)} would save {_us(saved)} of {_us(fp32)}"
    noise = group.noise[best]
    if assignment.noise + noise <= limit:
        return f"{would}, less than storing its input as {best.storage_dtype} costs"
    if limit == 0:
        return f"{would}, but the noise allowance is 0"
    if noise > limit:
        return f"{would}, but takes {_share(noise, limit)} of the noise allowance"
    return f"{would}{_for_share(noise, limit)}, which saves more elsewhere"


def _moved_qparams(group: GroupOptions, inputs: tuple[str, ...], known: Mapping[str, QParams]) -> QParams:
    read = [_qparams(t, known) for t in inputs]
    if any(q != read[0] for q in read):
        raise PlanError("the tensors it joins are quantized differently", layer=group.name,
                        found=", ".join(map(str, read)), expected="one set of quantization parameters")
    return read[0]


def _storage(tensor: str, dtype: str, known: Mapping[str, QParams]) -> Storage:
    return Storage(dtype, _qparams(tensor, known)) if dtype == "uint8" else Storage(dtype)


def _qparams(tensor: str, known: Mapping[str, QParams]) -> QParams:
    if tensor not in known:
        raise PlanError("it is to be stored as uint8 and has no quantization parameters", layer=tensor,
                        hint="calibrate it, or leave uint8 out of Problem.storages")
    return known[tensor]


def _label(precision: Precision) -> str:
    return precision.value.upper()


def _us(value: float) -> str:
    return f"{value:.0f} us" if value >= 9.95 else f"{value:.1f} us" if value >= 0.095 else f"{value:.2g} us"


def _share(noise: float, limit: float) -> str:
    percent = 100 * noise / limit
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.2g} %"


def _for_share(noise: float, limit: float) -> str:
    return f" for {_share(noise, limit)} of the noise allowance" if 0 < limit < math.inf else ""
