"""Einstein summation: which equations fit, and that none that does not reaches TVM, which would crash."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from narrowcast.errors import CompileError
from narrowcast.frontends import import_model
from narrowcast.frontends.equations import is_sound, sums_over_ellipsis

SOUND = [
    ("ij->ji", [(2, 3)]), ("ij,jk", [(2, 3), (3, 4)]), ("ii->i", [(3, 3)]), ("ij->", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]), ("...ij,...jk->...ik", [(2, 3), (6, 5, 3, 4)]),
    ("ij,ij->ij", [(1, 3), (4, 3)]), ("i...j->j...", [(2, 3)]),
]
UNSOUND = [
    ("ij->ik", [(2, 3)]), ("ij->ii", [(2, 3)]), ("ij,jk->ik", [(2, 3)]), ("ij,jk->ik", [(2, 3), (4, 5)]),
    ("i->i", [(2, 3)]), ("ij->...i", [(2, 3)]), ("ii->i", [(1, 3)]), ("...i,...i->...", [(2, 3), (4, 3)]),
    ("i->j->i", [(2,)]), ("ij..->i", [(2, 3)]), ("ijk...->i", [(2, 3)]), ("", [(2,)]),
]


@pytest.mark.parametrize(("equation", "shapes"), SOUND)
def test_equations_that_pytorch_computes_are_sound(equation: str, shapes: list[tuple[int, ...]]) -> None:
    torch.einsum(equation, *(torch.ones(s) for s in shapes))
    assert is_sound(equation, shapes)


@pytest.mark.parametrize(("equation", "shapes"), UNSOUND)
def test_equations_that_do_not_fit(equation: str, shapes: list[tuple[int, ...]]) -> None:
    assert not is_sound(equation, shapes)
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, s) for i, s in enumerate(shapes)]
    node = helper.make_node("Einsum", [i.name for i in inputs], ["y"], name="product", equation=equation)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "graph", inputs, [output]),
                              opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(CompileError):
        import_model(model, tuple(np.ones(s, np.float32) for s in shapes))


def test_a_sum_over_an_ellipsis_is_refused() -> None:
    assert sums_over_ellipsis("...i->i") and not sums_over_ellipsis("...i->...") and not sums_over_ellipsis("...i")

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("...i->i", x)

    with pytest.raises(CompileError, match="ellipsis"):
        import_model(Sum(), (torch.ones(2, 3),))


def test_an_equation_changed_after_the_export_is_refused() -> None:
    """PyTorch checks equations when it exports; what is written into the graph later is checked here."""

    class Transpose(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("ij->ji", x)

    program = torch.export.export(Transpose(), (torch.ones(2, 3),))
    node = next(n for n in program.graph.nodes if n.op == "call_function" and "einsum" in str(n.target))
    node.args = ("ij->jk", *node.args[1:])
    with pytest.raises(CompileError, match="does not fit the operands"):
        import_model(program, None)
