"""Models that ONNX Runtime's quantizer made compile to the integer program that they describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import narrowcast
from narrowcast.backends.target import Target
from narrowcast.benchmarks.peers import export_onnx
from narrowcast.benchmarks.quantizers import quantize_onnx
from narrowcast.frontends import import_model
from narrowcast.models.random_weights import initialize
from narrowcast.models.resnet import Bottleneck
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement


class Small(nn.Module):
    """A residual, a concatenation, both pools and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.wide = nn.Conv2d(16, 16, 1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.pool = nn.MaxPool2d(2)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = self.pool(torch.relu(self.second(x) + x))
        x = torch.cat([x, torch.relu(self.wide(x))], 1)
        return self.head(torch.flatten(self.mean(torch.relu(self.depthwise(x))), 1))


class Residual(nn.Module):
    """A ResNet of bottlenecks with batch normalization, small."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Bottleneck(16, 8, 1), Bottleneck(32, 8, 1), Bottleneck(32, 16, 2))
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.mean(self.blocks(self.stem(x))), 1))


def samples(size: int = 16, count: int = 6) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal(size=(1, 3, size, size)).astype(np.float32) for _ in range(count)]


def quantized(kind: type[nn.Module], size: int = 16, **form: Any) -> onnx.ModelProto:
    """A network with seeded weights, quantized."""
    torch.manual_seed(0)
    module = kind().eval()
    initialize(module)
    calibration = [(x,) for x in samples(size)]
    return quantize_onnx(export_onnx(module, calibration[0]), calibration, **form)


def session_of(model: onnx.ModelProto) -> Callable[[np.ndarray], np.ndarray]:
    """ONNX Runtime on a model of one input and one output."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (name,) = (value.name for value in session.get_inputs())
    return lambda x: session.run(None, {name: x})[0]


def steps_apart(model: onnx.ModelProto, program: narrowcast.Program, inputs: Sequence[np.ndarray]) -> float:
    """The largest difference to ONNX Runtime in quantization steps of the output."""
    reference = session_of(model)
    last = next(n for n in reversed(model.graph.node) if n.op_type == "DequantizeLinear")
    scale = next(onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.name == last.input[1])
    return max(float(np.abs(np.asarray(program(x)) - reference(x)).max() / scale) for x in inputs)


def stored_as_float(program: narrowcast.Program) -> list[str]:
    return [d.op for d in program.plan.decisions if any(s.dtype != "uint8" for s in d.stores)]


FORMS: dict[str, dict[str, Any]] = {
    "QDQ": {}, "operators": {"form": "QOperator"}, "int8, per tensor": {"activations": "QInt8", "per_channel": False},
    "symmetric int8 operators": {"activations": "QInt8", "form": "QOperator", "ActivationSymmetric": True},
}


@pytest.fixture(scope="module")
def partly() -> onnx.ModelProto:
    """A network whose last layer is not quantized."""
    return quantized(Small, exclude=["Gemm"])


@pytest.mark.isa("avx512_vnni")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_multiplication_is_an_integer_one_and_no_data_is_needed(form: dict[str, Any]) -> None:
    model = quantized(Small, **form)
    program = narrowcast.compile(model)
    multiplying = [d for d in program.plan.decisions if d.macs]
    assert len(multiplying) == 5 and {d.precision for d in multiplying} == {narrowcast.Precision.INT8}
    assert {d.reason for d in multiplying} == {"INT8: given by the model"}
    *inner, last = stored_as_float(program)
    assert last == program.plan.decisions[-1].op
    grouped = next(s for s in program.stages if s.name == "FuseGroups")
    readers = {n.name for n in grouped.nodes if set(n.inputs) & set(inner)}
    floats = {n.name for n in model.graph.node if n.op_type == "ReduceMean"}  # what the quantizer leaves in float
    assert len(inner) == len(readers) <= len(floats) and {program.plan[r].kind for r in readers} <= {"pool"}
    assert steps_apart(model, program, samples(count=3)) <= 1.001


@pytest.mark.isa("avx512_vnni")
def test_a_residual_network_has_exactly_the_levels_of_onnx_runtime() -> None:
    model = quantized(Residual, 64)
    program = narrowcast.compile(model)
    assert program.report.int8_share == pytest.approx(1.0)
    assert stored_as_float(program) == [program.plan.decisions[-1].op]
    assert steps_apart(model, program, samples(64)) <= 1e-3


@pytest.mark.isa("avx512_vnni")
@pytest.mark.parametrize("kind", [Small, Residual])
def test_kernels_and_evaluator_have_the_same_levels(kind: type[nn.Module]) -> None:
    size = 64 if kind is Residual else 16
    mod = run_pipeline(import_model(quantized(kind, size)).mod)
    plan = narrowcast.compile(quantized(kind, size)).plan
    agreements = kernel_agreement(mod, plan, Target.parse("cpu", 2), samples(size)[:1])
    assert all(a.ok for a in agreements), [a.detail for a in agreements if not a.ok]
    assert max(a.steps for a in agreements if a.steps is not None and a.kind != "pool") == 0


@pytest.mark.isa("avx512_vnni")
def test_weights_with_a_zero_point_stay_in_floating_point() -> None:
    model = quantized(Small, weights="QUInt8", per_channel=False)
    program = narrowcast.compile(model)
    multiplying = [d for d in program.plan.decisions if d.macs]
    assert {d.precision for d in multiplying} == {narrowcast.Precision.FP32}
    assert {d.reason for d in multiplying} == {"FP32: its weights are not on a symmetric INT8 grid"}
    assert steps_apart(model, program, samples(count=3)) <= 1.001


@pytest.mark.isa("avx512_vnni")
def test_what_the_model_leaves_open_is_decided_and_the_rest_is_not(partly: onnx.ModelProto) -> None:
    program = narrowcast.compile(partly)
    reasons = {d.op: d.reason for d in program.plan.decisions if d.macs}
    assert reasons["head"] == "FP32: the model does not quantize what it multiplies"
    data = np.concatenate(samples(count=16))
    narrow = narrowcast.compile(partly, precision="int8", data=data)
    given = {d.op: d for d in program.plan.decisions if d.precision == "int8"}
    assert len(given) == 4
    for name, decision in given.items():
        assert narrow.plan[name].reason == decision.reason == "INT8: given by the model"
        assert narrow.plan[name].stores[-1].qparams == decision.stores[-1].qparams
        assert narrow.plan[name].correction == ()
    assert narrow.plan["head"].precision == "int8" and narrow.plan["head"].correction


@pytest.mark.isa("avx512_vnni")
def test_a_budget_is_measured_against_the_model_itself(partly: onnx.ModelProto, tmp_path: Path) -> None:
    data = np.concatenate(samples(count=40))
    budget = narrowcast.AccuracyBudget(max_drop=0.5, data=data, metric="cosine")
    program = narrowcast.compile(partly, accuracy_budget=budget, cost_cache=tmp_path / "costs.json")
    given = [d for d in program.plan.decisions if d.reason == "INT8: given by the model"]
    assert len(given) == 4 and program.report.drop is not None and program.report.drop < 1e-3


def test_fp32_runs_the_roundings_of_the_model_in_floating_point() -> None:
    model = quantized(Small)
    program = narrowcast.compile(model, precision="fp32")
    assert program.plan.is_exact
    assert steps_apart(model, program, samples(count=3)) <= 1.001


@pytest.mark.isa("avx2")
def test_a_cpu_without_vnni_computes_the_same_levels() -> None:
    model = quantized(Small)
    program = narrowcast.compile(model, target="cpu:haswell")
    assert sum(d.reason == "INT8: given by the model" for d in program.plan.decisions) == 5
    assert steps_apart(model, program, samples(count=3)) <= 1.001


@pytest.mark.isa("avx512_vnni")
def test_a_symbolic_batch() -> None:
    torch.manual_seed(0)
    module = Small().eval()
    initialize(module)
    example, shapes = torch.zeros(2, 3, 16, 16), ({0: torch.export.Dim("batch")},)
    exported = torch.onnx.export(module, (example,), dynamo=True, verbose=False, dynamic_shapes=shapes)
    assert exported is not None
    model = quantize_onnx(exported.model_proto, [(x,) for x in samples()])
    program, reference = narrowcast.compile(model), session_of(model)
    assert {d.reason for d in program.plan.decisions if d.macs} == {"INT8: given by the model"}
    for batch in (1, 3):
        x = np.concatenate(samples(count=batch))
        np.testing.assert_allclose(np.asarray(program(x)), reference(x), rtol=0, atol=1e-6)
