"""The search for the fastest program inside a budget: decide, emit, measure, correct, decide again.

The integer program minimizes time under a bound on the *predicted* noise. What a bound means for the user's metric is
found out by emitting the program and measuring it: the bound is lowered until the selection samples are inside the
budget, then narrowed from both sides. The verification samples judge what came out. Where they refuse it, or leave
room, the bound follows what they measured, since they are the larger part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .assignment import Assignment, Problem, solve
from .backends.executable import Executable
from .budget import AccuracyBudget, Measurement, measure, within
from .decisions import build_plan
from .errors import PlanError
from .precision import PrecisionPlan, QParams
from .progress import Listener
from .samples import Samples

# Programs that one search emits at most; the FP32 program, where nothing else is left, comes on top.
MAX_ROUNDS = 8
# Bounds that are closer than this factor are not narrowed further.
_CLOSE = 1.4
# Room in the budget beyond this factor is not believed at once.
_MOST_ROOM = 9.0
# Below this share of the fastest plan's noise only FP32 is left to try.
_LEAST = 1e-4

Outputs = list[tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class Candidate:
    """A plan that was emitted and measured on the selection samples."""

    assignment: Assignment
    plan: PrecisionPlan
    executable: Executable
    selection: Measurement


@dataclass
class PlanSearch:
    """One search.

    problem : the assignment problem; its noise limit is what the search varies.
    emit : plan -> loaded program.
    reference : the emitted FP32 program.
    budget, selection, verification, seed : what the plan is judged by.
    """

    problem: Problem
    qparams: Mapping[str, QParams]
    finish_plan: Callable[[PrecisionPlan], PrecisionPlan]
    emit: Callable[[PrecisionPlan], Executable]
    reference: Executable
    budget: AccuracyBudget
    selection: Samples
    verification: Samples
    seed: int
    progress: Listener
    rounds: int = 0
    notes: list[str] = field(default_factory=list)
    _tried: dict[tuple[object, ...], Candidate] = field(default_factory=dict)

    def run(self) -> tuple[Candidate, Measurement, bool]:
        """The fastest candidate that the verification samples confirm, its measurement, and whether it is inside the
        budget. Where nothing is, the one with the least drop."""
        self._selection_reference = run_samples(self.reference, self.selection, self.progress, "FP32 on selection")
        self._verification_reference = run_samples(
            self.reference, self.verification, self.progress, "FP32 on verification"
        )
        failed: list[tuple[Candidate, Measurement]] = []
        kept: tuple[Candidate, Measurement] | None = None
        found: Candidate | None = self._fastest()
        while found is not None and not any(found is seen for seen, _ in failed):
            judged = self.verify(found)
            if within(judged, self.budget):
                kept = found, judged
                found = self._faster(found, judged)
            elif kept is not None:
                break
            else:
                failed.append((found, judged))
                self._note_samples(judged)
                found = self._more_exact(found, judged)
        if kept is not None:
            return *kept, True
        return *min(failed, key=lambda pair: pair[1].drop), False

    def _more_exact(self, refused: Candidate, judged: Measurement) -> Candidate:
        """What to try after the verification samples refused a candidate."""
        hopeless = self.budget.confidence is not None and judged.floor > self.budget.max_drop
        if hopeless or self.rounds >= MAX_ROUNDS:
            return self._try(0.0)
        return self._try(refused.assignment.noise * self._correction(judged))

    def _faster(self, kept: Candidate, judged: Measurement) -> Candidate | None:
        """What to try after the verification samples left room: they are the larger part, and where the selection
        samples were too strict they say so. None where there is no room, or nothing faster."""
        room = min(self.budget.max_drop / max(self._judged(judged), 1e-12), _MOST_ROOM)
        noise = kept.assignment.noise
        fastest = next(iter(self._tried.values())).assignment.noise
        if self.rounds >= MAX_ROUNDS or room < _CLOSE or not 0 < noise < fastest:
            return None
        for step in (math.sqrt(room), room):
            candidate = self._try(min(noise * step, fastest))
            if candidate.assignment.cost_us < kept.assignment.cost_us:
                return candidate
        return None

    def verify(self, candidate: Candidate) -> Measurement:
        """The candidate on the verification samples."""
        outputs = run_samples(candidate.executable, self.verification, self.progress, f"verify round {self.rounds}")
        return self._measure(self._verification_reference, outputs, self.verification)

    def _fastest(self) -> Candidate:
        """The fastest candidate that the selection samples accept; the most exact one where they accept none."""
        candidate = self._try(math.inf)
        accepted: Candidate | None = None
        refused = math.inf
        while True:
            if candidate.selection.drop <= self.budget.max_drop:
                accepted = candidate
                if refused == math.inf:
                    return candidate
            else:
                refused = min(refused, candidate.assignment.noise)
            floor = accepted.assignment.noise if accepted else 0.0
            if self.rounds >= MAX_ROUNDS or (floor > 0 and refused / floor < _CLOSE):
                return accepted or self._try(0.0)
            if accepted is None and candidate.assignment.noise <= 0:
                return candidate
            step = math.sqrt(refused * floor) if floor > 0 else refused * self._correction(candidate.selection)
            following = self._try(step)
            if following is candidate or (accepted is not None and following is accepted):
                return accepted or self._try(0.0)
            candidate = following

    def _correction(self, measured: Measurement) -> float:
        """By what the noise must shrink for the drop to fit: drops grow about in proportion to the noise."""
        return float(np.clip(self.budget.max_drop / max(self._judged(measured), 1e-12), 0.05, 0.6))

    def _judged(self, measured: Measurement) -> float:
        """The figure that the budget bounds."""
        return measured.upper if self.budget.confidence is not None else measured.drop

    def _try(self, limit: float) -> Candidate:
        """Decide under a noise limit, emit, measure on the selection samples; a plan seen before is not run again.

        Where what is forced leaves nothing under the limit, it is the plan with the least noise so far."""
        fastest = next(iter(self._tried.values())).assignment.noise if self._tried else math.inf
        if limit < fastest * _LEAST:
            limit = 0.0
        try:
            assignment = solve(replace(self.problem, noise_limit=limit))
        except PlanError:
            if not self._tried:
                raise
            return min(self._tried.values(), key=lambda c: c.assignment.noise)
        plan = self.finish_plan(build_plan(assignment, self.qparams))
        if plan.key not in self._tried:
            self.rounds += 1
            executable = self.emit(plan)
            outputs = run_samples(executable, self.selection, self.progress, f"select round {self.rounds}")
            measured = self._measure(self._selection_reference, outputs, self.selection)
            self._tried[plan.key] = Candidate(assignment, plan, executable, measured)
        return self._tried[plan.key]

    def _measure(self, reference: Outputs, outputs: Outputs, samples: Samples) -> Measurement:
        return measure(
            self.budget.metric or "",
            reference,
            outputs,
            samples.labels,
            confidence=self.budget.confidence,
            relative=self.budget.relative,
            max_drop=self.budget.max_drop,
            seed=self.seed,
        )

    def _note_samples(self, judged: Measurement) -> None:
        if judged.samples_needed is not None:
            self.notes.append(
                f"a plan with a measured drop of {judged.drop:.5g} was given up because {judged.samples} verification "
                f"samples do not prove the budget with confidence {judged.confidence:g}; about "
                f"{judged.samples_needed} would"
            )


def run_samples(executable: Executable, samples: Samples, progress: Listener, phase: str) -> Outputs:
    """The program's outputs for every sample, in order."""
    outputs: Outputs = []
    for done, sample in enumerate(samples, 1):
        outputs.append(tuple(executable(sample.inputs)))
        if done % 64 == 0 or done == len(samples):
            progress(phase, done, len(samples))
    return outputs


def shares(plan: PrecisionPlan) -> dict[str, float]:
    """The share of the multiply-adds at each precision, by the precision's name."""
    total = sum(d.macs for d in plan.decisions)
    result: dict[str, float] = {}
    for decision in plan.decisions:
        if total:
            result[str(decision.precision)] = result.get(str(decision.precision), 0.0) + decision.macs / total
    return result


def weight_bytes(constants: Sequence[np.ndarray]) -> int:
    """Size of a program's packed constants."""
    return sum(c.nbytes for c in constants)
