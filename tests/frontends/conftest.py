"""What the tests of the frontends share: comparing an imported model with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from narrowcast.frontends import ImportedModel, import_model
from narrowcast.operators import reference
from narrowcast.passes.verify import VerifyNormalForm

EPS = float(np.finfo(np.float32).eps)


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _compare(model: nn.Module | Callable[..., Any], *inputs: Any, length: int = 64) -> ImportedModel:
    """Import, verify, run by the reference and compare with PyTorch.

    ``length`` is the longest sum in the model: rounding errors of both sides grow with it, at worst linearly; a
    factor of 16 leaves room for a few operators in a row.
    """
    module = (model if isinstance(model, nn.Module) else Function(model)).eval()
    imported = import_model(module, inputs)
    VerifyNormalForm()(imported.mod)
    tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    assert [(i.shape, i.dtype) for i in imported.inputs] == [
        (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
    found = reference.run(imported.mod, tensors)
    with torch.no_grad():
        expected = pytree.tree_leaves(module(*inputs))
    assert len(found) == len(expected) == len(imported.outputs)
    for a, b in zip(found, expected, strict=True):
        assert tuple(a.shape) == tuple(b.shape) and a.dtype == b.dtype
        if b.dtype.is_floating_point:
            finite = b[torch.isfinite(b)]
            scale = float(finite.abs().max()) if finite.numel() else 1.0
            torch.testing.assert_close(a, b, rtol=16 * EPS, atol=16 * EPS * length * max(scale, 1e-3), equal_nan=True)
        else:
            torch.testing.assert_close(a, b)
    return imported


@pytest.fixture
def same_as_pytorch() -> Callable[..., ImportedModel]:
    """``same_as_pytorch(model, *inputs, length=64)``: fails where the imported model computes something else."""
    torch.manual_seed(0)
    return _compare
