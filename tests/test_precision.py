"""Quantization parameters, plans and their JSON, and which materialisation a consumer reads."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import PlanError
from narrowcast.precision import BFLOAT16, FLOAT32, Decision, Precision, PrecisionPlan, QParams, Storage, readable

EPS = float(np.finfo(np.float32).eps)

U8, OTHER_U8 = Storage("uint8", QParams(0.5, 3)), Storage("uint8", QParams(0.25, 3))


@pytest.mark.parametrize("stored", list(itertools.permutations([FLOAT32, BFLOAT16, U8])))
def test_flexible_consumers_read_the_most_precise(stored: tuple[Storage, ...]) -> None:
    assert readable(stored) == FLOAT32
    assert readable([s for s in stored if s != FLOAT32]) == BFLOAT16
    assert readable([U8]) == U8
    assert readable([Storage("int64")]) == Storage("int64")


def test_operands_read_their_precision() -> None:
    stored = (FLOAT32, BFLOAT16, U8)
    assert [readable(stored, p) for p in (Precision.FP32, Precision.BF16, Precision.INT8)] == list(stored)


def test_movement_reads_exactly_what_it_writes() -> None:
    assert readable((FLOAT32, U8), U8) == U8
    with pytest.raises(PlanError, match="nothing that a consumer can read"):
        readable((FLOAT32, U8), OTHER_U8)


def test_what_is_not_stored_cannot_be_read() -> None:
    with pytest.raises(PlanError, match=r"(?s)found.*float32.*expected: int8"):
        readable((FLOAT32,), Precision.INT8)
    with pytest.raises(PlanError):
        readable(())


def quantized(values: np.ndarray, q: QParams) -> np.ndarray:
    """The rule in the docstring of QParams, in float32."""
    return np.clip(np.rint(values.astype(np.float32) * np.float32(q.inverse_scale)) + q.zero_point, 0, 255)


ends = st.floats(-(2.0**100), 2.0**100, width=32)


@given(ends, ends)
@settings(max_examples=100, deadline=None)
def test_range_is_covered_and_zero_is_exact(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    q = QParams.from_range(low, high)
    assert q.scale == float(np.float32(q.scale)) > 0 and 0 <= q.zero_point <= 255
    assert quantized(np.zeros(1), q)[0] == q.zero_point, "0 is stored exactly"
    if low >= 0:
        assert q.zero_point == 0
    if high <= 0 and low < -1e-25:
        assert q.zero_point == 255
    if high - low > 1e-25:
        points = np.linspace(min(low, 0), max(high, 0), 101)
        error = np.abs((quantized(points, q) - q.zero_point) * q.scale - points)
        # half a step for the rounding, half a step at an end for the zero point, 255 products rounded to float32
        assert error.max() <= q.scale * (1 + 512 * EPS)


@pytest.mark.parametrize(("low", "high", "scale", "zero_point"), [
    (0.0, 255.0, 1.0, 0), (-255.0, 0.0, 1.0, 255), (-1.0, 1.0, 2 / 255, 127), (2.0, 51.0, 0.2, 0), (-3.0, -1.0, 3 / 255,
                                                                                                 255),
])
def test_parameters_of_a_range(low: float, high: float, scale: float, zero_point: int) -> None:
    assert QParams.from_range(low, high) == QParams(float(np.float32(scale)), zero_point)


def test_an_empty_range_has_parameters() -> None:
    q = QParams.from_range(0.0, 0.0)
    assert q.scale > 0 and q.zero_point == 0 and np.isfinite(q.inverse_scale)


@pytest.mark.parametrize(("scale", "zero_point"), [
    (0.0, 0), (-1.0, 0), (float("nan"), 0), (float("inf"), 0), (1.0, -1), (1.0, 256),
])
def test_unusable_parameters_are_refused(scale: float, zero_point: int) -> None:
    with pytest.raises(PlanError, match="unusable quantization parameters"):
        QParams(scale, zero_point)


def test_only_uint8_has_parameters() -> None:
    assert Storage("uint8").qparams is None  # A tensor of the model's own integers.
    with pytest.raises(PlanError):
        Storage("float32", QParams(1.0, 0))
    assert Storage("int64").qparams is None


scales = st.floats(2.0**-60, 2.0**60, width=32)
storages = st.one_of(st.sampled_from([FLOAT32, BFLOAT16, Storage("int64")]),
                     st.builds(lambda s, z: Storage("uint8", QParams(s, z)), scales, st.integers(0, 255)))
decisions = st.builds(
    Decision, op=st.text(min_size=1), kind=st.sampled_from(["conv", "movement"]), precision=st.sampled_from(Precision),
    reason=st.text(), stores=st.lists(storages, min_size=1, max_size=3).map(tuple), per_channel=st.booleans(),
    macs=st.integers(0, 2**50), cost_us=st.none() | st.floats(0, 1e6), error=st.none() | st.floats(0, 1))
plans = st.builds(
    PrecisionPlan, st.lists(decisions, max_size=3).map(tuple),
    st.dictionaries(st.text(), st.lists(storages, max_size=2).map(tuple), max_size=2), st.text(), st.integers(0, 9))


@given(plans)
@settings(max_examples=50, deadline=None)
def test_plans_round_trip(plan: PrecisionPlan) -> None:
    text = plan.to_json()
    assert PrecisionPlan.from_json(text) == plan
    assert PrecisionPlan.from_json(text).to_json() == text


CONV = Decision("conv", "conv", Precision.INT8, "it is fast", (U8,), macs=10, cost_us=1.5)
PLAN = PrecisionPlan((CONV,), {"x": (U8,), "conv": (BFLOAT16,)}, "hash", 3)


def changed(**changes: object) -> str:
    raw = json.loads(PLAN.to_json())
    raw["decisions"][0].update(changes)
    return json.dumps(raw)


@pytest.mark.parametrize("text", [
    "", "{}", "[]", "null", '"text"', PLAN.to_json()[:-5], changed(precision="int7"), changed(stores=[{}]),
    changed(stores=[{"dtype": "bfloat16", "qparams": {"scale": 1.0, "zero_point": 0}}]), changed(colour="red"),
    changed(stores=[{"dtype": "uint8", "qparams": {"scale": 0.0, "zero_point": 0}}]), changed(stores=None),
    json.dumps({"decisions": []}), json.dumps({**json.loads(PLAN.to_json()), "casts": []}),
])
def test_broken_plans_are_refused(text: str) -> None:
    with pytest.raises(PlanError):
        PrecisionPlan.from_json(text)


def test_plan_finds_decisions_and_storages() -> None:
    assert PLAN["conv"] is CONV
    with pytest.raises(KeyError):
        PLAN["absent"]
    assert PLAN.stored("conv") == (U8, BFLOAT16) and PLAN.stored("x") == (U8,) and PLAN.stored("absent") == ()


def test_key_is_what_determines_the_program() -> None:
    def with_conv(**changes: object) -> PrecisionPlan:
        return replace(PLAN, decisions=(replace(CONV, **changes),))  # type: ignore[arg-type]

    assert with_conv(reason="it was forced", cost_us=None, macs=0, error=0.5).key == PLAN.key
    assert replace(PLAN, seed=4, casts={**PLAN.casts, "y": ()}).key == PLAN.key
    different = [with_conv(precision=Precision.BF16), with_conv(stores=(OTHER_U8,)), with_conv(per_channel=False),
                 replace(PLAN, casts={}), replace(PLAN, module_hash="other")]
    assert PLAN.key not in {p.key for p in different}


def test_storage_types_of_precisions() -> None:
    assert {p: p.storage_dtype for p in Precision} == {
        Precision.FP32: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16", Precision.INT8: "uint8"}
