"""``compile``: the whole story on one page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
import tvm_ffi

from .assignment import solve
from .backends.costs import CostTable
from .backends.cpu.emit import emit
from .backends.cpu.kernel import ChainRequest, Kernel, KernelRequest
from .backends.effort import host_steps, peak_bytes, steps
from .backends.executable import Executable, build_library
from .backends.lower import Lowered, launches_for, lower
from .backends.target import Target
from .backends.tuning import Choice, Tuner
from .budget import AccuracyBudget, Measurement, measure
from .calibration import calibrators
from .calibration.bias_correction import estimate_corrections
from .calibration.calibrators import Calibrator
from .calibration.evaluator import Evaluator
from .calibration.sensitivity import Sensitivities, estimate_sensitivities, output_scales
from .calibration.statistics import Statistics
from .decisions import build_plan
from .errors import BudgetError, DataError, PlanError, ProgramError, TargetError
from .frontends import ImportedModel, import_model
from .given import GIVEN_REASON, Given
from .ir import TensorSpec, groups_of, outputs_of
from .passes import run_pipeline
from .planning import Network, build_problem, measure_costs, nominal_costs, precisions_of
from .precision import Decision, Precision, PrecisionPlan, QParams
from .program import Program, random_inputs
from .progress import Listener, silent
from .report import Report
from .samples import Samples, Split, example_of, reusable, split
from .search import Candidate, PlanSearch, run_samples, shares, weight_bytes
from .stages import Stage, stage_of
from .timing import interleave

# Time that a compilation spends on measuring latency, about; programs that take more than this are not run for it:
# bytes of tensors, and steps (of about a nanosecond) of a call.
LATENCY_SECONDS = 1.0
MEASURED_BYTES, MEASURED_STEPS = 2**30, 2 * 10**9
# Samples of the calibration part that gradients are taken of.
SENSITIVITY_SAMPLES = 64
# Samples that the bias correction is measured on.
CORRECTION_SAMPLES = 16
# Of these for a forced precision, where gradients only choose storages.
FORCED_SAMPLES = 8
# Multiply-adds of a call below which the reference evaluator runs on one thread.
SMALL_MACS = 200_000_000


def compile(
    model: Any,
    target: str = "cpu",
    accuracy_budget: AccuracyBudget | float | None = None,
    *,
    data: Any = None,
    metric: Any = None,
    precision: str | Precision | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, int] | None = None,
    per_channel: bool = True,
    calibrator: Calibrator = calibrators.DEFAULT,
    num_threads: int | None = None,
    seed: int = 0,
    progress: Listener = silent,
    cost_cache: str | Path | None = None,
    tune: bool = False,
) -> Program:
    """Compile a trained network to a program for ``target`` that is verified to keep ``accuracy_budget``.

    Parameters
    ----------
    model : ``nn.Module``, ``torch.export.ExportedProgram``, ``onnx.ModelProto`` or the path of an .onnx file.
    target : ``"cpu"`` (this machine) or ``"cpu:<LLVM CPU name>"``.
    accuracy_budget : how much may be lost on which data; a plain number is a ``max_drop`` on ``data`` by ``metric``.
        None: exact FP32, or with ``precision`` that precision wherever the target has it, the drop reported and not
        judged.
    data : samples, where no ``AccuracyBudget`` brings them; calibration for a forced precision.
    metric : for a plain number, or to report the drop of a forced precision.
    precision : force one precision wherever target and operator have it; where they lack INT8, BF16 takes its place,
        then FP32.
    example_inputs : inputs as a call has them; by default the first sample of the data, batch 1. A module is exported
        with them; where dims are symbolic they say which extents the program should be fastest at.
    dynamic_shapes : for a module, which dims stay symbolic, as ``torch.export.export`` takes it. Exported programs and
        ONNX models bring their symbolic dims.
    dims : fixes symbolic dims by name: ``{"batch": 1}``; of an ONNX model also the value of an input that is one
        integer, which is no input then: ``{"sr": 16000}``.
    per_channel : whether INT8 weights have a scale per output channel.
    calibrator : how ranges become quantization parameters.
    num_threads : threads of the program; by default every CPU the process may use.
    seed : of every random choice; the same inputs and seed give the same plan while the costs are the measured ones of
        the cache.
    progress : called with (phase, done, total).
    cost_cache : the file that measured costs are kept in; by default in the user's cache folder.
    tune : measure the few best schedules of every kernel that multiplies and adds, and take the fastest, where
        otherwise a model of the CPU chooses. Takes about a second a kernel, once: comparisons are kept with the costs.

    Raises
    ------
    BudgetError : no program inside the budget was found; it carries the best plan and its measured drop.
    ImportModelError, UnsupportedOperatorError, DataError, TargetError, PlanError : what was passed is unusable.
    """
    forced = _precision(precision)
    if not isinstance(seed, int) or seed < 0:
        raise PlanError("unusable seed", found=repr(seed), expected="an integer of at least 0")
    job = _Job(Target.parse(target, num_threads), forced, per_channel, calibrator, seed, progress, cost_cache, tune)
    budget = _budget(accuracy_budget, data, metric)
    if (budget is not None or metric is not None) and not job.target.runs_here():
        raise TargetError(
            "accuracy is measured by running the program, and this machine's CPU cannot run the target's code",
            found=str(Target.parse("cpu")),
            expected=target,
            hint="compile on such a machine, or without a budget and a metric",
        )
    if tune and not job.target.runs_here():
        raise TargetError(
            "schedules are compared by running them, and this machine's CPU cannot run the target's code",
            found=str(Target.parse("cpu")),
            expected=target,
            hint="compile on such a machine, or without tune",
        )
    if forced is not None and forced not in job.target.precisions():
        raise TargetError(
            f"the target has no {forced}", found=target, expected=", ".join(map(str, job.target.precisions()))
        )
    if budget is not None:
        budget = replace(budget, data=reusable(budget.data), calibration=reusable(budget.calibration))
    else:
        data = reusable(data)
    with job.phase("import"):
        if example_inputs is None:
            example_inputs = example_of(budget.data if budget else data)
        job.imported = import_model(model, example_inputs, dynamic_shapes, dims)
    with job.phase("passes"):
        job.normalize()
    if budget is not None:
        return job.under_budget(budget)
    if forced is None and metric is None and job.network.given.qparams:
        return job.program(job.given_plan(), job.report())
    if forced is None or (forced is Precision.FP32 and metric is None):
        return job.program(job.exact_plan(), job.report())
    return job.forced_to(data, metric)


@dataclass
class _Built:
    """A plan's program, loaded."""

    plan: PrecisionPlan
    lowered: Lowered
    library: bytes
    executable: Executable


