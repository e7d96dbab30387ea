"""Operators as compositions of ONNX's own: a fused operator calls the translations of what it fuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx
from tvm import relax

from .node import OPERATORS, OnnxNode, Tensor


def standard(node: OnnxNode, op: str, inputs: Sequence[Tensor | None], part: str | None = None, *,
             opset: int = onnx.defs.onnx_opset_version(), **attributes: object) -> Tensor:
    """The first result of ONNX's operator ``op`` on ``inputs``, as part of ``node``."""
    inner = replace(node, op=op, domain="", opset=opset, inputs=tuple(inputs), outputs=(node.label,),
                    attributes=attributes, declared=(), name=node.name if part is None else f"{node.name}.{part}")
    result = OPERATORS["", op](inner)
    return result[0] if isinstance(result, tuple) else result


def permuted(node: OnnxNode, x: Tensor, axes: Sequence[int], part: str | None = None) -> Tensor:
    """``x`` with its axes in another order; an array at once."""
    if isinstance(x, relax.Var):
        return node.emit(relax.op.permute_dims(x, list(axes)), part)
    return x.transpose(axes)


def channels_first(node: OnnxNode, x: Tensor, rank: int) -> Tensor:
    """[N, spatial…, C] as [N, C, spatial…]."""
    return permuted(node, x, [0, rank - 1, *range(1, rank - 1)], "channels_first")


def channels_last(node: OnnxNode, x: Tensor, rank: int) -> Tensor:
    """[N, C, spatial…] as [N, spatial…, C]."""
    return permuted(node, x, [0, *range(2, rank), 1])
