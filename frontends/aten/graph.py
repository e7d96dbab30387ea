"""Prepares an exported ATen graph for translation: no mutation, no operator that PyTorch could take apart for us."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument
from torch.fx import Node

from ...errors import ImportModelError
from . import TABLE, Handler

# Calls that only check or annotate.
IGNORED = frozenset({
    "_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size",
    "_linalg_check_errors",
})
# Calls answered from the static shapes of the variables.
SHAPE_QUERIES = frozenset({"sym_size", "sym_numel", "size", "numel", "dim"})
_ROUNDS = 8


def packet_name(op: torch._ops.OpOverload) -> str:
    """``"add"`` for every overload of ``aten.add``."""
    return str(op._schema.name.split("::")[1])


def handler_of(op: torch._ops.OpOverload) -> Handler | None:
    """The entry of the table for an operator; the in-place form has that of the functional one."""
    name = packet_name(op) if op.namespace == "aten" else f"{op.namespace}.{packet_name(op)}"
    names = [name, name.removesuffix("_")] if not name.startswith("__") else [name]
    keys = [key for n in names for key in (f"{n}.{op._overloadname}", n)]
    return next((TABLE[key] for key in keys if key in TABLE), None)


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """The program without mutation that other code can see.

    An in-place call on a fresh tensor nobody else reads (an activation with ``inplace=True``) is left to the
    translator, which takes it for the functional form; anything else is rewritten by PyTorch.
    """
    if any(_has_visible_effect(node) for node in program.graph.nodes):
        return _rerun(program, {})
    return program


def _has_visible_effect(node: Node) -> bool:
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload) or not op._schema.is_mutable:
        return False
    written = [a for spec, a in zip(op._schema.arguments, node.args, strict=False)
               if spec.alias_info is not None and spec.alias_info.is_write]
    return not (len(written) == 1 and isinstance(written[0], Node) and _is_private(written[0]))


def _is_private(node: Node) -> bool:
    """Whether the node makes a tensor of its own that one call reads."""
    op = node.target
    if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload) or len(node.users) != 1:
        return False
    aliases = [r.alias_info for r in op._schema.returns if r.alias_info is not None]
    if op._schema.is_mutable:
        return True
    return not aliases and packet_name(op) not in _MAYBE_VIEWS


# Composite operators that may return a view, although their schema does not say so.
_MAYBE_VIEWS = frozenset({"reshape", "flatten", "contiguous", "to", "dropout", "type_as", "expand_as", "view_as",
                          "reshape_as", "chunk", "getitem", "feature_dropout", "unsafe_chunk", "broadcast_to"})


def decompose_unknown(program: ExportedProgram) -> ExportedProgram:
    """The program with operators that have no entry replaced by PyTorch's decompositions, as far as there are any."""
    for _ in range(_ROUNDS):
        table = _decompositions(unknown_operators(program))
        if not table:
            return program
        program = _rerun(program, table)
    return program


def unknown_operators(program: ExportedProgram) -> set[torch._ops.OpOverload]:
    """The operators without an entry in calls that depend on the model's inputs."""
    operators = {n.target for n in dependent_nodes(program) if isinstance(n.target, torch._ops.OpOverload)}
    return {op for op in operators if not is_answered(op) and handler_of(op) is None}


def dependent_nodes(program: ExportedProgram) -> list[Node]:
    """The nodes whose values depend on the model's inputs, the inputs included, in order."""
    inputs = {spec.arg.name for spec in program.graph_signature.input_specs
              if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)}
    dependent: dict[Node, None] = {}
    for node in program.graph.nodes:
        is_input = node.op == "placeholder" and node.name in inputs
        if is_input or any(source in dependent for source in node.all_input_nodes):
            dependent[node] = None
    return list(dependent)


def user_inputs(program: ExportedProgram) -> list[Node]:
    """The placeholders of what the user passes, in order."""
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    return [n for n, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
            if spec.kind == InputKind.USER_INPUT]


def is_answered(op: torch._ops.OpOverload) -> bool:
    """Whether the call is ignored or a question about a shape."""
    return packet_name(op) in IGNORED | SHAPE_QUERIES


def _decompositions(operators: set[torch._ops.OpOverload]) -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """PyTorch's rules for those of the operators that have one."""
    if not operators:
        return {}
    rules = {**torch._decomp.decomposition_table, **torch.export.default_decompositions().materialize()}
    return {op: rule for op in operators if (rule := rules.get(op) or _composite_kernel(op)) is not None}


def _composite_kernel(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The kernel of an operator that is implemented by others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key):
        return None
    return functools.partial(op._op_dk, key)


def _rerun(program: ExportedProgram, table: dict[Any, Callable[..., Any]]) -> ExportedProgram:
    try:
        return program.run_decompositions(table)
    except Exception as error:  # PyTorch traces the program again and can raise anything
        raise ImportModelError("PyTorch cannot decompose the exported program",
                               found=next(iter(str(error).splitlines()), type(error).__name__)[:300]) from error
