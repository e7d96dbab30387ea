from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import tvm

from narrowcast.calibration.calibrators import MinMax, calibrate
from narrowcast.calibration.evaluator import Evaluator, fp32_plan
from narrowcast.calibration.numerics import Stored, as_stored
from narrowcast.calibration.statistics import Statistics
from narrowcast.errors import DataError, PlanError
from narrowcast.ir import EPILOGUE_KINDS
from narrowcast.operators import reference
from narrowcast.operators.recurrent import operands_of
from narrowcast.precision import BFLOAT16, FLOAT32, Decision, Precision, PrecisionPlan, QParams, Storage

IMAGES = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype(np.float32))
IDS = torch.from_numpy(np.random.default_rng(0).integers(0, 20, (3, 6)))


@pytest.fixture(scope="module")
def conv(convolutional: tvm.IRModule) -> Evaluator:
    return Evaluator(convolutional)


@pytest.fixture(scope="module")
def attention(transformer: tvm.IRModule) -> Evaluator:
    return Evaluator(transformer)


def ranges(evaluator: Evaluator, inputs: torch.Tensor) -> dict[str, QParams]:
    statistics = Statistics()
    evaluator.visit([inputs], statistics.observe)
    return calibrate(evaluator.groups, statistics, MinMax())


def full_plan(evaluator: Evaluator, precision: Precision, qparams: dict[str, QParams], *,
              per_channel: bool = True) -> PrecisionPlan:
    """Every compute group in ``precision``, every tensor stored in float32 and in the storage of the precision."""

    def low(name: str) -> Storage:
        return BFLOAT16 if precision is Precision.BF16 else Storage("uint8", qparams[name])

    decisions = []
    for group in evaluator.groups:
        computes = group.exact_inputs
        stores = (FLOAT32, low(group.name)) if group.kind in EPILOGUE_KINDS else (FLOAT32,)
        decisions.append(Decision(group.name, group.kind, precision if computes else Precision.FP32, "test", stores,
                                  per_channel))
    casts = {name: (low(name),) for name in qparams
             if name not in {d.op for d in decisions if d.kind in EPILOGUE_KINDS}}
    return PrecisionPlan(tuple(decisions), casts)


def test_fp32_equals_the_reference(convolutional: tvm.IRModule, transformer: tvm.IRModule) -> None:
    for mod, inputs in ((convolutional, IMAGES[:1]), (transformer, IDS[:1])):
        evaluator = Evaluator(mod)
        expected = reference.run(mod, [inputs])
        plain = evaluator.run_outputs([inputs])
        planned = evaluator.run_outputs([inputs], fp32_plan(evaluator))
        for a, b, c in zip(expected, plain, planned, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
            torch.testing.assert_close(a, c, rtol=0, atol=0)


def test_batches_run_sample_by_sample(conv: Evaluator) -> None:
    whole = conv.run({"image": IMAGES})
    assert list(whole)[:2] == ["image", "stem"] and whole["classifier"].shape == (4, 10)
    for i in range(4):
        single = conv.run({"image": IMAGES[i:i + 1]})
        for name, values in single.items():
            torch.testing.assert_close(whole[name][i:i + 1], values, rtol=0, atol=0)


@pytest.mark.parametrize("per_channel", [True, False])
def test_int8_convolution_by_hand(conv: Evaluator, per_channel: bool) -> None:
    """The stem in integers with NumPy, padding and all, against the evaluator: equal to the bit."""
    qparams = ranges(conv, IMAGES)
    plan = full_plan(conv, Precision.INT8, qparams, per_channel=per_channel)
    found = conv.evaluate([IMAGES[:1]], plan)
    program = conv.programs["stem"]
    w = program.constants[program.weight].numpy()
    bias = next(c for c in program.constants.values() if c.dim() == 1).numpy()
    absmax = np.abs(w).max(axis=(1, 2, 3)) if per_channel else np.full(8, np.abs(w).max())
    s_w = (absmax / np.float32(127)).astype(np.float32)
    w_q = np.clip(np.rint(w / s_w[:, None, None, None]), -127, 127).astype(np.int64)
    q = qparams["image"]
    x_q = np.clip(np.rint(IMAGES[:1].numpy() * np.float32(q.inverse_scale)) + q.zero_point, 0, 255).astype(np.int64)
    np.testing.assert_array_equal(found.materialised["image", "uint8"].numpy(), x_q)
    padded = np.pad(x_q, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=q.zero_point)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))  # [1, 8, 8, channel, kh, kw]
    acc = np.einsum("nhwcij,oijc->nhwo", windows, w_q)
    scale = np.float64(q.scale) * s_w.astype(np.float64)
    offset = (-scale * q.zero_point * w_q.sum(axis=(1, 2, 3)) + bias.astype(np.float64)).astype(np.float32)
    y = np.maximum(acc.astype(np.float32) * scale.astype(np.float32) + offset, 0)
    np.testing.assert_array_equal(found.materialised["stem", "float32"].numpy(), y)
    own = qparams["stem"]
    levels = np.clip(np.rint(y * np.float32(own.inverse_scale)) + own.zero_point, 0, 255)
    np.testing.assert_array_equal(found.materialised["stem", "uint8"].numpy(), levels)


def test_low_precision_is_close_and_not_equal(conv: Evaluator, attention: Evaluator) -> None:
    for evaluator, inputs in ((conv, IMAGES), (attention, IDS)):
        exact = evaluator.run_outputs([inputs])
        qparams = ranges(evaluator, inputs)
        for precision, limit in ((Precision.BF16, 2.0**-6), (Precision.INT8, 0.08)):
            found = evaluator.run_outputs([inputs], full_plan(evaluator, precision, qparams))
            for a, b in zip(exact, found, strict=True):
                relative = float((a - b).norm() / a.norm())
                assert 0 < relative < limit, (precision, relative)


