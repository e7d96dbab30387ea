"""ONNX's own tests: verdicts, crashes and hangs are told apart."""

from __future__ import annotations

import io
import os
import time
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from narrowcast.benchmarks import conformance
from narrowcast.benchmarks.conformance_cases import Case, collect
from narrowcast.benchmarks.conformance_engines import ENGINES, Verdict, bind_constants, compare, judge
from narrowcast.benchmarks.conformance_workers import Pool


def case(name: str = "test_add", expected: np.ndarray | None = None) -> Case:
    """``a + b``, where 1 + 2 = 3 is expected."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("a", "b", "c")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "sum", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    one = np.ones(2, np.float32)
    return Case(name, "node", "Add", model.SerializeToString(), (one, 2 * one),
                (3 * one if expected is None else expected,), 1e-3, 1e-7)


def abort_on_first(connection: Connection) -> None:
    """A worker that ends where a case is called ``crash``, and never answers one called ``hang``."""
    while True:
        _, given = connection.recv()
        if given.name == "crash":
            os.abort()
        if given.name == "hang":
            time.sleep(60)
        connection.send(Verdict("passed"))


def test_a_crash_and_a_hang_cost_one_case_each() -> None:
    cases = [case(n) for n in ("first", "crash", "second", "hang", "third")]
    verdicts = Pool(2, 2.0, abort_on_first).run([("narrowcast", c) for c in cases], lambda done: None)
    assert {key: v.status for (_, key), v in verdicts.items()} == {
        "node/first": "passed", "node/crash": "crash", "node/second": "passed", "node/hang": "hang",
        "node/third": "passed"}
    assert "SIGABRT" in verdicts["narrowcast", "node/crash"].reason


@pytest.mark.parametrize("engine", ENGINES)
def test_verdicts(engine: str) -> None:
    assert judge(ENGINES[engine], case()) == Verdict("passed")
    wrong = judge(ENGINES[engine], case(expected=np.array([3, 4], np.float32)))
    assert wrong.status == "failed" and "1 of 2 elements, first 3.0 instead of 4.0" in wrong.reason
    broken = judge(ENGINES[engine], replace(case(), model=b"no model"))
    assert broken.status == "failed" and broken.reason


@pytest.mark.parametrize(("found", "wrong"), [
    (np.array([3, 3.002], np.float32), ""), (np.array([3, 3.004], np.float32), "1 of 2 elements"),
    (np.array([3, 3], np.float64), "elements of float64"), (np.full((2, 1), 3, np.float32), "shape [2, 1]"),
    (np.array([3, np.nan], np.float32), "1 of 2 elements"),
])
def test_comparison(found: np.ndarray, wrong: str) -> None:
    result = compare(case(), [found], exact_types=True)
    assert (wrong in result) if wrong else result == ""


def test_integers_are_compared_exactly() -> None:
    thousands = case(expected=np.array([10_000, 20_000]))
    assert "1 of 2" in compare(thousands, [np.array([10_000, 20_001])], exact_types=True)


def test_operands_become_initializers() -> None:
    model, inputs = bind_constants(case(), ("b",))
    assert [v.name for v in model.graph.input] == ["a"] and len(inputs) == 1
    onnx.checker.check_model(model)
    assert judge(ENGINES["narrowcast"], replace(case(), model=model.SerializeToString(), inputs=inputs)).passed


def test_cases_are_chosen_by_operator_or_name() -> None:
    chosen = collect(["trilu", "test_relu"])
    assert {c.operator for c in chosen} == {"Trilu", "Relu"}


def test_table_counts_by_operator() -> None:
    cases = [case("a"), case("b"), case("c")]
    statuses = ("passed", "constants", "hang")
    verdicts = {("narrowcast", c.key): Verdict(s) for c, s in zip(cases, statuses, strict=True)}
    verdicts |= {("onnxruntime", c.key): Verdict("passed") for c in cases}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(conformance.table(cases, verdicts, ["narrowcast", "onnxruntime"]))
    row = next(line for line in console.export_text().splitlines() if "Add" in line)
    assert "2 (1)" in row and "1 hang" in row
    assert [key for key, _ in conformance.behind(cases, verdicts)] == ["node/c"]
