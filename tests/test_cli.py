"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowcast as nc
from narrowcast import cli
from narrowcast.backends.target import Target

SAMPLES, CLASSES = 240, 3


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``narrowcast ARGUMENTS`` in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["narrowcast", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Outcome(stopped.value.code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network of two linear layers and labelled data that it classifies well."""
    folder = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(s, dtype=np.float32) for s in ((8, 16), (16, CLASSES)))
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "second"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "net.onnx")
    x = rng.standard_normal((SAMPLES, 8), dtype=np.float32)
    labels = (np.maximum(x @ first, 0) @ second).argmax(axis=1)
    np.savez(folder / "data.npz", x=x, labels=labels)
    np.savez(folder / "unlabelled.npz", x=x)
    np.savez(folder / "labels.npz", labels=labels)
    np.savez(folder / "wide.npz", x=np.zeros((8, 9), np.float32), labels=np.zeros(8, np.int64))
    (folder / "broken.onnx").write_bytes(b"no model")
    (folder / "broken.npz").write_bytes((folder / "data.npz").read_bytes()[:300])
    (folder / "empty.npz").write_bytes(b"")
    return folder


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """The file of a compiled network."""
    return nc.compile(folder / "net.onnx", "cpu", None).save(folder / "saved.ncast")


def test_compile_without_a_budget_is_exact(run: Run, folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "net.ncast"
    outcome = run("compile", folder / "net.onnx", "-o", saved)
    assert (outcome.code, outcome.err) == (0, "")
    assert "precision plan" in outcome.out and "first" in outcome.out and f"saved to {saved}" in outcome.out.replace(
        "\n", "")
    assert {d.precision for d in nc.load(saved).plan.decisions} == {nc.Precision.FP32}


def test_compile_under_a_budget_prints_json(run: Run, folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "net.ncast"
    outcome = run("compile", folder / "net.onnx", "--data", folder / "data.npz", "--metric", "top1", "--max-drop", 0.2,
                  "--confidence", 0.9, "-o", saved, "--json")
    assert outcome.code == 0
    printed = json.loads(outcome.out)
    assert printed["output"] == str(saved)
    report = printed["report"]
    assert (report["metric"], report["max_drop"], report["confidence"]) == ("top1", 0.2, 0.9)
    assert report["samples"] == SAMPLES // 2 and report["baseline"] == 1.0 and report["upper"] <= 0.2
    assert [d["op"] for d in printed["plan"]["decisions"]] == ["first", "second"]
    assert nc.PrecisionPlan.from_json(json.dumps(printed["plan"])) == nc.load(saved).plan
    assert (folder / "cache" / "narrowcast" / "costs.json").exists()


@pytest.mark.isa("avx512_vnni")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_budget_that_is_not_met_is_exit_code_3(run: Run, folder: Path, tmp_path: Path, as_json: bool) -> None:
    saved = tmp_path / "net.ncast"
    outcome = run("compile", folder / "net.onnx", "--data", folder / "data.npz", "--metric", "cosine", "--max-drop", 0,
                  "--precision", "int8", "-o", saved, *(["--json"] if as_json else []))
    assert outcome.code == cli.BUDGET_NOT_MET == 3
    assert outcome.err.startswith("budget not met: no program inside the budget was found")
    assert not saved.exists()
    if as_json:
        printed = json.loads(outcome.out)
        assert printed["measured_drop"] > 0
        assert {d["precision"] for d in printed["plan"]["decisions"]} == {"int8"}
    else:
        assert outcome.out == ""


@pytest.mark.parametrize(("arguments", "message"), [
    (("compile", "absent.onnx", "-o", "{tmp}/p"), r"absent\.onnx"),
    (("compile", "broken.onnx", "-o", "{tmp}/p"), "error: "),
    (("compile", "net.txt", "-o", "{tmp}/p"), "net.txt is not a model"),
    (("compile", "no.such.module:f", "-o", "{tmp}/p"), "no.such.module:f cannot be found"),
    (("compile", ":f", "-o", "{tmp}/p"), ":f cannot be found"),
    (("compile", "math:absent", "-o", "{tmp}/p"), "math:absent cannot be found"),
    (("compile", "math:pi", "-o", "{tmp}/p"), "math:pi is not a function"),
    (("compile", "math:sqrt", "-o", "{tmp}/p"), "math:sqrt failed"),
    (("compile", "platform:python_version", "-o", "{tmp}/p"), "error: "),
    (("compile", "net.onnx", "-o", "{tmp}/absent/p"), "cannot be saved"),
    (("compile", "net.onnx", "-o", "{tmp}"), "cannot be saved"),
    (("compile", "net.onnx", "--target", "cqu", "-o", "{tmp}/p"), "unknown target"),
    (("compile", "net.onnx", "--max-drop", "0.1", "-o", "{tmp}/p"), "needs data"),
    (("compile", "net.onnx", "--max-drop", "-1", "--data", "data.npz", "--metric", "top1", "-o", "{tmp}/p"),
     "max_drop"),
    (("compile", "net.onnx", "--max-drop", "1", "--data", "data.npz", "--metric", "tpo1", "-o", "{tmp}/p"), "metric"),
    (("compile", "net.onnx", "--max-drop", "1", "--data", "wide.npz", "--metric", "top1", "-o", "{tmp}/p"), "error: "),
    (("compile", "net.onnx", "--max-drop", "1", "--data", "unlabelled.npz", "--metric", "top1", "-o", "{tmp}/p"),
     "labels"),
    (("compile", "net.onnx", "--data", "labels.npz", "-o", "{tmp}/p"), "holds no inputs"),
    (("compile", "net.onnx", "--data", "broken.npz", "-o", "{tmp}/p"), "cannot be read"),
    (("compile", "net.onnx", "--data", "empty.npz", "-o", "{tmp}/p"), "cannot be read"),
    (("compile", "net.onnx", "--data", "absent.safetensors", "-o", "{tmp}/p"), "cannot be read"),
    (("compile", "net.onnx", "--data", "data.csv", "-o", "{tmp}/p"), "not a data set"),
    (("compile", "net.onnx", "--metric", "top1", "-o", "{tmp}/p"), "without one"),
    (("inspect", "absent.ncast"), "cannot be read"),
    (("inspect", "net.onnx"), "not a narrowcast program"),
    (("bench", "net.onnx"), "not a narrowcast program"),
])
def test_bad_input_is_exit_code_2_and_one_error(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    outcome = run(*(a.format(tmp=tmp_path) for a in arguments))
    assert outcome.code == cli.BAD_INPUT == 2
    lines = outcome.err.splitlines()
    assert lines[0].startswith("error: ") and sum(line.startswith("error") for line in lines) == 1
    assert "Traceback" not in outcome.err and outcome.out == ""
    assert message.replace("\\", "") in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [
    ("compile",), ("compile", "net.onnx"), ("inspect", "p", "--format", "svg"), ("bench", "p", "--runs", "0"),
    ("compose",), (), ("compile", "n", "-o", "p", "--seed", "-1"), ("compile", "n", "-o", "p", "--threads", "0"),
])
def test_a_wrong_command_line_is_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2 and "Usage: " in outcome.err and "Traceback" not in outcome.err


def test_help_and_version(run: Run) -> None:
    outcome = run("--help")
    assert outcome.code == 0 and all(name in outcome.out for name in ("compile", "inspect", "bench", "demo"))
    assert run("--version").code == 0


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "compile_model", interrupt)
    outcome = run("compile", folder / "net.onnx", "-o", tmp_path / "p")
    assert (outcome.code, outcome.err.strip()) == (130, "interrupted")


@pytest.mark.parametrize(("options", "expected"), [
    ((), {"budget": None, "precision": None, "metric": None}),
    (("--precision", "int8", "--metric", "top1"), {"budget": None, "precision": "int8", "metric": "top1"}),
    (("--max-drop", "0.1", "--metric", "top1", "--seed", "3"), {"budget": 0.1, "metric": None, "num_threads": None}),
    (("--dim", "batch=1", "--dim", "width=64"), {"dims": {"batch": 1, "width": 64}, "tune": False}),
    (("--tune",), {"tune": True, "budget": None}),
])
def test_options_reach_compile(run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path,
                               options: tuple[str, ...], expected: dict[str, Any]) -> None:
    seen: dict[str, Any] = {}

    def record(model: object, target: object, budget: nc.AccuracyBudget | None, **options: Any) -> None:
        seen.update(options, budget=None if budget is None else budget.max_drop, labels=(
            options["data"] if budget is None else budget.data)[1])
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "compile_model", record)
    run("compile", folder / "net.onnx", "--data", folder / "data.npz", *options, "-o", tmp_path / "p")
    assert {k: seen[k] for k in expected} == expected
    assert seen["labels"].shape == (SAMPLES,)


@pytest.mark.parametrize("dim", ["batch", "batch=", "=3", "batch=-1", "batch=two"])
def test_a_dim_that_is_no_dim(run: Run, folder: Path, tmp_path: Path, dim: str) -> None:
    outcome = run("compile", folder / "net.onnx", "--dim", dim, "-o", tmp_path / "p")
    assert outcome.code == 2 and "--dim wants a name and an extent" in outcome.err


def test_a_model_of_a_function_in_the_current_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_network.py").write_text(
        "import torch\n"
        "def build():\n    return torch.nn.Linear(4, 2).eval()\n"
        "def data():\n    return torch.zeros(5, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert run("compile", "my_network:build", "--data", "my_network:data", "-o", "p.ncast").code == 0
    assert nc.load("p.ncast").inputs[0].shape == (1, 4)


def test_inspect_shows_plan_and_report(run: Run, program: Path) -> None:
    outcome = run("inspect", program)
    assert outcome.code == 0
    assert "first" in outcome.out and f"target {Target.parse('cpu')}" in outcome.out and "FuseGroups" in outcome.out
    printed = json.loads(run("inspect", program, "--format", "json").out)
    assert printed["stages"][0] == "import" and printed["inputs"] == [{"name": "x", "shape": [1, 8],
                                                                       "dtype": "float32"}]
    assert [d["op"] for d in printed["plan"]["decisions"]] == ["first", "second"]


def test_inspect_shows_a_stage(run: Run, program: Path) -> None:
    text = run("inspect", program, "--stage", "import")
    assert text.code == 0 and "R.matmul" in text.out
    dot = run("inspect", program, "--stage", "FuseGroups", "--format", "dot").out
    assert dot.startswith('digraph "FuseGroups"') and '"first" -> "second";' in dot
    graph = json.loads(run("inspect", program, "--stage", "import", "--format", "json").out)
    assert {"source": "x", "target": "first"} in [{k: e[k] for k in ("source", "target")} for e in graph["edges"]]
    missing = run("inspect", program, "--stage", "absent")
    assert missing.code == 2 and "FuseGroups" in missing.err


def test_inspect_shows_the_emitted_code(run: Run, program: Path) -> None:
    assert "def first" in run("inspect", program, "--source", "tir", "--layer", "first").out
    assert "call_tir" in run("inspect", program, "--source", "relax").out
    missing = run("inspect", program, "--source", "tir", "--layer", "absent")
    assert missing.code == 2 and "first" in missing.err


def test_bench(run: Run, program: Path) -> None:
    timing = json.loads(run("bench", program, "--runs", 5, "--json").out)
    assert timing["runs"] == 5 and 0 < timing["minimum_ms"] <= timing["median_ms"] <= timing["p95_ms"]
    outcome = run("bench", program, "--runs", 5)
    assert outcome.code == 0 and outcome.out.startswith("median ") and "5 runs" in outcome.out
