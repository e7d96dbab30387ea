"""Whether an emitted kernel computes what the reference evaluator computes, group by group.

uint8 results may differ by one step. Floating point results are compared in units of a derived tolerance: the bound on
the rounding of the anchor's accumulation, carried through the epilogue (evaluated in float64 at the anchor's value
plus and minus the bound), plus the epilogue's own rounding. A difference below one unit is rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tvm import relax

from ..errors import VerificationError
from ..ir import COMPUTE_KINDS, MOVEMENT_KINDS, Constant, Group
from ..operators.quantization import grid_of
from ..operators.reference import evaluate_call, evaluate_tensor
from ..operators.reference_nn import attention_scores
from ..operators.semantics import Value
from ..precision import FP16_BLOCK, Precision
from .numerics import GroupProgram, Stored, probability_levels, round_to, rounded_weights

_EPSILON = float(np.finfo(np.float32).eps)
_EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # the distance of neighbours, relative
_FP16_LEAST = 2.0**-24  # the distance of float16 numbers near 0
_FUNCTION_ULPS = 8  # what one elementwise function (exp, erf, tanh, a division) may lose, in epsilons


@dataclass(frozen=True)
class Agreement:
    """How far a kernel's results are from the evaluator's.

    name, kind : the group's.
    steps : the largest difference of uint8 results, in quantization steps; None where it stores none.
    ulps : the largest difference of floating point results, in units of the derived tolerance; None likewise.
    ok : at most one step, at most one unit, and integers equal.
    detail : one sentence for a report.
    """

    name: str
    kind: str
    steps: int | None
    ulps: float | None
    ok: bool
    detail: str


@torch.no_grad()
def group_agreement(group: Group | GroupProgram, request_precision: Precision, stored_inputs: Sequence[Stored],
                    kernel_outputs: Sequence[Stored], *, per_channel: bool = True,
                    correction: Sequence[float] = ()) -> Agreement:
    """Compare one run of a group's kernel with the evaluator.

    stored_inputs : what the kernel read, one per parameter; kernel_outputs : what it wrote, one per materialisation (of
    a group that computes a tuple: one per element). VerificationError where shapes differ.
    """
    program = group if isinstance(group, GroupProgram) else GroupProgram(group)
    values, done = program.start(stored_inputs, request_precision, per_channel=per_channel, correction=correction)
    expected = program.finish(dict(values), done, stored_inputs)
    several = isinstance(expected, tuple)
    expected = expected if isinstance(expected, tuple) else (expected,) * len(kernel_outputs)
    tolerance = None if several else _tolerance(program, request_precision, stored_inputs, values, done, per_channel)
    rounds_states = program.group.kind == "recurrent" and request_precision is not Precision.FP32
    states = (_states_rounded(program, request_precision, stored_inputs, expected, per_channel)
              if rounds_states else None)
    steps: list[int] = []
    units: list[float] = []
    for index, (real, found) in enumerate(zip(expected, kernel_outputs, strict=True)):
        if found.data.shape != real.shape:
            raise VerificationError("a kernel's result has the wrong shape", layer=program.group.name,
                                    found=tuple(found.data.shape), expected=tuple(real.shape))
        wanted = Stored.of(real, found.storage)
        if not found.data.is_floating_point():
            steps.append(int((found.data.long() - wanted.data.long()).abs().max()) if real.numel() else 0)
        elif real.numel():
            bound = _conditioning(program, stored_inputs, real) if tolerance is None else tolerance
            bound = bound if states is None else bound + states[index]
            units.append(_units(found, wanted, bound))
    worst_step, worst = max(steps, default=None), max(units, default=None)
    allowed = 1 if all(o.storage.qparams is not None for o in kernel_outputs if not o.data.is_floating_point()) else 0
    allowed = 0 if program.group.kind in MOVEMENT_KINDS else allowed
    ok = (worst_step is None or worst_step <= allowed) and (worst is None or worst <= 1.0)
    parts = [f"{worst_step} steps" if worst_step is not None else "",
             f"{worst:.3f} of the rounding tolerance" if worst is not None else ""]
    detail = f"{program.group.name} ({program.group.kind}, {request_precision}) differs by at most " + \
        " and ".join(p for p in parts if p)
    return Agreement(program.group.name, program.group.kind, worst_step, worst, ok, detail)


def _units(found: Stored, wanted: Stored, tolerance: torch.Tensor) -> float:
    difference = (found.data.double() - wanted.data.double()).abs()
    if found.storage.dtype in _EPSILONS:
        tolerance = tolerance + _EPSILONS[found.storage.dtype] * wanted.data.double().abs()
    if found.storage.dtype == "float16":
        tolerance = tolerance + _FP16_LEAST
    same = (found.data == wanted.data) | (found.data.isnan() & wanted.data.isnan())
    units = torch.where(same, torch.zeros_like(difference), difference / tolerance)
    return float(torch.nan_to_num(units, nan=float("inf")).max())


def _tolerance(program: GroupProgram, precision: Precision, inputs: Sequence[Stored],
               values: Mapping[relax.Var, Value], done: int, per_channel: bool) -> torch.Tensor:
    """The bound on the difference of the group's float32 values, float64, of the output's shape."""
    anchor = values[program.bindings[done - 1].var]
    if isinstance(anchor, tuple) or not anchor.is_floating_point() or program.group.kind in MOVEMENT_KINDS:
        return torch.zeros((), dtype=torch.float64)
    if program.group.kind in COMPUTE_KINDS:
        bound = _accumulation(program, precision, inputs, per_channel)
    else:
        bound = _conditioning(program, inputs, anchor, bindings=1)
    later = program.bindings[done:]
    exact = {v: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for v, t in values.items()
             if not any(v.same_as(b.var) for b in later)}
    var, wide = program.bindings[done - 1].var, program.widened()
    if any(grid_of(b.value) is not None for b in later):  # Any rounding before it may decide about a step.
        bound = bound + len(program.bindings) * _FUNCTION_ULPS * _EPSILON * _finished(wide, dict(exact), done)[1]
    results = [_finished(wide, {**exact, var: anchor.double() + s * bound}, done) for s in (0.0, 1.0, -1.0)]
    carried = torch.maximum((results[1][0] - results[0][0]).abs(), (results[2][0] - results[0][0]).abs())
    return carried + (len(program.bindings) - done + 1) * _FUNCTION_ULPS * _EPSILON * results[0][1]


def _finished(program: GroupProgram, values: dict[relax.Var, Value], done: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The epilogue's result, and elementwise the largest magnitude among its operands and intermediate values."""
    result = program.finish(values, done)
    if isinstance(result, tuple):
        raise VerificationError("a group with an epilogue computes one tensor", layer=program.group.name)
    largest = result.abs()
    read = {leaf for b in program.bindings[done:] for leaf in b.value.args if isinstance(leaf, relax.Var)}
    for var in (*read, *(b.var for b in program.bindings[done - 1:])):
        value = values[var]
        if isinstance(value, torch.Tensor):
            largest = torch.maximum(largest, value.abs().expand(largest.shape))
    return result, largest


