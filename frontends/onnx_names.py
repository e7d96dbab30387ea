"""Op names for ONNX nodes: those that the PyTorch frontend gives, where the model says which layer a node came from."""

from __future__ import annotations

import ast
import re

import onnx

# The key under which torch.onnx.export(dynamo=True) keeps the path of modules and the name of the call.
_SCOPES = "pkg.torch.onnx.name_scopes"
_PARAMETERS = (".weight", ".bias")
_ATTENTION = "scaled_dot_product_attention"
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "LSTM", "BatchNormalization", "LayerNormalization")
# Modules nested deeper are not looked at.
_DEEPEST = 64
_COUNTER = re.compile(r"_\d+$")


class NodeNames:
    """Names of nodes by the modules that an exporter recorded, see ``frontends.aten.names``.

    A layer (a module that holds no other) gives its path, ``"layer1.0.conv1"``; what a module that holds others
    computes itself gets the operation's name behind the path, ``"layer1.0.add"``; what is outside of all modules is
    called by its operation, ``"add_1"``. Other nodes have their own names, else those of their first results.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._weights = {t.name for t in graph.initializer}
        origins = {tuple(node.output): origin for node in graph.node if (origin := _origin(node)) is not None}
        self._last = {origin: outputs for outputs, origin in origins.items()}
        paths = {path for path, _ in self._last}
        self._parents = {path[:i] for path in paths if path.count(".") <= _DEEPEST
                         for i, character in enumerate(path) if character == "."}

    def of(self, node: onnx.NodeProto) -> str:
        """The op name of ``node``.

        What reads a module's weights has the module's path even where that holds others (a padding, say). A
        convolution into which the exporter folded a batch normalization is called after its own weight. Of the nodes
        that attention was decomposed into, the last has its name, the others add what they are.
        """
        origin = _origin(node)
        if origin is None:
            return node.name or next(filter(None, node.output), node.op_type)
        path, operation = origin
        if "batch_norm" in operation and node.op_type != "BatchNormalization":
            path = self._owner(node) or path
        if not path:
            name = operation
        elif path in self._parents and not self._is_layer(node):
            name = f"{path}.{_COUNTER.sub('', operation).strip('_')}"
        else:
            name = path
        part_of_attention = operation.startswith(_ATTENTION) and self._last[origin] != tuple(node.output)
        return f"{name}.{node.op_type.lower()}" if part_of_attention else name

    def _is_layer(self, node: onnx.NodeProto) -> bool:
        """Whether the node is the main operation of a module with weights, even if that holds another (a padding)."""
        return node.op_type in _WITH_WEIGHTS and any(name in self._weights for name in node.input[1:2])

    def _owner(self, node: onnx.NodeProto) -> str:
        """The module whose parameter the node reads; empty where there is none."""
        for name in node.input[1:]:
            for suffix in _PARAMETERS:
                if name in self._weights and name.endswith(suffix):
                    return name.removesuffix(suffix)
        return ""


def _origin(node: onnx.NodeProto) -> tuple[str, str] | None:
    """The path of the innermost module and the operation's name; None where no exporter recorded them."""
    scopes = _scopes(node)
    if scopes:
        return scopes[-2], scopes[-1]
    if node.name.startswith("/") and not node.name.endswith("/"):
        return _path(node.name), node.name.rpartition("/")[2].lower()
    return None


def _scopes(node: onnx.NodeProto) -> list[str]:
    """[path of the outermost module, …, path of the innermost, name of the call]; empty where not recorded."""
    text = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    try:
        scopes = ast.literal_eval(text) if 0 < len(text) < 10_000 else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    if not isinstance(scopes, list) or len(scopes) < 2 or not all(isinstance(s, str) for s in scopes):
        return []
    return scopes


def _path(name: str) -> str:
    """``/layer1/layer1.0/conv1/Conv`` → ``layer1.0.conv1``: children of containers repeat the container's name."""
    parts: list[str] = []
    for part in name.split("/")[1:-1]:
        if parts and part.startswith(parts[-1] + "."):
            parts[-1] = part
        else:
            parts.append(part)
    return ".".join(parts)
