"""What the error family says, and how problems are collected."""

from __future__ import annotations

import pytest

from narrowcast import errors
from narrowcast.errors import BudgetError, CompileError, DataError, ImportModelError, UnsupportedOperatorError
from narrowcast.precision import PrecisionPlan


def test_text_says_where_what_and_what_to_do() -> None:
    error = DataError("it is wrong", layer="features.0", found=3, expected="4 of them", hint="add one")
    assert str(error) == "features.0: it is wrong\n  found: 3\n  expected: 4 of them\n  what to do: add one"
    assert (error.problem, error.layer, error.found, error.expected, error.hint) == (
        "it is wrong", "features.0", 3, "4 of them", "add one")


def test_text_leaves_out_what_is_not_given() -> None:
    assert str(CompileError("it is wrong")) == "it is wrong"
    assert str(CompileError("it is wrong", found=0)) == "it is wrong\n  found: 0", "a found value may be false"


def test_collect_one() -> None:
    error = DataError("one")
    assert CompileError.collect([error]) is error and error.problems == ()


def test_collect_several() -> None:
    problems = [UnsupportedOperatorError("no FFT", layer="a"), UnsupportedOperatorError("no DFT", layer="b", found="x")]
    error = ImportModelError.collect(problems)
    assert type(error) is ImportModelError and error.problems == tuple(problems)
    assert str(error) == "2 problems:\n- a: no FFT\n- b: no DFT\n  found: x"


def test_the_family() -> None:
    family = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(family) == 9 and all(issubclass(e, CompileError) for e in family)
    assert issubclass(UnsupportedOperatorError, ImportModelError)


def test_budget_error_carries_plan_and_drop() -> None:
    plan = PrecisionPlan(())
    with pytest.raises(CompileError, match=r"(?s)not met.*what to do: relax it") as caught:
        raise BudgetError("not met", plan=plan, measured_drop=0.25, hint="relax it")
    assert isinstance(caught.value, BudgetError)
    assert caught.value.plan is plan and caught.value.measured_drop == 0.25


def test_text_shows_control_characters_and_no_more_than_can_be_read() -> None:
    error = ImportModelError("not\ttext", layer="\x1b[2J\u202e", found="n" * 10_000)
    text = str(error)
    assert "\x1b" not in text and r"\x1b[2J\u202e: not\ttext" in text
    assert len(text) < 1000 and text.endswith("n …")
    assert error.found == "n" * 10_000


def test_collect_many() -> None:
    text = str(ImportModelError.collect([ImportModelError("wrong", layer=str(i)) for i in range(10_000)]))
    assert text.startswith("10000 problems:\n- 0: wrong\n") and text.endswith("- 49: wrong\n- …")
