"""Op names for ONNX nodes: those of the layers that PyTorch's exporters came from, where the model tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

import onnx

# The key under which torch.onnx.export(dynamo=True) keeps the path of modules and the name of the call.
_SCOPES = "pkg.torch.onnx.name_scopes"
_PARAMETERS = (".weight", ".bias")
_COUNTER = re.compile(r"_\d+$")


def op_name(node: onnx.NodeProto, weights: Collection[str]) -> str:
    """The op name of ``node``: the module path that an exporter recorded, else the node's name, else its first result.

    A convolution into which the exporter folded a batch normalization is named after its own weight (``weights`` are
    the names of the model's initializers), not after the normalization.
    """
    scopes = _scopes(node)
    if scopes:
        path, call = scopes[-2], _COUNTER.sub("", scopes[-1])
        if "batch_norm" in call and node.op_type != "BatchNormalization":
            path = _owner(node, weights) or path
        return path or call
    if node.name.startswith("/") and not node.name.endswith("/"):
        return _path(node.name) or _COUNTER.sub("", node.name.strip("/")).lower()
    return node.name or next(filter(None, node.output), node.op_type)


def _scopes(node: onnx.NodeProto) -> list[str]:
    """[path of the outermost module, …, path of the innermost, name of the call]; empty where not recorded."""
    text = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    try:
        scopes = ast.literal_eval(text) if len(text) < 10_000 else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    if not isinstance(scopes, list) or len(scopes) < 2 or not all(isinstance(s, str) for s in scopes):
        return []
    return scopes


def _owner(node: onnx.NodeProto, weights: Collection[str]) -> str:
    """The module whose parameter the node reads; empty where there is none."""
    for name in node.input[1:]:
        for suffix in _PARAMETERS:
            if name in weights and name.endswith(suffix):
                return name.removesuffix(suffix)
    return ""


def _path(name: str) -> str:
    """``/layer1/layer1.0/conv1/Conv`` → ``layer1.0.conv1``: children of containers repeat the container's name."""
    parts: list[str] = []
    for part in name.split("/")[1:-1]:
        if parts and part.startswith(parts[-1] + "."):
            parts[-1] = part
        else:
            parts.append(part)
    return ".".join(parts)
