"""Program: calls, looking into it, the benchmark, and its file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
from narrowcast.stages import Stage, stages_from_json, stages_to_json


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2))
        self.head = nn.Linear(16, 5)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(image) * scale
        return self.head(features.mean((2, 3))), features


@pytest.fixture(scope="module")
def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((1, 3, 9, 11), dtype=np.float32), np.full((1,), 2, np.float32)


@pytest.fixture(scope="module")
def program(inputs: tuple[np.ndarray, np.ndarray]) -> nc.Program:
    return nc.compile(TwoOutputs().eval(), "cpu", None, example_inputs=inputs)


@pytest.fixture(scope="module")
def saved(program: nc.Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program.save(tmp_path_factory.mktemp("program") / "net.ncast")


def test_numpy_in_numpy_out_torch_in_torch_out(program: nc.Program, inputs: tuple[np.ndarray, np.ndarray]) -> None:
    with torch.no_grad():
        expected = TwoOutputs().eval()(*map(torch.from_numpy, inputs))
    from_numpy = program(*inputs)
    from_torch = program(*map(torch.from_numpy, inputs))
    by_name = program(scale=inputs[1], image=inputs[0])
    for e, a, b, c in zip(expected, from_numpy, from_torch, by_name, strict=True):
        assert isinstance(a, np.ndarray) and isinstance(b, torch.Tensor)
        np.testing.assert_allclose(a, e.numpy(), rtol=0, atol=1e-5 * float(e.abs().max()))
        assert np.array_equal(a, b.numpy()) and np.array_equal(a, c)


def test_inputs_in_any_memory_layout(program: nc.Program, inputs: tuple[np.ndarray, np.ndarray]) -> None:
    image, scale = inputs
    strided = np.asfortranarray(image)
    unaligned = np.frombuffer(b"\0" + image.tobytes(), np.uint8)[1:].view(np.float32).reshape(image.shape)
    expected = program(image, scale)[0]
    assert np.array_equal(program(strided, scale)[0], expected)
    assert np.array_equal(program(unaligned, scale)[0], expected)


def test_outputs_are_the_callers_own(program: nc.Program, inputs: tuple[np.ndarray, np.ndarray]) -> None:
    first = program(*inputs)[0]
    copy = first.copy()
    program(inputs[0] * 3, inputs[1])
    assert np.array_equal(first, copy)


@pytest.mark.parametrize("kind", ["relax", "tir", "llvm", "asm"])
def test_sources(program: nc.Program, kind: str) -> None:
    marks = {"relax": "call_tir", "tir": "T.prim_func", "llvm": "define", "asm": "%"}
    whole, layer = program.source(kind), program.source(kind, layer="body.0")
    assert marks[kind] in whole
    assert "body_0" in layer and len(layer) < len(whole)


def test_stages_show_the_passes_in_order(program: nc.Program) -> None:
    names = [s.name for s in program.stages]
    assert names[0] == "import" and names[-1] == "lower"
    grouped = program.stages[-2]
    assert any(node.name == "body.0" for node in grouped.nodes)
    assert "digraph" in grouped.to_dot() and '"body.0"' in grouped.to_dot()
    assert json.loads(grouped.to_json())["name"] == grouped.name
    assert stages_from_json(stages_to_json(program.stages)) == program.stages
    assert isinstance(program.stages[0], Stage) and "conv2d" in str(program.stages[0])


def test_benchmark_counts_what_it_says(program: nc.Program) -> None:
    timing = program.benchmark(runs=20, warmup=2)
    assert timing.runs == 20
    assert 0 < timing.minimum_ms <= timing.median_ms <= timing.p95_ms
    assert timing.throughput == pytest.approx(1e3 / timing.median_ms)
    assert timing.peak_share is not None and 0 < timing.peak_share < 1


FRESH = """
import sys
import numpy as np
import narrowcast as nc
program = nc.load(sys.argv[1])
outputs = program(*(np.load(sys.argv[2])[n] for n in ("image", "scale")))
assert "torch" not in sys.modules, "PyTorch was imported"
np.savez(sys.argv[3], *outputs)
"""


def test_fresh_process_gives_the_same_bits_without_pytorch(
    program: nc.Program, saved: Path, inputs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", image=inputs[0], scale=inputs[1])
    subprocess.run(
        [sys.executable, "-c", FRESH, str(saved), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        check=True,
        cwd=tmp_path,
    )
    with np.load(tmp_path / "out.npz") as file:
        for name, expected in zip(file.files, program(*inputs), strict=True):
            assert file[name].tobytes() == expected.tobytes()


def test_loaded_program_has_everything(program: nc.Program, saved: Path) -> None:
    loaded = nc.load(saved)
    assert loaded.plan == program.plan and loaded.report == program.report
    assert loaded.stages == program.stages
    assert loaded.inputs == program.inputs and loaded.outputs == program.outputs
    assert loaded.source("tir", layer="body.2") == program.source("tir", layer="body.2")


def test_a_flipped_byte_anywhere_is_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    damaged = tmp_path / "damaged.ncast"
    for position in np.linspace(0, len(data) - 1, 400).astype(int):
        flipped = bytearray(data)
        flipped[position] ^= 0xFF
        damaged.write_bytes(flipped)
        with pytest.raises(nc.ProgramError, match=r"damaged|not a narrowcast program"):
            nc.load(damaged)


def test_number_of_threads_is_kept(inputs: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    single = nc.compile(TwoOutputs().eval(), "cpu", None, example_inputs=inputs, num_threads=1)
    assert single.report.threads == 1
    assert nc.load(single.save(tmp_path / "one.ncast")).benchmark(runs=3).threads == 1