def _accumulation(program: GroupProgram, precision: Precision, inputs: Sequence[Stored],
                  per_channel: bool) -> torch.Tensor:
    """The bound ``n * epsilon * sum |a| |b|`` on summing n products in float32 in any order (Higham 2002, section
    3.1). Integer sums are exact: three roundings, of the accumulator, the scaled value and the sum with the offset."""
    group, call = program.group, program.bindings[0].value
    operands = dict(zip(program.params, inputs, strict=True))

    def magnitude(expr: relax.Expr) -> torch.Tensor:
        if isinstance(expr, Constant):
            constant = program.constants[expr]
            if expr is not program.weight and not expr.same_as(program.weight):
                return constant.abs()
            return rounded_weights(constant, call, precision, per_channel=per_channel).abs()
        stored = operands[expr]
        shift = stored.storage.qparams.zero_point * stored.storage.qparams.scale if stored.storage.qparams else 0.0
        return stored.real.abs() + shift

    magnitudes = [magnitude(a).double() for a in call.args]
    if group.kind == "attention" and precision is Precision.INT8:
        return _integer_attention_bound(program, operands)
    if group.kind == "attention":
        return _attention_bound(program, precision, operands)
    sums = evaluate_call(call, magnitudes, group.name, program.extents)
    if isinstance(sums, tuple):
        raise VerificationError("an anchor computes one tensor", layer=group.name)
    bias = 0.0
    if precision is Precision.INT8:
        bias = max((float(c.abs().max()) for c in program.constants.values() if c.dim() <= 1 or c.numel()
                    == c.shape[-1]), default=0.0)
    length = magnitudes[1].numel() // _columns(call, magnitudes[1])
    bound = (4 if precision is Precision.INT8 else 2 * length) * _EPSILON * (sums + bias)
    if precision is Precision.FP16 and group.kind != "depthwise":
        bound = bound + _fp16_blocks(sums, length)
    return bound


