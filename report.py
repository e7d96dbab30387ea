"""What a compilation found out: accuracy, size, time. Every number in it was measured or says that it is predicted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Report:
    """Named results of one compilation; ``None`` where a thing was not measured.

    metric : the metric's name.
    baseline, compiled : the metric of the emitted FP32 program and of this program on the verification samples.
    drop : how much worse, in the metric's units (a share of the baseline where ``relative``); negative is better.
    lower, upper : two-sided interval of the drop at ``confidence``.
    bound : one-sided upper bound of the drop at ``confidence``: what is judged.
    identical : whether the outputs are those of the FP32 program up to float32 rounding, which no budget refuses.
    samples : number of verification samples.
    max_drop : the budget; None where the drop is reported, not judged.
    latency_ms, fp32_latency_ms : median of one call, measured when compiling.
    weight_bytes : packed constants of the program.
    int8_share, bf16_share, fp16_share : shares of the multiply-adds.
    casts : stand-alone casts in the program.
    rounds : programs built and measured until the plan stood.
    predicted_us : sum of the groups' measured costs, each with a kernel of its own.
    tuned : different kernels whose schedules were compared by measuring.
    model_us, tuned_us : sums over the program's compared kernels of the measured time of the schedule that the model
        ranks first, and of the fastest.
    seconds : time spent by phase.
    """

    target: str
    threads: int
    metric: str | None = None
    baseline: float | None = None
    compiled: float | None = None
    drop: float | None = None
    lower: float | None = None
    upper: float | None = None
    bound: float | None = None
    identical: bool = False
    confidence: float | None = None
    relative: bool = False
    samples: int = 0
    max_drop: float | None = None
    latency_ms: float | None = None
    fp32_latency_ms: float | None = None
    weight_bytes: int = 0
    int8_share: float = 0.0
    bf16_share: float = 0.0
    fp16_share: float = 0.0
    casts: int = 0
    rounds: int = 0
    predicted_us: float | None = None
    tuned: int = 0
    model_us: float | None = None
    tuned_us: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def total_seconds(self) -> float:
        """Time of the whole compilation."""
        return sum(self.seconds.values())

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that ``to_json`` wrote."""
        raw = json.loads(text)
        return cls(**{**raw, "notes": tuple(raw["notes"])})

    def __str__(self) -> str:
        lines = [f"target {self.target}, {self.threads} threads"]
        if self.metric is not None and self.baseline is not None:
            unit = " (relative)" if self.relative else ""
            bound = "" if self.bound is None else f", at most {self.bound:.5g} with confidence {self.confidence:g}"
            lines.append(
                f"{self.metric}: FP32 {self.baseline:.5g}, compiled {self.compiled:.5g} on {self.samples} samples; "
                f"drop{unit} {self.drop:.5g}{bound}"
            )
            lines.append("budget: " + ("not judged" if self.max_drop is None else f"{self.max_drop:g}"))
        if self.latency_ms is not None:
            lines.append(
                f"latency {self.latency_ms:.3f} ms"
                + (f", FP32 {self.fp32_latency_ms:.3f} ms" if self.fp32_latency_ms is not None else "")
            )
        lines.append(
            f"multiply-adds: {self.int8_share:.1%} INT8, {self.bf16_share:.1%} BF16"
            + (f", {self.fp16_share:.1%} FP16" if self.fp16_share else "")
            + "; weights "
            f"{self.weight_bytes / 1e6:.2f} MB; stand-alone casts: {self.casts}"
        )
        if self.model_us is not None and self.tuned_us is not None:
            lines.append(
                f"schedules of {self.tuned} kernels compared: {self.tuned_us / 1e3:.3f} ms where the model's own take "
                f"{self.model_us / 1e3:.3f} ms, kernel by kernel"
            )
        lines.append("time: " + ", ".join(f"{k} {v:.1f} s" for k, v in self.seconds.items()))
        return "\n".join([*lines, *self.notes])
