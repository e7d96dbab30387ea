"""Evaluation at compile time of what does not depend on an input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import tvm
from tvm import relax

from ..errors import UnsupportedOperatorError
from ..ir import (
    Constant,
    Expr,
    GraphBuilder,
    constant,
    constant_value,
    op_bindings,
    op_name,
    rewrite,
    symbols_used,
    with_main,
    without_dead_code,
)
from ..operators.reference import evaluate_tensor, leaves_of
from .base import Refusal


@dataclass(frozen=True)
class FoldConstants:
    """Replace every op that reads constants only by its value.

    Before::

        w = relax.permute_dims(W); y = relax.matmul(x, w)

    After::

        y = relax.matmul(x, W')

    Requires: the normal form.
    Ensures: an op that stays reads a variable, or is refused.
    Does not fire when: the result has more than ``max_elements`` elements and more than ``growth`` times those of its
    operands (a broadcast of a constant), the op has no reference semantics, or the result is a tuple.

    max_elements : of a result that may be larger than its operands.
    growth : how many times larger a result may be whatever its size.
    """

    max_elements: int = 1 << 16
    growth: float = 1.0
    name: str = "FoldConstants"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return self._fold(mod)[0]

    def refusals(self, mod: tvm.IRModule) -> list[Refusal]:
        """The constant ops of ``mod`` that stay, with the reason."""
        return self._fold(mod)[1]

    def _fold(self, mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Refusal]]:
        refused: list[Refusal] = []

        def visit(builder: GraphBuilder, binding: relax.VarBinding, value: Expr) -> Expr:
            if op_name(value) is None or not all(isinstance(leaf, Constant) for leaf in leaves_of(value)):
                return value
            if symbols_used(value):
                return value
            result, reason = self._value(binding, value)
            if result is None:
                refused.append((binding.var.name, reason))
            return value if result is None else result

        main = rewrite(mod["main"], visit)
        return with_main(mod, without_dead_code(main) if op_bindings(main) else main), refused

    def _value(self, binding: relax.VarBinding, call: relax.Call) -> tuple[Constant | None, str]:
        if not isinstance(binding.var.ty, relax.TensorType):
            return None, "the result is a tuple"
        leaves = [constant_value(leaf) for leaf in leaves_of(call)]
        shape = binding.var.ty.shape
        if shape is None or not all(isinstance(dim, tvm.tirx.IntImm) for dim in shape):
            return None, "the shape is not static"
        elements = math.prod(int(dim) for dim in shape)
        if elements > max(self.max_elements, self.growth * sum(leaf.size for leaf in leaves)):
            return None, f"the result has {elements} elements, many more than its operands"
        try:
            value = evaluate_tensor(call, [torch.tensor(leaf) for leaf in leaves], binding.var.name)
        except UnsupportedOperatorError as error:
            return None, error.problem
        return constant(value.detach().contiguous().numpy()), ""
