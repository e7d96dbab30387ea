"""The name of the user's layer that a node of an exported graph belongs to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from . import movement, padding, slicing

# Operators that are neither the work of a layer nor worth a name of their own there.
_SIDE_WORK = frozenset({*movement.TABLE, *slicing.TABLE, *padding.TABLE, "clone", "contiguous", "to", "_to_copy",
                        "alias", "detach", "dropout"})
# Operators that are their module's work where they read its weight.
_LAYERS = frozenset({
    "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "batch_norm", "layer_norm",
})
# What torch.export calls the model itself in front of a path.
_SELF = re.compile(r"^(L__self__|L\['self'\])\.?")
_SHORT = {"scaled_dot_product_attention": "attention", "native_layer_norm": "layer_norm", "addmm": "linear"}


class LayerNames:
    """Names of nodes by the innermost module that was running.

    A layer (a module without submodules, in which one operator works) gives its path: ``"layer1.0.conv1"``; so does the
    operator that multiplies by the ``weight`` of a module that does more, or holds another (a padding). What else a
    forward() that runs submodules or several operators computes itself gets the operator's name behind the path:
    ``"layer1.0.add"``, ``"encoder.attn.linear"``; so does the movement of data around a layer's operator. At the top of
    the model it is the name of the graph's node: ``"add_1"``.

    Parameters
    ----------
    nodes : the nodes whose values depend on the model's inputs.
    parameters : the model's own name of every placeholder that holds a parameter: ``"layer1.0.conv1.weight"``.
    """

    def __init__(self, nodes: Sequence[Node], parameters: Mapping[str, str]) -> None:
        self._parameters = parameters
        self._parents = {prefix for node in nodes for prefix in _prefixes(_path(node))}
        calls = Counter(_run(n) for n in nodes if isinstance(n.target, torch._ops.OpOverload)
                        and _operator(n) not in _SIDE_WORK)
        self._composite = {run for run, count in calls.items() if count > 1}

    def of(self, node: Node) -> str:
        """The layer's name of a call."""
        path = _path(node)
        if not path:
            return str(node.name)
        if self._is_layer(node, path):
            return path
        operator = _operator(node)
        if path in self._parents or _run(node) in self._composite or operator in _SIDE_WORK:
            return f"{path}.{_SHORT.get(operator, operator)}"
        return path

    def _is_layer(self, node: Node, path: str) -> bool:
        """Whether the node is a convolution or a normalization with the weight of its own module."""
        weights = [a for a in node.args[1:3] if isinstance(a, Node)] if _operator(node) in _LAYERS else []
        return any(self._parameters.get(w.name) == f"{path}.weight" for w in weights)


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
    return _SELF.sub("", path)


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
