"""compile() end to end on the shipped network and on a small encoder: accuracy, plans, agreement with the evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm

import narrowcast as nc
from narrowcast.backends.target import Target
from narrowcast.frontends import import_model
from narrowcast.models import fashion_mnist
from narrowcast.models.bert import BertEncoder, BertShape
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement

EXAMPLE = torch.zeros(1, 1, 28, 28)
EPSILON = float(np.finfo(np.float32).eps)


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    return fashion_mnist.load()


@pytest.fixture(scope="module")
def images() -> tuple[np.ndarray, np.ndarray]:
    x, y = fashion_mnist.test_data()
    return np.asarray(x[:600]), np.asarray(y[:600])


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("costs") / "costs.json"


@pytest.fixture(scope="module")
def budget() -> nc.AccuracyBudget:
    """Enough images that the bound is far inside the budget: what the plan is then follows from the costs alone."""
    x, y = fashion_mnist.test_data()
    return nc.AccuracyBudget(
        0.02, data=(x[:3000], y[:3000]), metric="top1", calibration=fashion_mnist.calibration_data()
    )


@pytest.fixture(scope="module")
def program(network: torch.nn.Module, budget: nc.AccuracyBudget, costs: Path) -> nc.Program:
    return nc.compile(network, "cpu", budget, cost_cache=costs)


@pytest.fixture(scope="module")
def grouped(network: torch.nn.Module) -> tvm.IRModule:
    """The network in grouped form."""
    return run_pipeline(import_model(network, EXAMPLE).mod)


@pytest.fixture(scope="module")
def forced(network: torch.nn.Module, images: tuple[np.ndarray, np.ndarray]) -> Callable[[str], nc.Program]:
    """The network's program in one precision; compiled once for each."""
    return cache(lambda precision: nc.compile(network, "cpu", None, precision=precision, data=images[0][:16]))


def small_encoder() -> BertEncoder:
    torch.manual_seed(0)
    encoder = BertEncoder(BertShape(vocabulary=50, positions=16, channels=64, layers=2, heads=4, inner=128))
    return encoder.eval()


def token_inputs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.ones((1, 12), np.int64)
    mask[0, 9 + seed % 3:] = 0
    return rng.integers(0, 50, (1, 12)), mask


def test_exact_program_equals_pytorch(network: torch.nn.Module, images: tuple[np.ndarray, np.ndarray]) -> None:
    exact = nc.compile(network, "cpu", None, example_inputs=EXAMPLE)
    with torch.no_grad():
        expected = network(torch.from_numpy(images[0][:20])).numpy()
    found = np.concatenate([exact(images[0][i : i + 1]) for i in range(20)])
    # 16 layers, sums of up to 864 products
    np.testing.assert_allclose(found, expected, rtol=0, atol=16 * 864 * EPSILON * np.abs(expected).max())
    assert {d.precision for d in exact.plan.decisions} == {nc.Precision.FP32}


def test_budget_is_kept_and_most_work_is_int8(program: nc.Program) -> None:
    report = program.report
    assert report.samples == 3000 and report.metric == "top1"
    x, y = (np.asarray(a[:3000]) for a in fashion_mnist.test_data())
    hits = [int(program(x[i : i + 1]).argmax()) == y[i] for i in range(3000)]
    assert report.compiled == pytest.approx(np.mean(hits))
    assert report.baseline is not None and report.baseline > 0.9
    assert report.drop == pytest.approx(report.baseline - np.mean(hits))
    assert report.bound is not None and report.bound <= 0.02
    if nc.Precision.INT8 in Target.parse("cpu").precisions():
        assert report.int8_share > 0.5


def test_every_op_has_a_decision_and_a_reason(program: nc.Program) -> None:
    layers = [d.op for d in program.plan.decisions]
    assert "stages.0.conv1" in layers and "head" in layers
    assert len(set(layers)) == len(layers)
    assert all(d.reason for d in program.plan.decisions)
    assert nc.PrecisionPlan.from_json(program.plan.to_json()) == program.plan


def test_same_seed_same_plan(
    network: torch.nn.Module, budget: nc.AccuracyBudget, costs: Path, program: nc.Program
) -> None:
    again = nc.compile(network, "cpu", budget, cost_cache=costs)
    assert again.plan.to_json() == program.plan.to_json()