def test_consumers_read_the_most_precise_storage(conv: Evaluator) -> None:
    """Dropping float32 copies changes what flexible consumers read; a plan that keeps them equals one without uint8."""
    qparams = ranges(conv, IMAGES)
    plan = fp32_plan(conv)
    coarse = Storage("uint8", qparams["residual"] if "residual" in qparams else qparams["pointwise"])
    both = PrecisionPlan(tuple(replace(d, stores=(FLOAT32, coarse)) if d.op == "pointwise" else d
                               for d in plan.decisions))
    exact = conv.run_outputs([IMAGES], plan)[0]
    torch.testing.assert_close(conv.run_outputs([IMAGES], both)[0], exact, rtol=0, atol=0)
    only = PrecisionPlan(tuple(replace(d, stores=(coarse,)) if d.op in ("pointwise", "pool") else d
                               for d in plan.decisions))
    found = conv.evaluate([IMAGES], only)
    assert not torch.equal(found.outputs[0], exact)
    assert found.materialised["pool", "uint8"].dtype == torch.uint8  # movement keeps the levels
    pooled = torch.nn.functional.max_pool2d(found.materialised["pointwise", "uint8"].permute(0, 3, 1, 2).float(), 2)
    torch.testing.assert_close(found.materialised["pool", "uint8"].permute(0, 3, 1, 2).float(), pooled, rtol=0, atol=0)


def test_unreadable_storage_is_refused(conv: Evaluator) -> None:
    plan = fp32_plan(conv)
    int8 = PrecisionPlan(tuple(replace(d, precision=Precision.INT8) if d.op == "pointwise" else d
                               for d in plan.decisions))
    with pytest.raises(PlanError, match=r"(?s)depthwise.*nothing that a consumer can read"):
        conv.run([IMAGES[:1]], int8)
    with pytest.raises(PlanError, match=r"(?s)stem.*no decision"):
        conv.run([IMAGES[:1]], PrecisionPlan(plan.decisions[1:]))


def test_bad_inputs(conv: Evaluator) -> None:
    with pytest.raises(DataError, match=r"(?s)image.*wrong shape.*\(1, 8, 8, 3\)"):
        conv.run([IMAGES[:, :4]])
    with pytest.raises(DataError, match="not those of the network"):
        conv.run({"picture": IMAGES})


def test_visits_float_tensors_and_keeps_what_is_asked(attention: Evaluator) -> None:
    seen: list[str] = []
    attention.visit([IDS[:1]], lambda name, values: seen.append(name))
    assert seen[0] == "embedding" and "ids" not in seen and "softmax" in seen
    assert set(attention.evaluate([IDS[:1]], keep=("norm",)).values) == {"norm"}


def test_groups_of_tuples(recurrent: tvm.IRModule) -> None:
    evaluator = Evaluator(recurrent)
    sequence = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 1, 4)).astype(np.float32))
    for plan in (None, fp32_plan(evaluator)):
        found = evaluator.run_outputs([sequence], plan)
        for a, b in zip(found, reference.run(recurrent, [sequence]), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    qparams = ranges(evaluator, sequence)
    plan = full_plan(evaluator, Precision.INT8, {k: q for k, q in qparams.items() if k in
                                                 ("sequence", "encoder", "lstm.hidden", "decoder", "squeeze")})
    result = evaluator.evaluate([sequence], plan)
    assert result.materialised["squeeze", "uint8"].dtype == torch.uint8
    assert result.outputs[1].dtype == torch.int64
    torch.testing.assert_close(result.outputs[0], found[0], rtol=0, atol=0.1)


@pytest.mark.parametrize("per_channel", [True, False])
def test_recurrent_layers_round_weights_and_states(recurrent: tvm.IRModule, per_channel: bool) -> None:
    """One LSTM step by step in float64 on levels; what is rounded otherwise lies an order of magnitude further away."""
    program = Evaluator(recurrent).programs["lstm"]
    operands = operands_of(program.group.anchor.value)
    w, r, b = (program.constants[operands[n]][0].double().numpy() for n in ("w", "r", "b"))
    sequence = torch.from_numpy(np.random.default_rng(2).standard_normal((5, 1, 3)).astype(np.float32))
    qparams = QParams.from_range(float(sequence.min()), float(sequence.max()))
    x = Stored.of(sequence, Storage("uint8", qparams))
    found = program.compute([x], Precision.INT8, per_channel=per_channel)
    rows, exact = held_matrix(w, per_channel), program.compute([as_stored(sequence)], Precision.FP32)
    recurrent_rows, h, c, states = held_matrix(r, per_channel), np.zeros(6), np.zeros(6), []
    for step in x.real.double().numpy()[:, 0]:
        scale = max(np.abs(h).max(), 1e-30) / 127
        total = rows @ step + recurrent_rows @ (np.rint(h / scale) * scale) + b[:24] + b[24:]
        i, o, f = (1 / (1 + np.exp(-gate)) for gate in np.split(total, 4)[:3])
        c = f * c + i * np.tanh(total[18:])
        h = o * np.tanh(c)
        states.append(h)
    assert isinstance(found, tuple) and isinstance(exact, tuple)
    np.testing.assert_allclose(found[0][:, 0, 0].numpy(), states, rtol=0, atol=32 * np.finfo(np.float32).eps)
    assert float((exact[0] - found[0]).abs().max()) > 1e-4


def held_matrix(weights: np.ndarray, per_channel: bool) -> np.ndarray:
    """What remains of a matrix in INT8, by row or with one scale."""
    scales = np.abs(weights).max(axis=1, keepdims=True) / 127
    scales = scales if per_channel else np.full_like(scales, scales.max())
    return np.rint(weights / scales) * scales
