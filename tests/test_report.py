"""The report's text and JSON."""

from __future__ import annotations

from narrowcast.report import Report

JUDGED = Report(
    target="cpu:znver4", threads=2, metric="top1", baseline=0.93, compiled=0.925, drop=0.005, lower=-0.001,
    upper=0.012, bound=0.011, confidence=0.95, samples=1000, max_drop=0.02, latency_ms=0.5, fp32_latency_ms=1.5,
    weight_bytes=1_500_000, int8_share=0.75, bf16_share=0.25, casts=1, rounds=2, predicted_us=480.0,
    seconds={"import": 1.0, "emit": 2.5},
    notes=("3 rows were left out",))


def test_round_trip() -> None:
    for report in (JUDGED, Report("cpu:znver4", 1)):
        assert Report.from_json(report.to_json()) == report


def test_text() -> None:
    lines = str(JUDGED).splitlines()
    assert lines == [
        "target cpu:znver4, 2 threads",
        "top1: FP32 0.93, compiled 0.925 on 1000 samples; drop 0.005, at most 0.011 with confidence 0.95",
        "budget: 0.02",
        "latency 0.500 ms, FP32 1.500 ms",
        "multiply-adds: 75.0% INT8, 25.0% BF16; weights 1.50 MB; stand-alone casts: 1",
        "time: import 1.0 s, emit 2.5 s",
        "3 rows were left out",
    ]


def test_what_was_not_measured_is_not_in_the_text() -> None:
    text = str(Report("cpu:znver4", 1))
    assert "drop" not in text and "budget" not in text and "latency" not in text and "None" not in text


def test_a_reported_drop_is_not_judged() -> None:
    text = str(Report("cpu", 1, metric="rmse", baseline=2.0, compiled=2.1, drop=0.05, relative=True, samples=9))
    assert "drop (relative) 0.05\n" in text and "budget: not judged" in text


def test_total_time() -> None:
    assert JUDGED.total_seconds == 3.5