def _fp16_blocks(sums: torch.Tensor, length: int) -> torch.Tensor:
    """The bound on rounding the partial sums of blocks of products to float16, whose magnitudes add up to ``sums``:
    ``n u / (1 - n u)`` for n roundings of unit u, and half the least distance of each in the subnormal range. Matrix
    tiles round nothing to float16; their float32 sums are inside the bound to which this one is added."""
    roundings = FP16_BLOCK * _EPSILONS["float16"] / 2
    return roundings / (1 - roundings) * sums + length * _FP16_LEAST / 2


def _columns(call: relax.Call, right: torch.Tensor) -> int:
    """Output columns per element of the reduction: what a right side's size is divided by to get the sum's length."""
    if call.op.name == "relax.matmul":
        return right.numel() // right.shape[-2]
    return right.shape[str(call.attrs.kernel_layout).index("O")]


def _attention_bound(program: GroupProgram, precision: Precision, operands: Mapping[relax.Var, Stored]) -> torch.Tensor:
    """Rounding of the scores changes every probability relatively by twice their error; summing the values adds the
    length of the sum; where probabilities are rounded, a different last bit of any of them counts."""
    call = program.bindings[0].value
    args = [program.constants[a] if isinstance(a, Constant) else operands[a].real for a in call.args]
    q, k, v = (round_to(a, precision).double() for a in args[:3])
    scale = float(call.attrs.scale) if call.attrs.scale is not None else q.shape[-1] ** -0.5
    products = torch.einsum("bqhd,bkhd->bhqk", q.abs(), k.abs()) * scale
    largest = float(products.max()) + (float(args[3].abs().max()) if len(args) > 3 else 0.0)
    relative = _EPSILON * (2 * q.shape[-1] * largest + 2 * k.shape[1] + 2 * _FUNCTION_ULPS)
    if precision is not Precision.FP32:
        relative += _EPSILONS[precision.storage_dtype] / 2
    absolute = 0.0
    if precision is Precision.FP16:
        scores = _fp16_blocks(torch.tensor(largest), q.shape[-1])
        relative += 2 * float(scores) + float(_fp16_blocks(torch.tensor(1.0), 0))
        absolute = k.shape[1] * _FP16_LEAST * (1 + float(v.abs().max()))
    weighted = evaluate_tensor(call, [q, k, v.abs(), *(a.double() for a in args[3:])], program.group.name,
                               program.extents)
    return relative * weighted + absolute


def _states_rounded(program: GroupProgram, precision: Precision, inputs: Sequence[Stored],
                    expected: Sequence[torch.Tensor], per_channel: bool) -> list[torch.Tensor]:
    """How much the results of a recurrent layer move when every state is rounded up or down at random: a last bit of a
    state decides about a whole step of its rounding, and later states follow. The largest along the last axis, over two
    patterns."""
    moved = [torch.zeros_like(real) for real in expected]
    for seed in range(2):
        flips = torch.Generator().manual_seed(seed)
        values, done = program.start(inputs, precision, per_channel=per_channel, flips=flips)
        results = program.finish(values, done)
        differences = [(found - real).abs() for found, real in zip(results, expected, strict=True)]
        moved = [torch.maximum(m, d) for m, d in zip(moved, differences, strict=True)]
    return [2 * m.amax(dim=-1, keepdim=True).expand(m.shape) if m.numel() else m for m in moved]


