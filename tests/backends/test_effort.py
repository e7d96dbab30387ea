"""What a call takes, from the code alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import narrowcast as nc
from narrowcast import compiler
from narrowcast.backends.effort import peak_bytes, steps
from narrowcast.frontends import import_model
from narrowcast.ir import groups_of
from narrowcast.passes import run_pipeline


class Chain(nn.Module):
    """[n, 100] -> [n, 100]: 100 · 50 and 50 · 100 multiply-adds a row."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(100, 50), nn.Linear(50, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(torch.relu(self.narrow(x)))


def test_the_peak_is_of_what_is_alive_at_once() -> None:
    """The first layer's result and the output; the input is the caller's and stays."""
    mod = run_pipeline(import_model(Chain().eval(), torch.zeros(8, 100)).mod)
    main = mod["main"]
    assert [g.kind for g in groups_of(mod)] == ["matmul", "matmul"]
    assert peak_bytes(main, {}) == 4 * 8 * (100 + 50 + 100)


def counted(model: object, extents: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> int:
    """The steps of the kernels that the compilation of ``model`` makes."""
    found = []
    monkeypatch.setattr(compiler, "steps", lambda kernels, _: found.append(steps(kernels, extents)) or 0)
    nc.compile(model, num_threads=1)
    return found[0]


def onnx_model(op: str, shape: list[int | str], **attributes: object) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attributes)], "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)], [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_loops_of_plain_kernels_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elementwise, an element is a step and its reading and writing two more, or vectors of it are one."""
    small, large = (counted(onnx_model("Sin", [n, 1000]), {}, monkeypatch) for n in (10, 20))
    assert 20_000 <= small <= 30_100
    assert large == pytest.approx(2 * small, rel=0.01)


def test_symbols_count_at_their_typical_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (counted(onnx_model("Sin", ["n", 1000]), {"n": n}, monkeypatch) for n in (10, 1000))
    assert many > 50 * few


@pytest.mark.parametrize("limit", ["MEASURED_BYTES", "MEASURED_STEPS"])
def test_what_takes_too_much_is_compiled_and_not_timed(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, limit, 100)
    program = nc.compile(onnx_model("Sin", [10, 10]), num_threads=1)
    assert program.report.latency_ms is None
    assert "latency" not in str(program.report)
    x = np.linspace(-1, 1, 100, dtype=np.float32).reshape(10, 10)
    np.testing.assert_allclose(program(x), np.sin(x), atol=1e-6)
