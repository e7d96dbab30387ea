"""Predicted noise against the noise that plans really make, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.calibration.calibrators import MinMax, calibrate
from narrowcast.calibration.evaluator import Evaluator, fp32_plan
from narrowcast.calibration.sensitivity import Sensitivities, estimate_sensitivities, measure_noise, output_scales
from narrowcast.calibration.statistics import Statistics
from narrowcast.errors import DataError
from narrowcast.passes.fuse import FuseGroups
from narrowcast.precision import FLOAT32, Precision, PrecisionPlan, QParams, Storage

SAMPLES, DRAWS = 48, 6
# A draw's square has relative standard deviation sqrt(2) where one direction dominates: the mean of 288 is within 4
# standard errors, 4 * sqrt(2 / 288) = 0.33, rounding is not quite linear, and samples weigh unequally. So: 1.6 times.
FACTOR = 1.6


class Prepared:
    """An evaluator with samples, parameters, output scales and sensitivities."""

    def __init__(self, mod: tvm.IRModule, samples: list[list[torch.Tensor]]) -> None:
        self.evaluator, self.samples = Evaluator(mod), samples
        statistics = Statistics()
        for sample in samples:
            self.evaluator.visit(sample, statistics.observe)
        self.qparams = calibrate(self.evaluator.groups, statistics, MinMax())
        self.scales = output_scales(self.evaluator, statistics)

    def estimate(self, **options: object) -> Sensitivities:
        return estimate_sensitivities(self.evaluator, self.samples, self.qparams, self.scales, **options)

    def storage(self, tensor: str, dtype: str) -> Storage:
        return Storage("uint8", self.qparams[tensor]) if dtype == "uint8" else Storage(dtype)

    def measure(self, plan: PrecisionPlan) -> float:
        return measure_noise(self.evaluator, self.samples, plan, self.scales)

    def only_compute(self, group: str, precision: Precision, *, per_channel: bool = True) -> PrecisionPlan:
        """FP32 but for one group; its operands get a copy that nobody else reads."""
        plan = fp32_plan(self.evaluator)
        own = self.evaluator.programs[group].group
        operands = {own.inputs[i] for i in own.exact_inputs}
        decisions = tuple(replace(d, precision=precision, per_channel=per_channel) if d.op == group else d
                          for d in plan.decisions)
        return PrecisionPlan(decisions, {t: (self.storage(t, precision.storage_dtype),) for t in operands})

    def only_storage(self, tensor: str, dtype: str) -> PrecisionPlan:
        """FP32 but for the storage of one tensor, and of what movement makes of it."""
        low, decisions = {tensor: self.storage(tensor, dtype)}, []
        for decision, group in zip(fp32_plan(self.evaluator).decisions, self.evaluator.groups, strict=True):
            if group.kind == "movement" and set(group.inputs) & set(low):
                low[group.name] = low[group.inputs[0]]
            stores = (low[group.name],) if group.name in low else (FLOAT32,)
            decisions.append(replace(decision, stores=stores))
        return PrecisionPlan(tuple(decisions))


@pytest.fixture(scope="module")
def conv(convolutional: tvm.IRModule) -> Prepared:
    rng = np.random.default_rng(0)
    return Prepared(convolutional, [[torch.from_numpy(rng.standard_normal((1, 8, 8, 3)).astype(np.float32))]
                                    for _ in range(SAMPLES)])


@pytest.fixture(scope="module")
def attention(transformer: tvm.IRModule) -> Prepared:
    rng = np.random.default_rng(0)
    return Prepared(transformer, [[torch.from_numpy(rng.integers(0, 20, (1, 6)))] for _ in range(SAMPLES)])


@pytest.fixture(scope="module")
def conv_sensitivities(conv: Prepared) -> Sensitivities:
    return conv.estimate(draws=DRAWS)


@pytest.fixture(scope="module")
def attention_sensitivities(attention: Prepared) -> Sensitivities:
    return attention.estimate(draws=DRAWS)


def assert_predicts(predicted: float, measured: float) -> None:
    assert measured / FACTOR < predicted < measured * FACTOR, (predicted, measured)


@pytest.mark.parametrize("group", ["stem", "depthwise", "pointwise", "classifier"])
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.INT8])
def test_predicts_the_noise_of_convolutions(conv: Prepared, conv_sensitivities: Sensitivities, group: str,
                                            precision: Precision) -> None:
    measured = conv.measure(conv.only_compute(group, precision))
    assert_predicts(conv_sensitivities.compute[group, precision], measured)


@pytest.mark.parametrize(("group", "precision"), [
    ("query", Precision.INT8), ("output", Precision.BF16), ("up", Precision.INT8), ("scores", Precision.INT8),
    ("scores", Precision.BF16), ("attention", Precision.BF16), ("attention", Precision.INT8)])
def test_predicts_the_noise_of_a_transformer(attention: Prepared, attention_sensitivities: Sensitivities, group: str,
                                             precision: Precision) -> None:
    measured = attention.measure(attention.only_compute(group, precision))
    assert_predicts(attention_sensitivities.compute[group, precision], measured)


@pytest.mark.parametrize(("group", "sums"), [("stem", 1 + (16 + 1) / 4), ("depthwise", 1.0)])
def test_fp16_adds_the_noise_of_its_sums_to_that_of_operands(conv: Prepared, group: str, sums: float) -> None:
    """The evaluator rounds operands only; ``tests/backends/cpu/test_fp16.py`` has the noise of emitted sums."""
    found = conv.estimate(draws=DRAWS, precisions=(Precision.FP16, Precision.BF16, Precision.INT8))
    operands = conv.measure(conv.only_compute(group, Precision.FP16))
    assert_predicts(found.compute[group, Precision.FP16], sums * operands)
    assert not any(p is Precision.FP16 for _, p in conv.estimate().compute)


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_predicts_the_noise_of_storages(conv: Prepared, conv_sensitivities: Sensitivities, dtype: str) -> None:
    """The residual's source is read by the depthwise convolution too, so it keeps a float32 copy there: the pool's
    result, which only the mean reads, stands for the storages."""
    assert_predicts(conv_sensitivities.storage["pool", dtype], conv.measure(conv.only_storage("pointwise", dtype)))
    assert conv_sensitivities.storage["pointwise", dtype] == 0.0  # read by movement alone
    assert conv_sensitivities.storage["stem", dtype] > 0.0  # the residual
    assert conv_sensitivities.storage["image", dtype] == 0.0  # multiplied only


def test_predicts_the_noise_of_weights_with_one_scale(conv: Prepared, conv_sensitivities: Sensitivities) -> None:
    coarse = conv.estimate(draws=DRAWS, per_channel=False)
    measured = conv.measure(conv.only_compute("depthwise", Precision.INT8, per_channel=False))
    assert_predicts(coarse.compute["depthwise", Precision.INT8], measured)
    assert coarse.compute["depthwise", Precision.INT8] != conv_sensitivities.compute["depthwise", Precision.INT8]
    assert coarse.compute["depthwise", Precision.BF16] == conv_sensitivities.compute["depthwise", Precision.BF16]


def test_the_whole_plan_is_about_the_sum(conv: Prepared, conv_sensitivities: Sensitivities) -> None:
    plans = [conv.only_compute(name, Precision.INT8) for name in ("stem", "depthwise", "pointwise", "classifier")]
    decisions = tuple(next((d for d in options if d.precision is Precision.INT8), options[0])
                      for options in zip(*(p.decisions for p in plans), strict=True))
    casts = {name: stores for p in plans for name, stores in p.casts.items()}
    predicted = sum(v for (_, p), v in conv_sensitivities.compute.items() if p is Precision.INT8)
    assert_predicts(predicted, conv.measure(PrecisionPlan(decisions, casts)))


def test_deterministic_with_progress(conv: Prepared) -> None:
    seen: list[tuple[int, int]] = []
    short = Prepared.__new__(Prepared)
    short.__dict__.update(conv.__dict__, samples=conv.samples[:3])
    first = short.estimate(seed=5, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert short.estimate(seed=5) == first
    assert short.estimate(seed=6) != first
    batched = estimate_sensitivities(conv.evaluator, [[torch.cat([s[0] for s in conv.samples[:3]])]], conv.qparams,
                                     conv.scales, seed=5)
    assert batched.compute == first.compute and batched.samples == 3


def test_groups_without_parameters_have_no_int8(conv: Prepared) -> None:
    some: dict[str, QParams] = {k: v for k, v in conv.qparams.items() if k != "image"}
    found = estimate_sensitivities(conv.evaluator, conv.samples[:1], some, conv.scales)
    assert ("stem", Precision.INT8) not in found.compute and ("stem", Precision.BF16) in found.compute
    assert ("image", "uint8") not in found.storage


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.INT8])
def test_predicts_the_noise_of_a_recurrent_layer(recurrent: tvm.IRModule, precision: Precision) -> None:
    rng = np.random.default_rng(0)
    prepared = Prepared(recurrent, [[torch.from_numpy(rng.standard_normal((5, 1, 4)).astype(np.float32))]
                                    for _ in range(SAMPLES)])
    found = prepared.estimate(draws=DRAWS, precisions=tuple(Precision))
    assert_predicts(found.compute["lstm", precision], prepared.measure(prepared.only_compute("lstm", precision)))
    assert ("lstm", Precision.FP16) not in found.compute


def test_noise_passes_through_a_recurrent_layer(recurrent: tvm.IRModule) -> None:
    rng = np.random.default_rng(0)
    prepared = Prepared(recurrent, [[torch.from_numpy(rng.standard_normal((5, 1, 4)).astype(np.float32))]
                                    for _ in range(SAMPLES)])
    found = prepared.estimate(draws=DRAWS)
    for precision in (Precision.BF16, Precision.INT8):
        assert_predicts(found.compute["encoder", precision],
                        prepared.measure(prepared.only_compute("encoder", precision)))


def test_needs_samples_and_float_outputs(conv: Prepared) -> None:
    with pytest.raises(DataError, match="at least one sample"):
        estimate_sensitivities(conv.evaluator, [], conv.qparams, conv.scales)
    x = relax.Var("x", relax.TensorType((1, 4), "float32"))
    builder = ir.GraphBuilder([x])
    func = builder.finish([builder.emit(relax.op.argmax(x, 1), "label")])
    evaluator = Evaluator(FuseGroups()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")})))
    with pytest.raises(DataError, match="no floating point output"):
        estimate_sensitivities(evaluator, [[torch.zeros(1, 4)]], {}, {})
