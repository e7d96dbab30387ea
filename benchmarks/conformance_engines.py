"""One case through narrowcast or ONNX Runtime, and the verdict. This runs in worker processes."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

import numpy as np
import onnx
from onnx import numpy_helper

import narrowcast as nc
from narrowcast.compiler import compile

from .conformance_cases import Case

MEMORY_BYTES = 6 * 2**30
"""What one case may allocate."""

# Operators all of whose inputs say how large the result is.
_SIZES = ("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range")
_WIDENED = ("float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Verdict:
    """What became of a case: passed, constants (passed with operands bound as initializers), failed, unsupported,
    crash or hang; why; and the CPU time that it took, the linker's included."""

    status: str
    reason: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def passed(self) -> bool:
        return self.status in ("passed", "constants")


def serve(connection: Connection) -> None:
    """Answer (engine, case) with a verdict, until the connection ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    warnings.simplefilter("ignore")
    while True:
        try:
            engine, case = connection.recv()
        except EOFError:
            return
        start = sum(os.times()[:4])
        verdict = judge(ENGINES[engine], case)
        connection.send(replace(verdict, seconds=sum(os.times()[:4]) - start))


def judge(engine: Callable[[Case], Verdict], case: Case) -> Verdict:
    """The engine's verdict, where an exception is a failure."""
    try:
        with np.errstate(all="ignore"):
            return engine(case)
    except Exception as error:  # Whatever it raises is the result.
        return Verdict("failed", f"{type(error).__name__}: {_line(error)}")


def run_narrowcast(case: Case) -> Verdict:
    """Exact FP32, as the model is; where it is not supported so, with its operands as initializers."""
    reason = ""
    for names, verdict in _bindings(case):
        try:
            model, inputs = bind_constants(case, names)
            program = compile(model, num_threads=1, example_inputs=list(inputs))
            mismatch = compare(case, _as_list(program(*inputs)), exact_types=False)
            return Verdict("failed", mismatch) if mismatch else Verdict(verdict)
        except nc.UnsupportedOperatorError as error:
            reason = _line(error)
    return Verdict("unsupported", reason)


def _bindings(case: Case) -> Iterator[tuple[tuple[str, ...], str]]:
    """The inputs to bind as initializers, from none to all but the first, and what a pass then counts as."""
    yield (), "passed"
    names = _input_names(onnx.ModelProto.FromString(case.model))
    integers = tuple(n for n, v in zip(names[1:], case.inputs[1:], strict=False) if v.dtype.kind in "iub")
    if integers:
        yield integers, "constants"
    if names[1:] and names[1:] != integers:
        yield names[1:], "constants"
    if case.operator in _SIZES:
        yield names, "constants"


def _input_names(model: onnx.ModelProto) -> tuple[str, ...]:
    weights = {t.name for t in model.graph.initializer}
    return tuple(v.name for v in model.graph.input if v.name not in weights)


def bind_constants(case: Case, names: Sequence[str]) -> tuple[onnx.ModelProto, tuple[np.ndarray, ...]]:
    """The model with the inputs of ``names`` as initializers, and the arrays of those that are left."""
    model = onnx.ModelProto.FromString(case.model)
    given = dict(zip(_input_names(model), case.inputs, strict=True))
    kept = [v for v in model.graph.input if v.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(given[n], n) for n in names)
    return model, tuple(v for n, v in given.items() if n not in names)


def _as_list(outputs: object) -> list[np.ndarray]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [np.asarray(outputs)]


def run_onnxruntime(case: Case) -> Verdict:
    """ONNX Runtime on the CPU, as it comes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(case.model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Its exceptions have no common base; one that names no kernel is not supported.
        text = str(error)
        unsupported = "NOT_IMPLEMENTED" in text or "is not a registered" in text or "not supported" in text
        return Verdict("unsupported" if unsupported else "failed", _line(error))
    names = [v.name for v in session.get_inputs()]
    outputs = session.run(None, dict(zip(names, case.inputs, strict=True)))
    mismatch = compare(case, outputs, exact_types=True)
    return Verdict("failed", mismatch) if mismatch else Verdict("passed")


ENGINES: dict[str, Callable[[Case], Verdict]] = {"narrowcast": run_narrowcast, "onnxruntime": run_onnxruntime}


def compare(case: Case, outputs: Sequence[np.ndarray], *, exact_types: bool) -> str:
    """What is wrong with the outputs, by the rules of ONNX's own runner; empty where nothing is.

    Without ``exact_types`` a float32, which is what narrowcast computes in, may stand for another width of float: it is
    rounded to that.
    """
    if len(outputs) != len(case.outputs):
        return f"{len(outputs)} outputs instead of {len(case.outputs)}"
    for i, (found, expected) in enumerate(zip(outputs, case.outputs, strict=True)):
        if not exact_types and str(found.dtype) == "float32" and str(expected.dtype) in _WIDENED:
            found = found.astype(expected.dtype)
        if found.dtype != expected.dtype:
            return f"output {i} has elements of {found.dtype} instead of {expected.dtype}"
        if found.shape != expected.shape:
            return f"output {i} has the shape {list(found.shape)} instead of {list(expected.shape)}"
        difference = _difference(found, expected, case)
        if difference:
            return f"output {i} differs: {difference}"
    return ""


def _difference(found: np.ndarray, expected: np.ndarray, case: Case) -> str:
    if expected.dtype == object or expected.dtype.kind in "USbiu":
        wrong = found != expected
    else:
        a, b = found.astype(np.float64), expected.astype(np.float64)
        wrong = ~np.isclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True)
    if not np.any(wrong):
        return ""
    where = tuple(int(i[0]) for i in np.nonzero(wrong)) if np.ndim(wrong) else ()
    return f"{int(np.sum(wrong))} of {expected.size} elements, first {found[where]} instead of {expected[where]}"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] + ("…" if len(text) > 300 else "")