def test_onnx_export_gives_the_same_decisions(
    network: torch.nn.Module, budget: nc.AccuracyBudget, costs: Path, program: nc.Program
) -> None:
    exported = torch.onnx.export(network, (EXAMPLE,), dynamo=True, verbose=False)
    assert exported is not None
    other = nc.compile(exported.model_proto, "cpu", budget, cost_cache=costs)
    for a, b in zip(other.plan.decisions, program.plan.decisions, strict=True):
        assert (a.kind, a.precision) == (b.kind, b.precision)
        assert a.op == b.op or a.kind == "movement"  # the exporter calls flatten view
        assert [s.dtype for s in a.stores] == [s.dtype for s in b.stores]
        for left, right in zip(a.stores, b.stores, strict=True):
            if left.qparams is not None and right.qparams is not None:  # the exporter folds batch norm in float32
                assert left.qparams.scale == pytest.approx(right.qparams.scale, rel=1e-5)


@pytest.mark.isa("avx512_vnni")
def test_zero_budget_with_int8_forced_raises_with_the_plan(
    network: torch.nn.Module, images: tuple[np.ndarray, np.ndarray]
) -> None:
    zero = nc.AccuracyBudget(0.0, data=images, metric="top1")
    with pytest.raises(nc.BudgetError) as caught:
        nc.compile(network, "cpu", zero, precision="int8")
    precisions = {d.precision for d in caught.value.plan.decisions if d.kind == "conv"}
    assert precisions == {nc.Precision.INT8}
    assert np.isfinite(caught.value.measured_drop)
    assert f"{caught.value.measured_drop:.5g}" in str(caught.value)


def test_zero_budget_gives_fp32(network: torch.nn.Module, images: tuple[np.ndarray, np.ndarray], costs: Path) -> None:
    strict = nc.AccuracyBudget(0.0, data=(images[0][:80], images[1][:80]), metric="cosine")
    report = nc.compile(network, "cpu", strict, cost_cache=costs).report
    assert report.drop == 0 and report.int8_share == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_kernels_of_the_network_agree_with_the_evaluator(
    grouped: tvm.IRModule, forced: Callable[[str], nc.Program], images: tuple[np.ndarray, np.ndarray], precision: str
) -> None:
    target = Target.parse("cpu")
    if nc.Precision(precision) not in target.precisions():
        pytest.skip(f"this CPU has no {precision} multiply-add")
    agreements = kernel_agreement(grouped, forced(precision).plan, target, [images[0][:1]])
    assert len(agreements) >= 18
    assert [a.detail for a in agreements if not a.ok] == []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_kernels_of_an_encoder_agree_with_the_evaluator(precision: str) -> None:
    target = Target.parse("cpu")
    if nc.Precision(precision) not in target.precisions():
        pytest.skip(f"this CPU has no {precision} multiply-add")
    encoder = small_encoder()
    data = [token_inputs(i) for i in range(8)]
    program = nc.compile(encoder, "cpu", None, precision=precision, data=data, example_inputs=data[0])
    mod = run_pipeline(import_model(encoder, data[0]).mod)
    agreements = kernel_agreement(mod, program.plan, target, data[1])
    assert {"attention", "layer_norm", "matmul"} <= {a.kind for a in agreements}
    assert [a.detail for a in agreements if not a.ok] == []


@pytest.mark.isa("avx512_vnni")
def test_agreement_notices_a_wrong_scale(
    grouped: tvm.IRModule, forced: Callable[[str], nc.Program], images: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from narrowcast import verification

    honest = verification.emit

    def wrong(request, capabilities, threads):  # type: ignore[no-untyped-def]
        def off(storage: nc.Storage) -> nc.Storage:
            q = storage.qparams
            return storage if q is None else replace(storage, qparams=replace(q, scale=q.scale * 1.05))

        return honest(replace(request, inputs=tuple(off(s) for s in request.inputs)), capabilities, threads)

    monkeypatch.setattr(verification, "emit", wrong)
    agreements = kernel_agreement(grouped, forced("int8").plan, Target.parse("cpu"), [images[0][:1]])
    assert not all(a.ok for a in agreements if a.kind == "conv")


def test_plain_number_is_a_max_drop(
    network: torch.nn.Module, images: tuple[np.ndarray, np.ndarray], costs: Path
) -> None:
    report = nc.compile(network, "cpu", 0.05, data=images, metric="top1", cost_cache=costs).report
    # of 600 a quarter selects, 128 at most calibrate, the rest verifies
    assert report.max_drop == 0.05 and report.samples == 600 - 128 - 150


def test_the_callers_module_is_left_as_it_was() -> None:
    network = fashion_mnist.load().train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    nc.compile(network, "cpu", None, example_inputs=EXAMPLE)
    assert network.training
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
