"""Rules for ``narrowcast.fake_quantize``: roundings merge, absorb clamps, and move to the op that computes."""

from __future__ import annotations

from tvm import relax

from ..ir import Constant, Expr, op_name, substitute, variables_of
from ..operators.quantization import FAKE_QUANTIZE, Grid, grid_of
from .graph import Emit, Graph, Replacement
from .kinds import INDEXING, MAX_POOL, pads_zero

# How far above the last level, in levels, a bound may cut off what is rounded to that level anyway.
_HALF = 0.49


def rounding_rule(graph: Graph, call: relax.Call) -> Replacement | None:
    """A rounding of values on the grid goes; one of a clamp that the grid's range implies reads what is clamped; one of
    moved elements rounds what is moved, so that the op that computes it can."""
    grid = Grid.of(call)
    if _is_on_grid(graph, call.args[0], grid):
        return Replacement((call.args[0],), lambda emit, x: x)
    return _absorb_clamp(graph, call, grid) or _move(graph, call, grid)


def is_above_zero(graph: Graph, expr: Expr) -> bool:
    """Whether ``expr`` is a rounding to a grid without negative values."""
    call = graph.call(expr, FAKE_QUANTIZE)
    return call is not None and Grid.of(call).range[0] >= 0.0


def _is_on_grid(graph: Graph, expr: Expr, grid: Grid) -> bool:
    """Whether all values of ``expr`` are on the grid: rounded to it, then moved at most."""
    binding = graph.producer(expr)
    if binding is None:
        return False
    inner = grid_of(binding.value)
    if inner is not None:
        same = (inner.scale, inner.zero_point) == (grid.scale, grid.zero_point)
        return same and grid.low <= inner.low and inner.high <= grid.high
    return moves(binding.value) and all(_is_on_grid(graph, v, grid) for v in variables_of(binding.value))


def _is_rounded(graph: Graph, expr: Expr) -> bool:
    """Whether all values of ``expr`` are on grids of any kind, so that they are stored in 8 bits anyway."""
    binding = graph.producer(expr)
    if binding is None:
        return False
    return grid_of(binding.value) is not None or (
        moves(binding.value) and all(_is_rounded(graph, v) for v in variables_of(binding.value)))


def moves(call: Expr) -> bool:
    """Whether an op's elements are elements of its variable operands, or 0; or the largest of some."""
    if op_name(call) == "relax.nn.pad" and not pads_zero(call):
        return False
    fields = [f for a in call.args for f in (a.fields if isinstance(a, relax.Tuple) else [a])] \
        if isinstance(call, relax.Call) else []
    constants = any(isinstance(f, Constant) for f in fields) and op_name(call) != "relax.nn.pad"
    return op_name(call) in INDEXING | MAX_POOL and not constants


def _absorb_clamp(graph: Graph, call: relax.Call, grid: Grid) -> Replacement | None:
    """The rounding saturates where the clamp would; what another op reads as well stays clamped once."""
    inner = graph.call(call.args[0], "relax.nn.relu", "relax.clip")
    if inner is None or graph.only_reader(call.args[0]) is None:
        return None
    low, high = (0.0, float("inf")) if op_name(inner) == "relax.nn.relu" else (
        float(inner.args[1].value), float(inner.args[2].value))
    slack = _HALF * grid.scale
    if low > grid.range[0] + slack or high < grid.range[1] - slack:
        return None
    return Replacement((inner.args[0],), lambda emit, x: relax.Call(call.op, [x], call.attrs))


def _move(graph: Graph, call: relax.Call, grid: Grid) -> Replacement | None:
    """``round(move(x))`` is ``move(round(x))`` where nothing else reads ``x`` or what is moved of it, or ``x`` is on a
    grid already."""
    chain: list[relax.VarBinding] = []
    sources: list[relax.Var] = []
    pending = [call.args[0]]
    while pending:
        var = pending.pop(0)
        binding = graph.producer(var)
        if binding is None or graph.only_reader(var) is None:
            if not _is_rounded(graph, var):
                return None
        elif moves(binding.value):
            chain.append(binding)
            pending += dict.fromkeys(variables_of(binding.value))
            continue
        sources.append(var)
    if not chain:
        return None
    chain.sort(key=lambda b: graph.bindings.index(b))
    kept = [_is_on_grid(graph, v, grid) for v in sources]

    def build(emit: Emit, *values: Expr) -> Expr:
        moved = {old: new if on_grid else emit(relax.Call(call.op, [new], call.attrs), "")
                 for old, new, on_grid in zip(sources, values, kept, strict=True)}
        for binding in chain:
            moved[binding.var] = emit(substitute(binding.value, moved), name=binding.var.name)
        return moved[chain[-1].var]

    return Replacement(tuple(sources), build)
