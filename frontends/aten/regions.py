"""Inlines the regions that ``torch.no_grad`` and ``torch.autocast`` make of parts of a forward()."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

# The position of the region's module among the call's arguments; those of the module follow it.
_REGIONS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


def inline_regions(program: ExportedProgram) -> ExportedProgram:
    """The program with the regions' nodes in the place of the calls of the regions, under their layers' names.

    Neither region changes a value after import, where there are no gradients and floating point is float32. (PyTorch's
    own way of inlining forgets which layer a node belongs to.)
    """
    if not any(_module_position(node) is not None for node in program.graph.nodes):
        return program
    graph = Graph()
    outputs = _copy(program.graph_module, graph, {})
    graph.output(tuple(outputs))
    module = GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return program._update(module, program.graph_signature)


def _module_position(node: Node) -> int | None:
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return None
    return _REGIONS.get(node.target.name())


def _copy(source: GraphModule, graph: Graph, values: dict[Node, Any]) -> list[Any]:
    """Append the nodes of ``source`` to ``graph``; returns what it returns. ``values`` holds what is bound already."""
    regions = {node for node in source.graph.nodes if _module_position(node) is not None}
    for node in source.graph.nodes:
        if node in values:
            continue
        if node.op == "output":
            return list(torch.fx.map_arg(node.args[0], lambda n: values[n]))
        if node in regions:
            values[node] = _copy_region(source, graph, node, values)
        elif node.op == "call_function" and node.args[:1] and node.args[0] in regions:
            values[node] = values[node.args[0]][node.args[1]]
            if any(user.op == "output" for user in node.users):
                values[node].name = node.name  # the program's signature names its outputs
        elif not (node.op == "get_attr" and set(node.users) <= regions):
            values[node] = graph.node_copy(node, lambda n: values[n])
    return []


def _copy_region(source: GraphModule, graph: Graph, call: Node, values: dict[Node, Any]) -> list[Any]:
    arguments: list[Any] = list(call.args)[_module_position(call):]
    region: Any = source.get_submodule(arguments.pop(0).target)
    arguments = list(torch.fx.map_arg(arguments, lambda n: values[n]))
    placeholders = [n for n in region.graph.nodes if n.op == "placeholder"]
    return _copy(region, graph, dict(zip(placeholders, arguments, strict=True)))
