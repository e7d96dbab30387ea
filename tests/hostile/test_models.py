"""Broken and hostile models each give one clear error of our family, in seconds and without much memory.

They are compiled in another process, so that a crash is seen as one; it is started again behind what it dies of.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import narrowcast as nc

from .building import model, node
from .limits import BYTES, SECONDS
from .operands import OPERANDS
from .structures import STRUCTURES

MODELS = {**STRUCTURES, **OPERANDS}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What ``worker`` found, by name."""
    found: dict[str, dict[str, Any]] = {}
    while left := [name for name in MODELS if name not in found]:
        run = subprocess.run([sys.executable, str(Path(__file__).with_name("worker.py")), *left], capture_output=True,
                             text=True, timeout=600)
        lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        found.update({line["name"]: line for line in lines})
        if run.returncode:
            found[left[len(lines)]] = {"kind": f"exit {run.returncode}", "text": run.stderr[-2000:]}
    return found


def test_the_tables_are_disjoint_and_long() -> None:
    assert len(MODELS) == len(STRUCTURES) + len(OPERANDS) >= 200


@pytest.mark.parametrize("name", MODELS)
def test_one_error_that_names_the_layer(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    _, kind, pattern = MODELS[name]
    outcome = outcomes[name]
    text = outcome["text"]
    assert outcome["kind"] == kind.__name__, text
    assert re.search(pattern, text, re.DOTALL), text
    assert "Traceback" not in text and all(line.isprintable() for line in text.splitlines())
    assert outcome["seconds"] < SECONDS and outcome["bytes"] < BYTES


def test_a_table_without_faults_would_fail() -> None:
    """The builders make sound models where nothing is broken on purpose."""
    assert nc.compile(model(node("Relu", "x")), num_threads=1).inputs[0].shape == (2, 3)
