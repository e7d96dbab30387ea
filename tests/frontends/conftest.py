"""What the tests of the frontends share: comparing an imported model with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """Import, verify, run by the reference and compare with PyTorch; ``length`` is the longest sum in the model."""
    module = (model if isinstance(model, nn.Module) else Function(model)).eval()
    imported = import_model(module, inputs)
    VerifyNormalForm()(imported.mod)
    tensors = _tensors(inputs)
    assert [(i.shape, i.dtype) for i in imported.inputs] == [
        (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
    _check_run(imported, module, inputs, length)
    return imported


def _compare_for_extents(module: nn.Module, make: Callable[..., Any], dynamic: Any, sizes: Sequence[Mapping[str, int]],
                         length: int = 256) -> ImportedModel:
    """Import with the inputs of the first extents, and compare with PyTorch for all of them.

    ``make`` gives the inputs, a tuple of arguments or a dict of keyword ones; the names of the extents are those of the
    dimensions, every one of which has to stay dynamic.
    """
    torch.manual_seed(0)
    module = module.eval()
    imported = import_model(module, make(**sizes[0]), dynamic_shapes=dynamic)
    VerifyNormalForm()(imported.mod)
    assert imported.hints == sizes[0]
    for extents in sizes:
        assert all(r.is_met(extents) for r in imported.requirements), [str(r) for r in imported.requirements]
        _check_run(imported, module, make(**extents), length)
    return imported


def _tensors(values: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]


def _check_run(imported: ImportedModel, module: nn.Module, inputs: Any, length: int) -> None:
    """Compare the reference's outputs with PyTorch's.

    Rounding errors of both sides grow with the longest sum, at worst linearly; a factor of 16 leaves room for a few
    operators in a row.
    """
    found = reference.run(imported.mod, _tensors(inputs))
    with torch.no_grad():
        expected = _tensors(module(**inputs) if isinstance(inputs, dict) else module(*inputs))
    assert len(found) == len(expected) == len(imported.outputs)
    for a, b in zip(found, expected, strict=True):
        assert tuple(a.shape) == tuple(b.shape) and a.dtype == b.dtype
        if b.dtype.is_floating_point:
            finite = b[torch.isfinite(b)]
            scale = float(finite.abs().max()) if finite.numel() else 1.0
            torch.testing.assert_close(a, b, rtol=16 * EPS, atol=16 * EPS * length * max(scale, 1e-3), equal_nan=True)
        else:
            torch.testing.assert_close(a, b)


@pytest.fixture
def same_for_extents() -> Callable[..., ImportedModel]:
    """``same_for_extents(module, make, dynamic_shapes, sizes)``: fails where what was imported with dynamic dimensions
    computes something else for some of the extents."""
    torch.manual_seed(0)
    return _compare_for_extents


@pytest.fixture
def same_as_pytorch() -> Callable[..., ImportedModel]:
    """``same_as_pytorch(model, *inputs, length=64)``: fails where the imported model computes something else."""
    torch.manual_seed(0)
    return _compare
