"""From a grouped module to an assignment problem: quantization parameters, candidate kernels, costs.

Nothing is decided here; ``assignment.solve`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax

from .assignment import GroupOptions, Problem
from .backends.cpu.cast import build_cast
from .backends.cpu.kernel import Kernel, KernelRequest
from .backends.lower import FOUND_EXTENT, has_kernel
from .backends.target import Target
from .calibration.sensitivity import Sensitivities
from .dims import evaluate_dim
from .given import Given
from .ir import (
    COMPUTE_KINDS,
    EPILOGUE_KINDS,
    MOVEMENT_KINDS,
    Group,
    constant_value,
    dims_of,
    dtype_of,
    op_bindings,
    outputs_of,
    shape_of,
    shape_symbols,
)
from .precision import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FP16_BLOCK,
    LACKING_PRECISIONS,
    STORAGE_PREFERENCE,
    Precision,
    QParams,
    Storage,
)

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
# The largest magnitude that FP16 is used for: half of what float16 holds, since calibration may not have seen all.
_FP16_RANGE = 65504 / 2
# A tensor of this many elements is cast to learn what storing costs per byte.
_PROBE_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Network:
    """A module in grouped form with what planning needs to know of it.

    shapes : the shape of every float tensor (model inputs, groups, fields of tuples), by name, at the typical extents.
    typical : an extent for every symbol, by name: what costs are measured at and kernels are made for.
    outputs : names of the model's outputs.
    given : what a quantized model decides itself.
    """

    mod: tvm.IRModule
    groups: tuple[Group, ...]
    shapes: Mapping[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    typical: Mapping[str, int] = field(default_factory=dict)
    given: Given = field(default_factory=Given)

    @classmethod
    def of(cls, mod: tvm.IRModule, groups: Sequence[Group], typical: Mapping[str, int] | None = None) -> Network:
        """The network of a module in grouped form."""
        main = mod["main"]
        found = {v.name: FOUND_EXTENT for v in shape_symbols(main.params)}
        extents = {**found, **(typical or {})}
        tensors = [*main.params, *(b.var for b in op_bindings(main))]
        shapes = {
            v.name: tuple(evaluate_dim(d, extents) for d in dims_of(v))
            for v in tensors
            if isinstance(v.ty, relax.TensorType) and dtype_of(v) == "float32"
        }
        return cls(mod, tuple(groups), shapes, tuple(v.name for v in outputs_of(main)), extents, Given.of(groups))

    def products(self) -> int:
        """Multiply-adds of one call in convolutions and matrix products with constant weights: what the time of an
        evaluation in PyTorch goes with."""
        total = 0
        for group in self.groups:
            if group.kind in ("conv", "depthwise", "matmul"):
                out = self.shapes[group.name]
                total += math.prod(out) * math.prod(shape_of(group.anchor.value.args[1])) // out[-1]
        return total

    def exact_inputs(self, group: Group) -> tuple[str, ...]:
        """Names of the float tensors that the group's anchor multiplies."""
        return tuple(dict.fromkeys(group.inputs[i] for i in group.exact_inputs))

    def quantizable(self) -> set[str]:
        """Tensors that 256 levels may hold: what a multiplication computes or reads, and what only moves it. Others,
        such as masks, have distributions that no affine grid suits."""
        found = {g.name for g in self.groups if g.kind in COMPUTE_KINDS}
        found |= {t for g in self.groups for t in self.exact_inputs(g)} | self.given.qparams.keys()
        links = [{g.name, *g.inputs} & self.shapes.keys() for g in self.groups if g.kind in MOVEMENT_KINDS]
        while grown := [link for link in links if link & found and not link <= found]:
            found.update(*grown)
        return found

    def without_epilogue(self) -> list[str]:
        """Float tensors whose producer cannot write a second storage: a stand-alone cast has to."""
        with_epilogue = {g.name for g in self.groups if g.kind in EPILOGUE_KINDS}
        return [t for t in self.shapes if t not in with_epilogue]


def storage_of(tensor: str, dtype: str, qparams: Mapping[str, QParams]) -> Storage:
    """The storage of a tensor in a dtype, with its quantization parameters where it is uint8."""
    return Storage(dtype, qparams[tensor] if dtype == "uint8" else None)


def precisions_of(
    network: Network, group: Group, target: Target, qparams: Mapping[str, QParams]
) -> tuple[Precision, ...]:
    """What a group may compute in on a target, the most exact first; only INT8 where the model gives it and its
    parameters are among ``qparams``."""
    if group.kind not in COMPUTE_KINDS:
        return (Precision.FP32,)
    found = [p for p in target.precisions() if p not in LACKING_PRECISIONS.get(group.kind, ())]
    if not all(t in qparams for t in network.exact_inputs(group)):
        found = [p for p in found if p is not Precision.INT8]
    if Precision.FP16 in found and not _fits_fp16(network, group, qparams):
        found.remove(Precision.FP16)
    if group.name in network.given.groups and Precision.INT8 in found:
        return (Precision.INT8,)
    return tuple(found)


def _fits_fp16(network: Network, group: Group, qparams: Mapping[str, QParams]) -> bool:
    """Whether nothing that a group multiplies, nor a block of its products, exceeds float16 on the calibration data."""
    inputs = network.exact_inputs(group)
    if not all(t in qparams for t in inputs):
        return False
    largest = [qparams[t].largest for t in inputs]
    products = max(largest, default=0.0) ** 2
    if group.kind in ("conv", "depthwise", "matmul"):
        largest.append(float(np.abs(constant_value(group.anchor.value.args[1])).max(initial=0.0)))
        products = largest[0] * largest[-1]
    return max(*largest, products * FP16_BLOCK) <= _FP16_RANGE


