"""Architectures of ``transformers`` through the PyTorch frontend, with every dynamic dimension at two extents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from narrowcast.frontends import ImportedModel

pytest.importorskip("transformers")

from .transformer_models import CASES


@pytest.mark.parametrize("name", CASES)
def test_transformers(name: str, same_for_extents: Callable[..., ImportedModel]) -> None:
    case = CASES[name]
    imported = same_for_extents(case.make(), case.inputs, case.dynamic, case.sizes)
    assert {d for i in imported.inputs for d in i.shape if isinstance(d, str)} == set(case.sizes[0])
