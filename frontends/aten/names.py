"""The name of the user's layer that a node of an exported graph belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch.fx import Node

from . import movement

# Operators that are neither the work of a layer nor worth a name of their own there.
_SIDE_WORK = frozenset(movement.TABLE) | {"clone", "contiguous", "to", "_to_copy", "alias", "detach", "dropout"}
_SHORT = {"scaled_dot_product_attention": "attention", "native_layer_norm": "layer_norm", "addmm": "linear"}


class LayerNames:
    """Names of nodes by the innermost module that was running.

    A layer (a module without submodules, in which one operator works) gives its path: ``"layer1.0.conv1"``. What a
    forward() that runs submodules or several operators computes itself gets the operator's name behind the path:
    ``"layer1.0.add"``, ``"encoder.attn.linear"``; so does the movement of data around a layer's operator. At the top of
    the model it is the name of the graph's node: ``"add_1"``.

    Parameters
    ----------
    nodes : the nodes whose values depend on the model's inputs.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._parents = {prefix for node in nodes for prefix in _prefixes(_path(node))}
        calls = Counter(_run(n) for n in nodes if isinstance(n.target, torch._ops.OpOverload)
                        and _operator(n) not in _SIDE_WORK)
        self._composite = {run for run, count in calls.items() if count > 1}

    def of(self, node: Node) -> str:
        """The layer's name of a call."""
        path = _path(node)
        if not path:
            return str(node.name)
        operator = _operator(node)
        if path in self._parents or _run(node) in self._composite or operator in _SIDE_WORK:
            return f"{path}.{_SHORT.get(operator, operator)}"
        return path


def _operator(node: Node) -> str:
    op = node.target
    name = op._schema.name.split("::")[1] if isinstance(op, torch._ops.OpOverload) else node.name
    return str(name).strip("_") if name not in _SIDE_WORK else str(name)


def _run(node: Node) -> str:
    """The path of the innermost module, with PyTorch's mark of which of its calls it is (``relu@1``)."""
    stack = node.meta.get("nn_module_stack") or {}
    key, (path, _) = next(reversed(stack.items()), ("", ("", None)))
    return f"{path}@{key.rpartition('@')[2]}" if "@" in key and "@" not in path else str(path)


def _path(node: Node) -> str:
    path = re.sub(r"@\d+", "", _run(node))
    return path.removeprefix("L__self__").removeprefix("L['self']").lstrip("._")


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
