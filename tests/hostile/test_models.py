"""Broken and hostile models each give one clear error of our family, in seconds and without much memory."""

from __future__ import annotations

import re

import pytest

import narrowcast as nc

from .building import model
from .limits import bounded
from .operands import OPERANDS
from .structures import STRUCTURES

MODELS = {**STRUCTURES, **OPERANDS}


def test_the_tables_are_disjoint_and_long() -> None:
    assert len(MODELS) == len(STRUCTURES) + len(OPERANDS) >= 200


@pytest.mark.parametrize("name", MODELS)
def test_one_error_that_names_the_layer(name: str) -> None:
    make, kind, text = MODELS[name]
    built = make()
    with bounded(), pytest.raises(nc.CompileError) as caught:
        nc.compile(built, num_threads=1)
    assert type(caught.value) is kind, caught.value
    assert re.search(text, str(caught.value), re.DOTALL), caught.value
    assert "Traceback" not in str(caught.value)
    assert str(caught.value).isprintable() or "\n" in str(caught.value)


def test_a_table_without_faults_would_fail() -> None:
    """The builders make sound models where nothing is broken on purpose."""
    from .building import node
    assert nc.compile(model(node("Relu", "x")), num_threads=1).inputs[0].shape == (2, 3)