@dataclass
class _Job:
    """One call of ``compile``: what its steps share."""

    target: Target
    forced: Precision | None
    per_channel: bool
    calibrator: Calibrator
    seed: int
    progress: Listener
    cost_cache: str | Path | None
    tune: bool
    seconds: dict[str, float] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    built: dict[tuple[object, ...], _Built] = field(default_factory=dict)
    kernels: dict[tuple[Any, ...], Kernel] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of a step under ``name``; the time of steps inside it counts for them alone."""
        start, before = time.perf_counter(), sum(self.seconds.values())
        self.progress(name, 0, 1)
        yield
        self.progress(name, 1, 1)
        inside = sum(self.seconds.values()) - before
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start - inside

    imported: ImportedModel = field(init=False)
    network: Network = field(init=False)
    choices: dict[tuple[object, ...], list[Choice]] = field(default_factory=dict)
    measured_costs: bool = False
    corrections: dict[str, tuple[float, ...]] = field(default_factory=dict)
    evaluator: Evaluator = field(init=False)
    statistics: Statistics = field(init=False)

    def normalize(self) -> None:
        """Imported module -> grouped form, every stage kept."""
        shown = self.imported.mod
        self.stages.append(stage_of("import", shown))

        def observe(name: str, mod: tvm.IRModule) -> None:
            nonlocal shown
            self.stages.append(replace(self.stages[-1], name=name) if mod.same_as(shown) else stage_of(name, mod))
            shown = mod

        mod = run_pipeline(shown, observe=observe)
        network = Network.of(mod, groups_of(mod), self.imported.hints)
        self.network = replace(network, given=Given()) if self.forced is Precision.FP32 else network
        self.module_hash = f"{tvm_ffi.structural_hash(mod, map_free_vars=True) & (2**64 - 1):016x}"

    # The three ways ------------------------------------------------------------------------------------------------

    def exact_plan(self) -> PrecisionPlan:
        """FP32 everywhere."""
        problem = build_problem(
            self.network,
            nominal_costs(self.network, self.target, {}),
            {},
            {},
            None,
            {g.name: Precision.FP32 for g in self.network.groups},
        )
        storages = dict.fromkeys(self.network.shapes, ("float32",))
        plan = build_plan(solve(replace(problem, storages=storages)), {})
        reason = "exact FP32: no budget was given" if self.forced is None else "FP32 was asked for"
        return self.finish_plan(replace(plan, decisions=tuple(replace(d, reason=reason) for d in plan.decisions)))

    def given_plan(self) -> PrecisionPlan:
        """What a quantized model gives, in INT8; everything else in FP32."""
        qparams = self.network.given.qparams
        costs = nominal_costs(self.network, self.target, qparams)
        open_ = {g.name: precisions_of(self.network, g, self.target, qparams) for g in self.network.groups}
        forced = {name: Precision.FP32 if Precision.FP32 in found else found[0] for name, found in open_.items()}
        problem = build_problem(self.network, costs, qparams, {}, None, forced)
        storages = {t: ("float32", "uint8") if t in qparams else ("float32",) for t in self.network.shapes}
        reasons = {name: f"FP32: {reason}" for name, reason in self.network.given.reasons.items()}
        return self.finish_plan(build_plan(solve(replace(problem, storages=storages)), qparams, reasons))

    def forced_to(self, data: Any, metric: Any) -> Program:
        """One precision wherever it exists; the drop is reported where there is a metric."""
        with self.phase("calibrate"), self.torch_threads():
            samples = Samples.of(data, self.imported.inputs)
            parts = split(samples, self.seed) if metric is not None else Split(samples, samples, samples)
            qparams = self.calibrate(parts.calibration)
        plan = self.forced_plan(qparams, parts.calibration)
        built = self.emit(plan)
        measured = None
        if metric is not None:
            with self.phase("verify"):
                exact = self.emit(self.exact_plan()).executable
                baseline = run_samples(exact, parts.verification, self.progress, "FP32")
                outputs = run_samples(built.executable, parts.verification, self.progress, "verify")
                measured = measure(metric, baseline, outputs, parts.verification.labels, seed=self.seed)
        return self.program(plan, self.report(measured, rounds=1))

    def under_budget(self, budget: AccuracyBudget) -> Program:
        """The fastest program inside the budget."""
        with self.phase("calibrate"), self.torch_threads():
            samples = Samples.of(budget.data, self.imported.inputs)
            extra = None if budget.calibration is None else Samples.of(budget.calibration, self.imported.inputs)
            parts = split(samples, self.seed, extra)
            qparams = self.calibrate(parts.calibration)
        reference = self.emit(self.exact_plan())
        search = self.search(budget, parts, qparams, reference)
        with self.phase("search and verify"):
            found, measured, kept = search.run()
        plan = found.plan
        if not kept:
            raise BudgetError(
                "no program inside the budget was found",
                plan=plan,
                measured_drop=measured.drop,
                found=f"a drop of {measured.drop:.5g}, at most {measured.upper:.5g} ({measured.confidence})",
                expected=f"at most {budget.max_drop:g} in {measured.metric}",
                hint="raise max_drop, pass more data, or leave more precisions open; the error carries the plan",
            )
        report = self.report(
            measured,
            budget=budget,
            rounds=search.rounds,
            candidate=found,
            notes=(*samples.notes, *search.notes),
        )
        return self.program(plan, report)

    @contextmanager
    def torch_threads(self) -> Iterator[None]:
        """Let PyTorch use the program's threads; one where calls are so small that handing over work costs more."""
        previous = torch.get_num_threads()
        torch.set_num_threads(self.target.threads if self.network.products() > SMALL_MACS else 1)
        try:
            yield
        finally:
            torch.set_num_threads(previous)

    # Their steps ---------------------------------------------------------------------------------------------------

    def calibrate(self, samples: Samples) -> dict[str, QParams]:
        """Quantization parameters of every float tensor, from the calibration samples."""
        self.evaluator, self.statistics = Evaluator(self.network.mod), Statistics()
        for done, sample in enumerate(samples, 1):
            self.evaluator.visit(sample.inputs, self.statistics.observe)
            self.progress("calibrate values", done, len(samples))
        qparams = calibrators.calibrate(
            self.network.groups, self.statistics, self.calibrator, self.network.given.qparams
        )
        self.corrections = estimate_corrections(
            self.evaluator,
            [s.inputs for s in samples[:CORRECTION_SAMPLES]],
            qparams,
            per_channel=self.per_channel,
            progress=lambda done, total: self.progress("correct biases", done, total),
        )
        return qparams

    def search(
        self, budget: AccuracyBudget, parts: Split, qparams: dict[str, QParams], reference: _Built
    ) -> PlanSearch:
        """Everything that the search needs: noise, costs, the problem."""
        noise = self.sensitivities(parts.calibration[:SENSITIVITY_SAMPLES], qparams)
        if self.forced is None:
            with self.phase("costs"):
                costs = measure_costs(
                    self.network,
                    self.target,
                    qparams,
                    self.kernel,
                    lambda kernels: self.table.measure(
                        kernels,
                        self.target,
                        lambda d, t: self.progress("measure kernels", d, t),
                        self.network.typical,
                    ),
                    per_channel=self.per_channel,
                )
                self.measured_costs = True
        else:
            costs = nominal_costs(self.network, self.target, qparams)
        forced = {} if self.forced is None else self.forced_precisions(qparams)
        problem = build_problem(self.network, costs, qparams, self.macs(reference), noise, forced)
        return PlanSearch(
            problem,
            qparams,
            self.finish_plan,
            lambda plan: self.emit(plan).executable,
            reference.executable,
            budget,
            parts.selection,
            parts.verification,
            self.seed,
            self.progress,
        )

    def sensitivities(self, samples: Samples, qparams: Mapping[str, QParams]) -> Sensitivities:
        """What every precision and storage does to the output, by gradients over ``samples``."""
        with self.phase("sensitivity"), self.torch_threads():
            return estimate_sensitivities(
                self.evaluator,
                [s.inputs for s in samples],
                qparams,
                output_scales(self.evaluator, self.statistics),
                per_channel=self.per_channel,
                precisions=self.target.precisions(),
                seed=self.seed,
                progress=lambda done, total: self.progress("sensitivity of layers", done, total),
            )

    def forced_precisions(self, qparams: Mapping[str, QParams]) -> dict[str, Precision]:
        """The precision of every group when one is forced: it, or the widest narrow one that the group has."""
        result = {}
        for group in self.network.groups:
            open_ = precisions_of(self.network, group, self.target, qparams)
            order = (self.forced, Precision.BF16, Precision.FP32)
            result[group.name] = next((p for p in order if p in open_), open_[0])
        return result

    def forced_plan(self, qparams: Mapping[str, QParams], samples: Samples) -> PrecisionPlan:
        """The plan of a forced precision. Storages are chosen by bytes, as long as those that nothing forces to be
        narrow add no more noise than what is forced does anyway."""
        forced = self.forced_precisions(qparams)
        noise = self.sensitivities(samples[:FORCED_SAMPLES], qparams) if self.forced is Precision.INT8 else None
        costs = nominal_costs(self.network, self.target, qparams)
        problem = build_problem(self.network, costs, qparams, {}, noise, forced)
        if noise is not None:
            unavoidable = sum(noise.compute.get((name, precision), 0.0) for name, precision in forced.items())
            problem = replace(problem, noise_limit=2 * unavoidable)
        return self.finish_plan(build_plan(solve(problem), qparams))

    def finish_plan(self, plan: PrecisionPlan) -> PrecisionPlan:
        """What the assignment does not know: the module, the seed, how weights are scaled, measured schedules."""
        decisions = tuple(self._finish(d) for d in plan.decisions)
        plan = replace(plan, decisions=decisions, module_hash=self.module_hash, seed=self.seed)
        return self.tuned(plan) if self.tune else plan

    @cached_property
    def table(self) -> CostTable:
        """The measured costs of this and of earlier compilations."""
        return CostTable(self.cost_cache)

    def tuned(self, plan: PrecisionPlan) -> PrecisionPlan:
        """The plan with the fastest schedule of every kernel."""
        with self.phase("tune"):
            tuner = Tuner(
                self.table,
                self.target,
                self.kernel,
                lambda done, total: self.progress("compare schedules", done, total),
                self.network.typical,
            )
            launches = launches_for(self.network.mod, plan, self.target.capabilities, self.target.threads,
                                    self.network.typical)
            requests = [launch for launch in launches if isinstance(launch, KernelRequest)]
            choices = {r.group.name: c for r, c in zip(requests, tuner.choose(requests), strict=True) if c is not None}
        schedules = {name: choice.schedule for name, choice in choices.items()}
        plan = replace(plan, decisions=tuple(replace(d, schedule=schedules.get(d.op, 0)) for d in plan.decisions))
        self.choices[plan.key] = list(choices.values())
        return plan

    def _finish(self, decision: Decision) -> Decision:
        """Nominal costs, which are those of forced plans, are no measurements. What the model gives in INT8 has its
        weights' own scales, and nothing to correct."""
        cost = decision.cost_us if self.forced is None and self.measured_costs else None
        if decision.precision is Precision.INT8 and decision.op in self.network.given.groups:
            return replace(decision, per_channel=True, cost_us=cost, reason=GIVEN_REASON)
        correction = self.corrections.get(decision.op, ()) if decision.precision is Precision.INT8 else ()
        return replace(decision, per_channel=self.per_channel, cost_us=cost, correction=correction)

    def kernel(self, request: KernelRequest | ChainRequest) -> Kernel:
        """The kernel of a request; kept, so that plans that agree on a group share it."""
        if request.key not in self.kernels:
            self.kernels[request.key] = emit(request, self.target.capabilities, self.target.threads)
        return self.kernels[request.key]

    def emit(self, plan: PrecisionPlan) -> _Built:
        """The plan's program, compiled and loaded; a plan seen before is not compiled again."""
        if plan.key not in self.built:
            with self.phase("emit"):
                lowered = lower(
                    self.network.mod,
                    plan,
                    self.target.capabilities,
                    self.target.threads,
                    typical=self.network.typical,
                    emit_launch=self.kernel,
                )
                library = build_library(lowered.mod, self.target.tvm_target())
                self.built[plan.key] = _Built(
                    plan, lowered, library, Executable(library, lowered.constants, self.target)
                )
        return self.built[plan.key]

    @staticmethod
    def macs(built: _Built) -> dict[str, int]:
        """Multiply-adds of every group."""
        return built.lowered.macs

    # What comes out ------------------------------------------------------------------------------------------------

    def report(
        self,
        measured: Measurement | None = None,
        *,
        budget: AccuracyBudget | None = None,
        rounds: int = 0,
        candidate: Candidate | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        """The report; ``program`` adds what the finished program tells."""
        report = Report(
            target=str(self.target),
            threads=self.target.threads,
            rounds=rounds,
            notes=notes,
            predicted_us=candidate.assignment.cost_us if candidate and self.forced is None else None,
        )
        if measured is not None:
            report = replace(
                report,
                metric=measured.metric,
                baseline=measured.baseline,
                compiled=measured.compiled,
                drop=measured.drop,
                lower=measured.interval[0],
                upper=measured.interval[1],
                bound=measured.upper,
                identical=measured.identical,
                confidence=measured.confidence,
                relative=measured.relative,
                samples=measured.samples,
                max_drop=budget.max_drop if budget else None,
            )
        return report

    def program(self, plan: PrecisionPlan, report: Report) -> Program:
        """The program of a plan, with its report completed."""
        built = self.emit(plan)
        macs = self.macs(built)
        plan = replace(plan, decisions=tuple(replace(d, macs=macs.get(d.op, 0)) for d in plan.decisions))
        share, choices = shares(plan), self.choices.get(plan.key, [])
        main = self.network.mod["main"]
        inputs = self.imported.inputs
        outputs = [TensorSpec.of(v, n) for n, v in zip(self.imported.outputs, outputs_of(main), strict=True)]
        try:
            latency = self.latencies(built) if self.is_measured(built) else {}
        except ProgramError:  # Nothing can be found in random inputs.
            latency = {}
        report = replace(
            report,
            weight_bytes=weight_bytes(built.lowered.constants),
            casts=built.lowered.casts,
            int8_share=share.get("int8", 0.0),
            bf16_share=share.get("bf16", 0.0),
            fp16_share=share.get("fp16", 0.0),
            latency_ms=latency.get("compiled"),
            fp32_latency_ms=latency.get("FP32"),
            tuned=len({c.key for c in choices}),
            model_us=sum(c.model_us for c in choices) if choices else None,
            tuned_us=sum(c.fastest_us for c in choices) if choices else None,
            seconds=dict(self.seconds),
        )
        return Program(
            library=built.library,
            lowered=built.lowered.mod,
            functions=built.lowered.functions,
            constants=built.lowered.constants,
            inputs=inputs,
            outputs=outputs,
            typical=self.imported.hints,
            ranges=self.imported.ranges,
            requirements=self.imported.requirements,
            plan=plan,
            report=report,
            stages=[*self.stages, stage_of("lower", built.lowered.mod)],
            target=self.target,
        )

    def is_measured(self, built: _Built) -> bool:
        """Whether the program is run to be timed: this machine can, and it takes neither long nor much memory."""
        extents = self.network.typical
        return (
            self.target.runs_here()
            and all(r.is_met(self.imported.hints) for r in self.imported.requirements)
            and peak_bytes(self.network.mod["main"], extents) <= MEASURED_BYTES
            and steps(built.lowered.kernels.values(), extents) + host_steps(self.network.groups, extents)
            <= MEASURED_STEPS
        )

    def latencies(self, built: _Built) -> dict[str, float]:
        """Median milliseconds of the program, and of the FP32 program where that was built, timed in turn."""
        with self.phase("measure latency"):
            executables = {"compiled": built.executable}
            exact = next((b for b in self.built.values() if b.plan.is_exact), None)
            if exact is not None:
                executables["FP32"] = exact.executable
            tensors = [tvm.runtime.tensor(x) for x in random_inputs(self.imported.inputs, self.imported.hints)]
            calls = {name: partial(executable.run, tensors) for name, executable in executables.items()}
            start = time.perf_counter()
            for call in calls.values():
                call()
            fitting = LATENCY_SECONDS / 2 / (time.perf_counter() - start)
            rounds, warmup = (int(np.clip(fitting, 5, 100)), 2) if fitting >= 1 else (1, 0)
            timed = interleave(calls, rounds, warmup=warmup, pause=0.0)
            return {name: spread.median * 1e3 for name, spread in timed.items()}


def _precision(precision: str | Precision | None) -> Precision | None:
    if precision is None:
        return None
    try:
        return Precision(precision)
    except ValueError:
        raise PlanError("unknown precision", found=repr(precision), expected=", ".join(map(str, Precision))) from None


def _budget(budget: AccuracyBudget | float | None, data: Any, metric: Any) -> AccuracyBudget | None:
    if budget is None:
        return None
    if isinstance(budget, AccuracyBudget):
        if data is not None or metric is not None:
            raise DataError(
                "data and metric are given twice",
                found="an AccuracyBudget and data= or metric=",
                hint="put them into the AccuracyBudget",
            )
        return budget
    return AccuracyBudget(max_drop=budget, data=data, metric=metric)