def candidate(
    network: Network, group: Group, precision: Precision, qparams: Mapping[str, QParams], *, per_channel: bool
) -> KernelRequest:
    """The kernel whose time stands for a group at a precision: everything it touches is stored in that precision, of a
    group without epilogue only what it multiplies."""
    function = group.function
    dtype = precision.storage_dtype

    def stored(name: str, native: str) -> Storage:
        if native != "float32":
            return Storage(native)
        return storage_of(name, "float32" if dtype == "uint8" and name not in qparams else dtype, qparams)

    has_epilogue = group.kind in EPILOGUE_KINDS
    inputs = tuple(stored(name, dtype_of(p)) if has_epilogue or i in group.exact_inputs else Storage(dtype_of(p))
                   for i, (name, p) in enumerate(zip(group.inputs, group.parameters, strict=True)))
    results = outputs_of(function)
    outputs = tuple(stored(group.name, dtype_of(r)) if len(results) == 1 else Storage(dtype_of(r)) for r in results)
    typical = tuple(sorted(network.typical.items()))
    return KernelRequest(group, precision, inputs, outputs, per_channel, typical=typical)


@dataclass(frozen=True)
class Costs:
    """Measured microseconds: of every candidate, of stand-alone casts, and of storing a byte."""

    groups: Mapping[tuple[str, Precision], float]
    casts: Mapping[tuple[str, str], float]
    byte_us: float


Measure = Callable[[Sequence[Kernel]], list[float]]
Emit = Callable[[KernelRequest], Kernel]


def measure_costs(
    network: Network, target: Target, qparams: Mapping[str, QParams], emit: Emit, measure: Measure, *, per_channel: bool
) -> Costs:
    """Emit and time every candidate and every cast that a plan could want, all in one go."""
    candidates = [
        (g.name, p, emit(candidate(network, g, p, qparams, per_channel=per_channel)))
        for g in network.groups
        if has_kernel(g)
        for p in precisions_of(network, g, target, qparams)
    ]
    casts = [
        (t, s.dtype, build_cast(network.shapes[t], FLOAT32, s, target.capabilities, target.threads))
        for t in network.without_epilogue()
        for s in (
            *([FLOAT16] if Precision.FP16 in target.precisions() else []),
            BFLOAT16,
            *([storage_of(t, "uint8", qparams)] if t in qparams else []),
        )
    ]
    probe = build_cast((_PROBE_ELEMENTS,), FLOAT32, BFLOAT16, target.capabilities, target.threads)
    times = measure([*(k for _, _, k in candidates), *(k for _, _, k in casts), probe])
    groups = {(g.name, Precision.FP32): 0.0 for g in network.groups if not has_kernel(g)}
    groups |= {(name, p): t for (name, p, _), t in zip(candidates, times, strict=False)}
    cast_us = {(name, d): t for (name, d, _), t in zip(casts, times[len(candidates) :], strict=False)}
    return Costs(groups, cast_us, times[-1] / (6 * _PROBE_ELEMENTS))


def nominal_costs(network: Network, target: Target, qparams: Mapping[str, QParams]) -> Costs:
    """Costs for a plan that is forced: only the storages are open, and what counts for them is bytes."""
    byte_us = 1e-4
    casts = {
        (t, d): math.prod(network.shapes[t]) * (4 + _DTYPE_BYTES[d]) * byte_us
        for t in network.without_epilogue()
        for d in ("float16", "bfloat16", "uint8")
    }
    groups = {(g.name, p): 0.0 for g in network.groups for p in precisions_of(network, g, target, qparams)}
    return Costs(groups, casts, byte_us)


def build_problem(
    network: Network,
    costs: Costs,
    qparams: Mapping[str, QParams],
    macs: Mapping[str, int],
    noise: Sensitivities | None,
    forced: Mapping[str, Precision],
) -> Problem:
    """The assignment problem without a noise limit; ``noise`` None where only speed and force count."""
    by_group: dict[str, dict[Precision, float]] = {}
    for (name, precision), cost in costs.groups.items():
        by_group.setdefault(name, {})[precision] = cost
    options = tuple(
        GroupOptions.of(
            g,
            by_group[g.name],
            {p: noise.compute.get((g.name, p), 0.0) if noise and g.name not in network.given.groups else 0.0
             for p in by_group[g.name]},
            macs=macs.get(g.name, 0),
            shared_qparams=len({qparams.get(t) for t in g.inputs}) == 1,
        )
        for g in network.groups
    )
    views = {g.name for g in network.groups if not has_kernel(g)}
    store_us = {
        (t, d): math.prod(shape) * size * costs.byte_us
        for t, shape in network.shapes.items()
        if t not in views
        for d, size in _DTYPE_BYTES.items()
    }
    narrow = {"bfloat16": set(network.shapes), "uint8": network.quantizable() & qparams.keys()}
    if any(p is Precision.FP16 for _, p in costs.groups):
        narrow["float16"] = {t for t, q in qparams.items() if q.largest <= _FP16_RANGE}
    storages = {
        t: tuple(d for d in STORAGE_PREFERENCE if d == "float32" or t in narrow.get(d, ())) for t in network.shapes
    }
    exact = {(t, "uint8") for t in network.given.qparams}
    measured = noise.storage if noise else {}
    storage_noise = {key: measured[key] for key in _storages(storages) if key in measured and key not in exact}
    return Problem(
        options,
        network.outputs,
        frozenset(network.shapes),
        store_us,
        dict(costs.casts),
        storage_noise,
        math.inf,
        dict(forced),
        storages,
    )


def _storages(storages: Mapping[str, tuple[str, ...]]) -> Iterable[tuple[str, str]]:
    return ((tensor, dtype) for tensor, dtypes in storages.items() for dtype in dtypes)
