"""A table of bad inputs: each gives one clear error of the family, none a traceback from inside TVM, none a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import narrowcast as nc

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 8), dtype=np.float32)
Y = RNG.integers(0, 3, 40)


class Net(nn.Module):
    """Two linear layers: [N, 8] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Fourier(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real


def onnx_model(nodes: list[onnx.NodeProto], initializers: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def onnx_file(folder: Path, content: bytes) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(content)
    return path


def good_onnx() -> bytes:
    return onnx_model([helper.make_node("Relu", ["x"], ["y"])]).SerializeToString()


def external(folder: Path) -> Path:
    model = onnx_model([helper.make_node("Add", ["x", "w"], ["y"])], {"w": np.ones(8, np.float32)})
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "../../secret", "offset": "0", "length": "32"}.items():
        weight.external_data.add(key=key, value=value)
    return onnx_file(folder, model.SerializeToString())


def judged(data: Any = None, metric: Any = "top1", **options: Any) -> Callable[[Path], object]:
    """A compilation of Net under a budget."""

    def run(_: Path) -> object:
        budget = nc.AccuracyBudget(
            **{"max_drop": 0.1, "data": (X, Y) if data is None else data, "metric": metric, **options}
        )
        return nc.compile(Net(), "cpu", budget, example_inputs=torch.zeros(1, 8))

    return run


def compiled(model: Any, *args: Any, **options: Any) -> Callable[[Path], object]:
    return lambda _: nc.compile(model, *args, **options)


def with_nan(value: float) -> np.ndarray:
    x = X.copy()
    x[3, 2] = value
    return x


def nan_metric(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float("nan")


def failing_metric(outputs: np.ndarray, labels: np.ndarray) -> float:
    raise KeyError("no such class")


def array_metric(outputs: np.ndarray, labels: np.ndarray) -> Any:
    return outputs


def saved(folder: Path) -> Path:
    return nc.compile(Net(), "cpu", None, example_inputs=torch.zeros(1, 8)).save(folder / "net.ncast")


def call(*args: Any, **kwargs: Any) -> Callable[[Path], object]:
    return lambda _: nc.compile(Net(), "cpu", None, example_inputs=torch.zeros(1, 8))(*args, **kwargs)


EXAMPLE = torch.zeros(1, 8)
CASES: dict[str, tuple[Callable[[Path], object], type[nc.CompileError], str]] = {
    # models
    "missing ONNX file": (lambda p: nc.compile(p / "none.onnx", "cpu", None), nc.ImportModelError, "none.onnx"),
    "truncated ONNX": (lambda p: nc.compile(onnx_file(p, good_onnx()[:-9]), "cpu", None), nc.ImportModelError, ""),
    "text for ONNX": (lambda p: nc.compile(onnx_file(p, b"hello, world"), "cpu", None), nc.ImportModelError, ""),
    "empty ONNX": (lambda p: nc.compile(onnx_file(p, b""), "cpu", None), nc.ImportModelError, ""),
    "wrong suffix": (compiled(Path("net.txt"), "cpu", None), nc.ImportModelError, "net.txt"),
    "pickled checkpoint": (compiled(Path("net.pth"), "cpu", None), nc.ImportModelError, "execute code"),
    "model of a wrong type": (compiled(3, "cpu", None), nc.ImportModelError, "int"),
    "ONNX operator unknown": (
        compiled(onnx_model([helper.make_node("Frobnicate", ["x"], ["y"], name="layer7")]), "cpu", None),
        nc.ImportModelError,
        "Frobnicate",
    ),
    "ONNX input missing": (
        compiled(onnx_model([helper.make_node("Add", ["x", "nowhere"], ["y"])]), "cpu", None),
        nc.ImportModelError,
        "nowhere",
    ),
    "ONNX index out of range": (
        compiled(
            onnx_model(
                [helper.make_node("Gather", ["w", "i"], ["g"]), helper.make_node("Add", ["x", "g"], ["y"])],
                {"w": np.ones((4, 8), np.float32), "i": np.array(9)},
            ),
            "cpu",
            None,
        ),
        nc.ImportModelError,
        "9",
    ),
    "ONNX takes all memory": (
        compiled(
            onnx_model(
                [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
                {"s": np.array([1 << 40, 8])},
            ),
            "cpu",
            None,
        ),
        nc.ImportModelError,
        "",
    ),
    "ONNX cycle": (
        compiled(
            onnx_model(
                [
                    helper.make_node("Add", ["x", "b"], ["a"]),
                    helper.make_node("Relu", ["a"], ["b"]),
                    helper.make_node("Relu", ["b"], ["y"]),
                ]
            ),
            "cpu",
            None,
        ),
        nc.ImportModelError,
        "",
    ),
    "ONNX data outside its folder": (lambda p: nc.compile(external(p), "cpu", None), nc.ImportModelError, "secret"),
    "module without inputs or data": (compiled(Net(), "cpu", None), nc.CompileError, "example_inputs"),
    "example input of wrong width": (
        compiled(Net(), "cpu", None, example_inputs=torch.zeros(1, 7)),
        nc.ImportModelError,
        "",
    ),
    "example input of wrong type": (
        compiled(Embedding(), "cpu", None, example_inputs=torch.zeros(1, 3)),
        nc.ImportModelError,
        "",
    ),
    "branch on data": (compiled(Branching(), "cpu", None, example_inputs=EXAMPLE), nc.ImportModelError, ""),
    "operator without translation": (
        compiled(Fourier(), "cpu", None, example_inputs=EXAMPLE),
        nc.UnsupportedOperatorError,
        "fft",
    ),
    # budget, data, metric
    "budget without data": (compiled(Net(), "cpu", 0.01, example_inputs=EXAMPLE), nc.DataError, "data="),
    "negative budget": (judged(max_drop=-0.1), nc.DataError, "max_drop"),
    "budget is not a number": (judged(max_drop=float("nan")), nc.DataError, "max_drop"),
    "confidence above 1": (judged(confidence=95), nc.DataError, "confidence"),
    "unknown metric": (judged(metric="top-one"), nc.DataError, "top-one"),
    "metric is NaN": (judged(metric=nan_metric), nc.DataError, "nan"),
    "metric raises": (judged(metric=failing_metric), nc.DataError, "no such class"),
    "metric gives an array": (judged(metric=array_metric), nc.DataError, "metric"),
    "NaN in the data": (judged(data=(with_nan(np.nan), Y)), nc.DataError, "NaN"),
    "infinity in the data": (judged(data=(with_nan(np.inf), Y)), nc.DataError, "inf"),
    "too few labels": (judged(data=(X, Y[:-1])), nc.DataError, "labels"),
    "no labels": (judged(data=[X[:1]] * 40), nc.DataError, "labels"),
    "label out of range": (judged(data=(X, Y + 5)), nc.DataError, "class"),
    "float labels": (judged(data=(X, Y + 0.5)), nc.DataError, "label"),
    "empty data": (judged(data=[]), nc.DataError, "empty"),
    "data of wrong rank": (judged(data=(X[:, None, :], Y)), nc.DataError, "rank|shape"),
    "data of wrong width": (judged(data=(X[:, :7], Y)), nc.DataError, "shape"),
    "data is text": (judged(data="dataset"), nc.DataError, "text"),
    "data is a number": (judged(data=7), nc.DataError, ""),
    "too little data": (judged(data=(X[:2], Y[:2])), nc.DataError, "2 samples"),
    "INT8 without data": (compiled(Net(), "cpu", None, precision="int8", example_inputs=EXAMPLE), nc.DataError, "data"),
    # target and precision
    "unknown target": (compiled(Net(), "gpu", None, example_inputs=EXAMPLE), nc.TargetError, "gpu"),
    "unknown CPU": (compiled(Net(), "cpu:zenver4", None, example_inputs=EXAMPLE), nc.TargetError, "znver4"),
    "no threads": (compiled(Net(), "cpu", None, num_threads=0, example_inputs=EXAMPLE), nc.TargetError, "thread"),
    "unknown precision": (
        compiled(Net(), "cpu", None, precision="int3", data=X, example_inputs=EXAMPLE),
        nc.PlanError,
        "int3",
    ),
    "precision the target lacks": (
        compiled(Net(), "cpu:haswell", None, precision="bf16", data=X, example_inputs=EXAMPLE),
        nc.TargetError,
        "bf16",
    ),
    "broken plan": (lambda _: nc.PrecisionPlan.from_json("{}"), nc.PlanError, ""),
    # programs
    "program missing": (lambda p: nc.load(p / "none.ncast"), nc.ProgramError, "none.ncast"),
    "program is something else": (lambda p: nc.load(onnx_file(p, good_onnx())), nc.ProgramError, "not a narrowcast"),
    "program into a missing folder": (lambda p: saved(p / "nowhere"), nc.ProgramError, "folder"),
    "call with wrong shape": (call(np.zeros((2, 8), np.float32)), nc.ProgramError, "'x'"),
    "call with wrong type": (call(np.zeros((1, 8), np.int64)), nc.ProgramError, "'x'"),
    "call without inputs": (call(), nc.ProgramError, "x float32"),
    "call with an unknown name": (call(z=X[:1]), nc.ProgramError, "z"),
    "unknown source": (
        lambda _: nc.compile(Net(), "cpu", None, example_inputs=EXAMPLE).source("ptx"),
        nc.ProgramError,
        "ptx",
    ),
    "unknown layer": (
        lambda _: nc.compile(Net(), "cpu", None, example_inputs=EXAMPLE).source("tir", layer="conv9"),
        nc.ProgramError,
        "conv9",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_gives_one_clear_error(name: str, tmp_path: Path) -> None:
    action, kind, text = CASES[name]
    with pytest.raises(nc.CompileError) as caught:
        action(tmp_path)
    assert isinstance(caught.value, kind), f"{type(caught.value).__name__}: {caught.value}"
    message = str(caught.value)
    assert "Traceback" not in message and "src/" not in message
    if text:
        assert any(part.lower() in message.lower() for part in text.split("|")), message


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 30
