"""The placeholders of an exported program: what it holds, and the inputs it is called with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.export.graph_signature import InputSpec as GraphInput
from torch.fx import Node
from tvm import relax, tirx

from ...errors import ImportModelError
from ..model import DimRange
from .context import Value, relax_dtype
from .symbols import Symbols


def bind_inputs(program: ExportedProgram, symbols: Symbols) -> dict[Node, Value]:
    """The values of the placeholders: variables for the tensors that the user passes, else constants."""
    values: dict[Node, Value] = {}
    for node, spec in _placeholders(program):
        if spec.kind != InputKind.USER_INPUT:
            values[node] = None if spec.kind == InputKind.TOKEN else _stored(program, spec)
        elif isinstance(spec.arg, ConstantArgument):
            values[node] = spec.arg.value
        elif isinstance(node.meta["val"], torch.Tensor):
            tensor = node.meta["val"]
            values[node] = relax.Var(node.name, relax.TensorType(symbols.dims(tensor), relax_dtype(tensor.dtype)))
        else:
            raise ImportModelError("inputs that are not tensors have to be constant", layer=node.name,
                                   hint="export the program with a fixed value for it")
    return values


def _placeholders(program: ExportedProgram) -> Iterator[tuple[Node, GraphInput]]:
    nodes = [n for n in program.graph.nodes if n.op == "placeholder"]
    return zip(nodes, program.graph_signature.input_specs, strict=True)


def _stored(program: ExportedProgram, spec: GraphInput) -> torch.Tensor:
    """A parameter, buffer or constant of the program, on the CPU, floating point as float32."""
    state, constants = program.state_dict, program.constants
    tensor = state[spec.target] if spec.target in state else constants.get(spec.target)
    if not isinstance(tensor, torch.Tensor):
        raise ImportModelError("the program holds something that is not a tensor", layer=str(spec.target),
                               found=type(tensor).__name__)
    return single(tensor.detach().cpu())


def single(tensor: torch.Tensor) -> torch.Tensor:
    """Floating point as float32, the rest as it is."""
    return tensor.float() if tensor.is_floating_point() else tensor


def hints_of(program: ExportedProgram, symbols: Symbols, examples: list[Any] | None) -> dict[str, int]:
    """The extents that the symbols have in the example inputs, by name; the least possible for one in no example.

    ``examples`` has one entry for every input of the program, tensors or not. ImportModelError where they do not fit.
    """
    users = [(n, s) for n, s in _placeholders(program) if s.kind == InputKind.USER_INPUT]
    if examples is not None and len(examples) != len(users):
        raise ImportModelError("the number of example inputs is not the program's", found=len(examples),
                               expected=[s.arg.name for _, s in users])
    hints: dict[str, int] = {}
    for (node, spec), example in zip(users, examples or [], strict=examples is not None):
        if not isinstance(spec.arg, ConstantArgument) and isinstance(node.meta["val"], torch.Tensor):
            _match(node, symbols, example, hints)
    return {name: hints.get(name, own.minimum) for name, own in symbols.ranges.items()}


def _match(node: Node, symbols: Symbols, example: Any, hints: dict[str, int]) -> None:
    """Check the shape of one example; the extents of plain symbols become their hints."""
    dims = node.meta["val"].shape
    if not isinstance(example, torch.Tensor) or example.ndim != len(dims):
        raise ImportModelError("the example input does not fit", layer=node.name, expected=f"a tensor {tuple(dims)}",
                               found=tuple(getattr(example, "shape", ())) or type(example).__name__)
    for dim, given in zip(dims, map(int, example.shape), strict=True):
        symbol = symbols.dim(dim)
        if isinstance(dim, int) and given != dim:
            raise ImportModelError("the example input does not fit a dimension that the program has fixed",
                                   layer=node.name, found=given, expected=dim)
        if isinstance(symbol, tirx.Var):
            _hint(node.name, symbol.name, symbols.ranges[symbol.name], given, hints)


def _hint(layer: str, name: str, own: DimRange, given: int, hints: dict[str, int]) -> None:
    if given < own.minimum or (own.maximum is not None and given > own.maximum):
        raise ImportModelError("the example input is outside of the range the program was exported for", layer=layer,
                               found=given, expected=f"{own.minimum} to {own.maximum or 'any number'}")
    if hints.setdefault(name, given) != given:
        raise ImportModelError("example inputs disagree about a dynamic dimension", layer=layer, found=given,
                               expected=hints[name])
