"""Names that mean something elsewhere: to the C library, to TVM, to a terminal, to the shell. They stay names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

import narrowcast as nc
from narrowcast.cli import cli

from .building import model

NAMES = [
    "memcpy", "exp", "malloc", "main", "__tvm_ffi_main", "vm_main", "TVMBackendParallelLaunch", "output", "x", "w",
    "o3", "R", "_init", "relax.add", "call_tir", "x.1", "x.constant", "[red]", "[/x]", ":smile:", "; rm -rf /", "%s%n",
    "../../etc/passwd", "'''\"\"\"", "naïve·層", "{0.__class__}", "${HOME}", "`id`",
]


def _chain(names: list[str]) -> onnx.ModelProto:
    """Products with the unit matrix and softmaxes in turn, one for each name."""
    nodes, last = [], "x"
    for i, name in enumerate(names):
        operands = [last, "w"] if i % 2 == 0 else [last]
        nodes.append(helper.make_node("Softmax" if i % 2 else "MatMul", operands, [f"o{i}"], name=name))
        last = f"o{i}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return model(*nodes, shape=(4, 16), w=np.eye(16, dtype=np.float32))


@pytest.fixture(scope="module")
def program() -> nc.Program:
    return nc.compile(_chain(NAMES), num_threads=1)


def test_the_program_computes_what_it_does_with_other_names(program: nc.Program) -> None:
    x = np.random.default_rng(0).standard_normal((4, 16), dtype=np.float32)
    plain = nc.compile(_chain([f"n{i}" for i in range(len(NAMES))]), num_threads=1)
    np.testing.assert_array_equal(program(x), plain(x))
    assert {d.op for d in program.plan.decisions} >= set(NAMES) - {"x"}


def test_saved_loaded_and_shown(program: nc.Program, tmp_path: Path) -> None:
    path = tmp_path / "p.ncast"
    program.save(path)
    x = np.ones((4, 16), np.float32)
    np.testing.assert_array_equal(nc.load(path)(x), program(x))
    for options in ([], ["--stage", "lower"], ["--stage", "lower", "--format", "dot"], ["--source", "tir"],
                    ["--source", "llvm", "--layer", "[/x]"]):
        result = CliRunner().invoke(cli, ["inspect", str(path), *options], catch_exceptions=False)
        assert result.exit_code == 0 and "\x1b" not in result.output, options
        assert "[/x]" in result.output or options[-1:] not in ([], ["dot"])
