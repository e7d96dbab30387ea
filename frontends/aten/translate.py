"""Walks an exported ATen graph once and writes it in the normal form."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import sympy
import torch
import tvm
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree
from tvm import relax

from ...dims import equal_dims, product_of
from ...errors import CompileError, ImportModelError, UnsupportedOperatorError
from ...ir import GraphBuilder, TensorSpec, constant, dims_of, with_main, without_dead_code
from ..model import ImportedModel, Requirement
from .conditions import condition_of
from .context import UNAVAILABLE, UNDECIDED, Context, Value, is_variable, shape, to_numpy
from .graph import IGNORED, SHAPE_QUERIES, dependent_nodes, handler_of, packet_name
from .inputs import bind_inputs, hints_of, single
from .names import LayerNames
from .symbols import Symbols

# Keyword arguments that say nothing about values once every tensor is on the CPU with the type it is inferred to have.
_NOISE = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "generator", "out"})

# Calls that read the only element of a tensor.
_READS = (torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default)

NO_TRANSLATION = "it has no translation"


class _Missing:
    """Stands for the result of a call that could not be translated, so that the walk finds the other problems."""


_MISSING = _Missing()


class Translator:
    """One translation of one exported program.

    Parameters
    ----------
    program : without visible mutation (``graph.functionalize``).
    symbols : its symbolic dims.
    examples : the example inputs, one for every input of the program, or None; they give hints.
    """

    def __init__(self, program: ExportedProgram, symbols: Symbols, examples: list[Any] | None) -> None:
        self._program = program
        self._symbols = symbols
        self._examples = examples
        parameters = {s.arg.name: s.target for s in program.graph_signature.input_specs
                      if s.kind == InputKind.PARAMETER and s.target is not None}
        self._names = LayerNames(dependent_nodes(program), parameters)
        self._values: dict[Node, Value] = {}
        self._problems: list[tuple[str, str, UnsupportedOperatorError]] = []
        self._builder = GraphBuilder([])
        self._requirements: list[Requirement] = []
        self._conditions: list[tuple[sympy.Basic, str]] = []

    def run(self) -> ImportedModel:
        """The imported model; UnsupportedOperatorError with everything that has no translation."""
        self._values = bind_inputs(self._program, self._symbols)
        parameters = [v for v in self._values.values() if isinstance(v, relax.Var)]
        self._builder = GraphBuilder(parameters)
        for node in self._program.graph.nodes:
            if node.op == "call_function":
                self._values[node] = self._call(node)
            elif node.op == "get_attr":
                self._values[node] = _MISSING
        self._raise_problems()
        variables, names = self._outputs()
        main = without_dead_code(self._builder.finish(variables))
        hints = hints_of(self._program, self._symbols, self._examples)
        requirements = (*self._symbols.requirements(self._conditions), *self._requirements)
        inputs = tuple(TensorSpec.of(v, v.name) for v in parameters)
        return ImportedModel(with_main(tvm.IRModule({}), main), inputs, names, "pytorch", hints, self._symbols.ranges,
                             requirements)

    def _call(self, node: Node) -> Value:
        op: Any = node.target
        if isinstance(op, torch._ops.OpOverload) and packet_name(op) in IGNORED:
            self._keep_condition(node)
            return None
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, torch.SymFloat)):
            return self._extent(node)
        call: Any = torch.fx.map_arg((node.args, node.kwargs), lambda n: self._values[n])
        args, kwargs = call
        if any(v is _MISSING for v in pytree.tree_leaves((args, kwargs))):
            return _MISSING
        if any(v is UNDECIDED for v in pytree.tree_leaves((args, kwargs))):
            return self._refuse(node, "a condition on dynamic extents has no translation")
        if isinstance(op, torch._ops.HigherOrderOperator):
            return self._higher_order(node, op, args)
        if not is_variable((args, tuple(kwargs.values()))):
            return self._compute(node, args, kwargs)
        if not isinstance(op, torch._ops.OpOverload):
            return self._item(node, *args) if op is operator.getitem else self._refuse(node, NO_TRANSLATION)
        if packet_name(op) in SHAPE_QUERIES:
            return _shape_answer(packet_name(op), *args)
        return self._translate(node, op, args, kwargs)

    def _translate(self, node: Node, op: torch._ops.OpOverload, args: Any, kwargs: Any) -> Value:
        handler = handler_of(op)
        if handler is None:
            return self._refuse(node, NO_TRANSLATION)
        context = Context(self._builder, self._names.of(node), node.meta["val"], self._symbols.dims,
                          self._requirements)
        try:
            return self._settled(context, handler(context, *_positional(op, args, kwargs), **_keywords(op, kwargs)))
        except UnsupportedOperatorError as error:
            return self._refuse(node, error)
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, CompileError) as error:
            return self._refuse(node, f"this form of it has no translation ({_one_line(error)})")

    def _settled(self, context: Context, value: Value) -> Value:
        """The results with the extents that PyTorch gives them, where TVM cannot prove that its own are the same."""
        if isinstance(value, (tuple, list)):
            return [self._with_dims(context, v, r) for v, r in zip(value, context.result, strict=False)]
        return self._with_dims(context, value, context.result)

    def _with_dims(self, context: Context, value: Value, result: Any) -> Value:
        if not isinstance(value, relax.Var) or not isinstance(result, torch.Tensor):
            return value
        dims = self._symbols.dims(result)
        if value.ty.shape is not None and equal_dims(dims_of(value), dims):
            return value
        return self._builder.emit(relax.op.reshape(value, dims), context.name)

    def _extent(self, node: Node) -> Value:
        """A number that PyTorch computes from extents: an extent, a float32 scalar, or a truth value."""
        value: Any = node.meta["val"]
        source: Any = node.args[0] if node.args else None
        try:
            if isinstance(value, torch.SymInt):
                return self._symbols.dim(value)
            if isinstance(value, torch.SymFloat) and node.target in _READS:
                return self._symbols.read(value, self._builder.emit(relax.op.reshape(
                    self._values[source], ()), self._names.of(node)))
            if isinstance(value, torch.SymFloat):
                return self._symbols.scalar(self._builder, self._names.of(node), value)
            truth = self._symbols.truth(value)
            return UNDECIDED if truth is None else truth
        except UnsupportedOperatorError as error:
            return self._refuse(node, error)

    def _keep_condition(self, node: Node) -> None:
        """Remember what the program checks about its inputs' extents."""
        condition = condition_of(node)
        if condition is not None:
            layer = re.sub(r"\.?_*assert_scalar.*", "", self._names.of(node)) or "forward"
            self._conditions.append((condition, layer))

    def _item(self, node: Node, values: Value, position: Any) -> Value:
        value = values[position]
        if value is UNAVAILABLE and node.users:
            return self._refuse(node.all_input_nodes[0], f"its result number {position} has no translation")
        return value

    def _higher_order(self, node: Node, op: torch._ops.HigherOrderOperator, args: Any) -> Value:
        """Calls of functions: of checks, which vanish; control flow has no translation."""
        if op.name() == "with_effects" and packet_name(args[1]) in IGNORED:
            return (None, None)
        return self._refuse(node, "control flow has no translation")

    def _compute(self, node: Node, args: Any, kwargs: Any) -> Value:
        """A call that depends on no input, computed by PyTorch."""
        op: Any = node.target
        if isinstance(op, torch._ops.OpOverload):
            if torch.Tag.nondeterministic_seeded in op.tags and not _is_dropout(op):
                return self._refuse(node, "it draws random numbers")
            if op._schema.is_mutable:
                args = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, args)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": "cpu"}
        with torch.no_grad():
            return pytree.tree_map_only(torch.Tensor, single, op(*args, **kwargs))

    def _refuse(self, node: Node, reason: str | UnsupportedOperatorError) -> _Missing:
        name = self._names.of(node)
        error = reason if isinstance(reason, UnsupportedOperatorError) else UnsupportedOperatorError(reason, layer=name)
        self._problems.append((str(node.target), name, error))
        return _MISSING

    def _raise_problems(self) -> None:
        if not self._problems:
            return
        counts = Counter((op, error.problem) for op, _, error in self._problems)
        lines = []
        for (op, reason), count in counts.items():
            layers = list(dict.fromkeys(n for o, n, e in self._problems if (o, e.problem) == (op, reason)))
            shown = ", ".join(layers[:4]) + (f" and {len(layers) - 4} more" if len(layers) > 4 else "")
            lines.append(f"- {op}, {count} time{'s' if count > 1 else ''}, in {shown}: {reason}")
        first = self._problems[0][2]
        error = UnsupportedOperatorError(
            f"{len(counts)} operator{'s' if len(counts) > 1 else ''} of the model cannot be translated:\n"
            + "\n".join(lines),
            found=first.found if len(counts) == 1 else None, expected=first.expected if len(counts) == 1 else None,
            hint=(first.hint if len(counts) == 1 else None) or "replace them in the model by others")
        error.problems = tuple(e for _, _, e in self._problems)
        raise error

    def _outputs(self) -> tuple[list[relax.Var], tuple[str, ...]]:
        """The returned variables and their names; outputs that are None are left out."""
        specs = self._program.graph_signature.output_specs
        changed = [s.target or s.arg.name for s in specs
                   if s.kind not in (OutputKind.USER_OUTPUT, OutputKind.TOKEN)]
        if changed:
            raise ImportModelError("the model changes its own state, or its inputs, when it is called",
                                   found=", ".join(map(str, changed)),
                                   hint="return the new state as an output, and take the old one as an input")
        output = next(n for n in self._program.graph.nodes if n.op == "output")
        values = [self._values[n] if isinstance(n, Node) else n
                  for n, spec in zip(output.args[0], specs, strict=True) if spec.kind == OutputKind.USER_OUTPUT]
        kept = [(v, n) for v, n in zip(values, _output_names(self._program), strict=True) if v is not None]
        if not kept or not all(isinstance(v, (relax.Var, torch.Tensor)) for v, _ in kept):
            raise ImportModelError("the model has to return tensors", found=[type(v).__name__ for v in values])
        variables = [v if isinstance(v, relax.Var) else self._builder.emit(constant(to_numpy(v)), n) for v, n in kept]
        return variables, tuple(n for _, n in kept)