def _integer_attention_bound(program: GroupProgram, operands: Mapping[relax.Var, Stored]) -> torch.Tensor:
    """Scores are exact sums, rounded with what is the same for all keys of a query still in them. The larger a power,
    the likelier that brings it to the other side of a tie, which moves the result by at most one of the row's
    levels: about as often as levels differ altogether, and a few times more."""
    call = program.bindings[0].value
    q, k, v = (operands[a] for a in call.args[:3])
    bias = None
    if len(call.args) > 3:
        bias = program.constants[call.args[3]] if isinstance(call.args[3], Constant) else operands[call.args[3]].real
    scores = attention_scores(q.real, k.real, bias, call)
    scale = float(call.attrs.scale) if call.attrs.scale is not None else q.real.shape[-1] ** -0.5
    largest = scale * q.real.shape[-1] * _reach(q) * _reach(k) + (float(bias.abs().max()) if bias is not None else 0.0)
    relative = _EPSILON * (4 * largest + 2 * _FUNCTION_ULPS)
    total = probability_levels(scores).sum(dim=-1).double().clamp_min(1).permute(0, 2, 1)[..., None]
    flips, rounding = 4 + 4 * relative * total, 4 * _EPSILON * _reach(v)
    return (flips * 2 * _reach(v) / total + rounding).expand(*total.shape[:-1], v.real.shape[-1])


def _reach(stored: Stored) -> float:
    """The largest magnitude of levels, without zero point or with that of signed levels, in the units of the tensor."""
    qparams = stored.storage.qparams
    if qparams is None:
        raise VerificationError("an INT8 operand must be stored in uint8", found=stored.storage.dtype)
    return qparams.scale * (255 + abs(128 - qparams.zero_point))


def _conditioning(program: GroupProgram, inputs: Sequence[Stored], value: torch.Tensor,
                  bindings: int | None = None) -> torch.Tensor:
    """How much the value moves when its inputs move by the rounding of a sum of their length, in float64: the error of
    a backward stable evaluation. The largest along the last axis, over two fixed random patterns of signs."""
    sizes = [s.data.numel() for s in inputs if s.data.is_floating_point() or s.storage.qparams is not None]
    length = max(max(sizes, default=1) // max(value.numel(), 1), value.shape[-1] if value.dim() else 1)
    generator = torch.Generator().manual_seed(0)
    moved = torch.zeros(value.shape, dtype=torch.float64)
    exact = _evaluated(program, [s.real for s in inputs], bindings)
    for _ in range(2):
        shifted = []
        for stored in inputs:
            real = stored.real
            if real.is_floating_point():
                signs = torch.randint(0, 2, real.shape, generator=generator) * 2.0 - 1.0
                real = real.double() * (1 + length * _EPSILON * signs.double())
            shifted.append(real)
        for result, reference in zip(_evaluated(program, shifted, bindings), exact, strict=True):
            if result.shape == value.shape and result.is_floating_point():
                # Nothing where the edge of a domain is passed, or an infinity moves.
                moved = torch.maximum(moved, torch.nan_to_num((result - reference).abs(), nan=0.0, posinf=0.0))
    if moved.dim():
        moved = moved.amax(dim=-1, keepdim=True).expand(moved.shape)
    return 2 * moved + _FUNCTION_ULPS * _EPSILON * value.double().abs() + float(np.finfo(np.float32).tiny)


def _evaluated(program: GroupProgram, inputs: Sequence[torch.Tensor], bindings: int | None) -> list[torch.Tensor]:
    """The values of the first ``bindings`` bindings (None: the group's results) in float64."""
    values: dict[relax.Var, Value] = {
        p: x.double() if x.is_floating_point() else x for p, x in zip(program.params, inputs, strict=True)}
    result = program.widened(bindings).finish(values, 0)
    return list(result) if isinstance(result, tuple) else [result]
