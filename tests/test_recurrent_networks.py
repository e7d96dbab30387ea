"""Networks with recurrent layers through ``compile``: one program for every number of steps and samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import narrowcast
from narrowcast.backends.target import Target
from narrowcast.calibration.evaluator import Evaluator
from narrowcast.frontends import import_model
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement

EPS = float(np.finfo(np.float32).eps)
# Sums of about 20 products of at most about 1, over steps that damp what came before.
TOLERANCE = 64 * EPS


class Tagger(nn.Module):
    """A label for every step, by a stack that reads both ways."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = layer(8, 16, 2, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.layers(x)[0])


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_module_with_dynamic_steps_and_batch(layer: type[nn.RNNBase], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tagger(layer).eval()
    shapes = ({0: "batch", 1: "steps"},)
    program = narrowcast.compile(model, example_inputs=torch.randn(3, 7, 8), dynamic_shapes=shapes)
    program.save(tmp_path / "tagger.nc")
    loaded = narrowcast.load(tmp_path / "tagger.nc")
    for batch, steps in ((3, 7), (1, 1), (2, 40)):
        x = torch.randn(batch, steps, 8)
        with torch.no_grad():
            expected = model(x)
        torch.testing.assert_close(loaded(x), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(("layer", "precision"), [(nn.LSTM, "int8"), (nn.GRU, "int8"), (nn.LSTM, "bf16")])
def test_a_module_in_lower_precision(layer: type[nn.RNNBase], precision: str) -> None:
    target = Target.parse("cpu")
    if narrowcast.Precision(precision) not in target.precisions():
        pytest.skip(f"this CPU has no {precision} multiply-add")
    torch.manual_seed(0)
    model = Tagger(layer).eval()
    data = torch.randn(16, 9, 8)
    program = narrowcast.compile(model, precision=precision, data=data, example_inputs=data[:1])
    recurrent = [d for d in program.plan.decisions if d.kind == "recurrent"]
    assert [d.precision for d in recurrent] == [narrowcast.Precision(precision)] * 2
    mod = run_pipeline(import_model(model, data[:1]).mod)
    agreements = kernel_agreement(mod, program.plan, target, [data[:1].numpy()])
    assert [a.detail for a in agreements if not a.ok] == [] and "recurrent" in {a.kind for a in agreements}
    evaluator = Evaluator(mod)
    for x in data[:4, None]:
        (expected,), (exact,) = evaluator.run_outputs([x], program.plan), evaluator.run_outputs([x])
        rounding = float((expected - exact).abs().max())
        assert float((program(x) - expected).abs().max()) <= rounding / 4, "much closer than FP32 is"


def test_a_file_with_dynamic_steps_and_batch_and_lengths(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) * 0.4).astype(np.float32)

    weights = {"w": random(2, 64, 8), "r": random(2, 64, 16), "b": random(2, 128), "p": random(2, 48)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("steps", "batch", 8)),
              helper.make_tensor_value_info("lengths", TensorProto.INT32, ("batch",)),
              helper.make_tensor_value_info("h", TensorProto.FLOAT, (2, "batch", 16))]
    node = helper.make_node("LSTM", ["x", "w", "r", "b", "lengths", "h", "", "p"], ["y", "last"], hidden_size=16,
                            direction="bidirectional")
    outputs = [onnx.ValueInfoProto(name=n) for n in ("y", "last")]
    graph = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in weights.items()])
    path = tmp_path / "lstm.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8), path)
    program = narrowcast.compile(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for steps, batch in ((5, 3), (1, 1), (33, 2)):
        given = {"x": random(steps, batch, 8), "h": random(2, batch, 16),
                 "lengths": generator.integers(1, steps + 1, batch).astype(np.int32)}
        for got, want in zip(program(**given), session.run(None, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)