def _one_line(error: Exception) -> str:
    """An error's text without what TVM's printer leaves out of it."""
    lines = [line.strip() for line in str(error).splitlines() if not line.startswith("# Metadata omitted")]
    return re.sub(r'metadata\["[^"]*"\]\[\d+\]', "a constant", " ".join(lines))[:200]


def _is_dropout(op: torch._ops.OpOverload) -> bool:
    return "dropout" in packet_name(op)


def _shape_answer(query: str, x: Value, dim: int | None = None) -> Value:
    dims = shape(x)
    if "numel" in query:
        return product_of(dims)
    if query == "dim":
        return len(dims)
    return list(dims) if dim is None else dims[dim]


def _positional(op: torch._ops.OpOverload, args: tuple[Value, ...], kwargs: dict[str, Value]) -> list[Value]:
    """The positional arguments in the order of the schema, with its defaults."""
    specs = [a for a in op._schema.arguments if not a.kwarg_only]
    return [args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in enumerate(specs)]


def _keywords(op: torch._ops.OpOverload, kwargs: dict[str, Value]) -> dict[str, Value]:
    """The keyword-only arguments that were given and matter."""
    only = {a.name for a in op._schema.arguments if a.kwarg_only} - _NOISE
    return {name: value for name, value in kwargs.items() if name in only}


def _output_names(program: ExportedProgram) -> list[str]:
    """``"output"`` for a single one, else the keys and positions that lead to it: ``"logits"``, ``"output_0"`` …"""
    spec = program.call_spec.out_spec
    leaves = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))[0]
    names = [_path_name(path) for path, _ in leaves]
    return ["output"] if len(names) == 1 else names


def _path_name(path: Iterable[Any]) -> str:
    parts = [re.sub(r"\W", "", str(key)) for key in path]
    name = "_".join(parts)
    return f"output_{name}" if name[:1].isdigit() or not name else name
