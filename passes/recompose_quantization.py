"""Recomposition of ``narrowcast.fake_quantize`` from the arithmetic of a quantization and of what undoes it."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..ir import Expr, dtype_of, op_name, same_dims, substitute, variables_of
from ..operators import fake_quantize
from ..operators.quantization import Grid
from .graph import Emit, Graph, Replacement, replace_matches, scalar
from .kinds import INDEXING, MAX_POOL


@dataclass(frozen=True)
class RecomposeFakeQuantize:
    """Write the rounding of a tensor to integers, followed by the way back, as one operator on floats.

    Before::

        s = relax.divide(x, 0.1); r = relax.round(s); z = relax.add(r, 3.0); c = relax.clip(z, 0, 255)
        q = relax.astype(c, "uint8"); m = relax.max_pool2d(q); f = relax.astype(m, "float32")
        d = relax.subtract(f, 3.0); y = relax.multiply(d, 0.1)

    After::

        q = narrowcast.fake_quantize(x, scale=0.1, zero_point=3, low=0, high=255); y = relax.max_pool2d(q)

    Requires: the normal form, before ``Simplify`` rewrites divisions.
    Ensures: integers between a quantization and a dequantization with the same scale and zero point are gone where
    nothing else reads them.
    Does not fire when: scale or zero point are not one known number; they differ between the two sides; something else
    than movement of elements and maximum pooling lies between.
    """

    name: str = "RecomposeFakeQuantize"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, _find)


def _find(graph: Graph, binding: relax.VarBinding) -> Replacement | None:
    levels = _dequantized(graph, binding)
    if levels is None:
        return None
    integers, scale, zero_point = levels
    chain: list[relax.VarBinding] = []
    sources: dict[relax.Var, tuple[Expr, Grid]] = {}
    pending = [integers]
    while pending:
        var = pending.pop(0)
        inner = graph.producer(var)
        if inner is None:
            return None
        source = _quantized(graph, inner)
        if source is not None:
            sources[var] = source
        elif _moves_levels(inner.value, zero_point):
            chain.append(inner)
            pending += variables_of(inner.value)
        else:
            return None
    if any((grid.scale, grid.zero_point) != (scale, zero_point) for _, grid in sources.values()):
        return None
    return _replacement(graph, sources, chain)


def _replacement(graph: Graph, sources: dict[relax.Var, tuple[Expr, Grid]],
                 chain: list[relax.VarBinding]) -> Replacement:
    """The roundings of all sources, then the same movements on floats."""
    chain = [b for b in graph.bindings if any(b is c for c in chain)]

    def build(emit: Emit, *values: Expr) -> Expr:
        moved: dict[relax.Var, Expr] = {}
        for (var, (_, grid)), x in zip(sources.items(), values, strict=True):
            moved[var] = emit(fake_quantize(x, scale=grid.scale, zero_point=grid.zero_point, low=grid.low,
                                            high=grid.high), name=var.name)
        for binding in chain:
            moved[binding.var] = emit(_on_floats(substitute(binding.value, moved)), name=binding.var.name)
        return moved[chain[-1].var] if chain else moved[next(iter(sources))]

    return Replacement(tuple(x for x, _ in sources.values()), build)


def _dequantized(graph: Graph, binding: relax.VarBinding) -> tuple[relax.Var, float, int] | None:
    """``(q, s, z)`` where the binding is ``(float(q) - z) * s``."""
    scaled = _with_number(graph, binding.var, "relax.multiply")
    if scaled is None or scaled[1] <= 0.0:
        return None
    value, scale = scaled
    shifted = _with_number(graph, value, "relax.subtract")
    value, zero = shifted if shifted is not None else (value, 0.0)
    cast = graph.call(value, "relax.astype")
    if cast is None or not isinstance(cast.args[0], relax.Var) or "int" not in dtype_of(cast.args[0]):
        return None
    return (cast.args[0], scale, int(zero)) if zero == int(zero) else None


def _quantized(graph: Graph, binding: relax.VarBinding) -> tuple[Expr, Grid] | None:
    """``(x, grid)`` where the binding is ``integer(clip(round(x / s) + z, low, high))``."""
    if op_name(binding.value) != "relax.astype" or dtype_of(binding.value.args[0]) != "float32":
        return None
    clip = graph.call(binding.value.args[0], "relax.clip")
    if clip is None:
        return None
    low, high = (int(float(a.value)) for a in clip.args[1:])
    shifted = _with_number(graph, clip.args[0], "relax.add")
    steps, zero = shifted if shifted is not None else (clip.args[0], 0.0)
    rounded = graph.call(steps, "relax.round")
    quotient = _with_number(graph, rounded.args[0], "relax.divide") if rounded is not None else None
    if quotient is None or quotient[1] <= 0.0 or not low <= zero <= high or zero != int(zero):
        return None
    return quotient[0], Grid(quotient[1], int(zero), low, high)


def _with_number(graph: Graph, expr: Expr, op: str) -> tuple[relax.Var, float] | None:
    """``(x, c)`` where ``expr`` is ``op(x, c)`` with a constant of one element that does not change the shape."""
    found = graph.with_scalar(expr, op)
    if found is None or not isinstance(found[0], relax.Var) or not same_dims(found[0], expr):
        return None
    return found[0], found[1]


def _moves_levels(call: Expr, zero_point: int) -> bool:
    """Whether an op on integers does the same to the values that they stand for."""
    if op_name(call) == "relax.nn.pad":
        constants = [scalar(a) for a in call.args[1:]]
        filled = constants[0] if constants else float(call.attrs.pad_value)
        return str(call.attrs.pad_mode) != "constant" or filled == zero_point
    return op_name(call) in INDEXING | MAX_POOL and any(True for _ in variables_of(call)) and not any(
        scalar(a) is not None for a in call.args)


def _on_floats(call: relax.Call) -> Expr:
    """The movement of floats; what is padded with the zero point is padded with 0."""
    if op_name(call) == "relax.nn.pad" and str(call.attrs.pad_mode) == "constant":
        return relax.op.nn.pad(call.args[0], [int(w) for w in call.attrs.pad_width], pad_value=0.0)
    return relax.Call(call.op, call.args, call.attrs)
