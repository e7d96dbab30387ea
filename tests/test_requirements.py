"""Relations between extents: when they hold, and how they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from narrowcast.dims import Dim
from narrowcast.requirements import Requirement, distinct, likely

S, T = (tirx.Var(name, "int64") for name in "st")


def at_least(left: Dim, right: Dim, layer: str = "layer") -> Requirement:
    return Requirement(">=", left, right, layer)


def test_what_holds_for_all_extents_is_known() -> None:
    assert at_least(S, 1).holds() is True and at_least(S * 2, S).holds() is True
    assert at_least(0, S).holds() is False and at_least(3, 4).holds() is False
    assert at_least(S, 2).holds() is None and Requirement("==", S, T, "layer").holds() is None
    assert Requirement("==", S + S, S * 2, "layer").holds() is True


@pytest.mark.parametrize(("requirement", "text"), [
    (at_least((S - 1) // 2 + 1, 2), "s >= 3"), (at_least(S * 3 - 1, 4), "s >= 2"), (at_least(40, S), "40 >= s"),
    (at_least(100, S + 1), "99 >= s"), (at_least((S - 5) // 8 + 1 + 6, 7), "s >= 5"), (at_least(S, T), "s >= t"),
])
def test_bounds_of_one_symbol_are_solved(requirement: Requirement, text: str) -> None:
    assert [str(r) for r in distinct([requirement])] == [text]


@given(st.integers(1, 5), st.integers(-9, 9), st.integers(1, 4), st.integers(-3, 9), st.integers(1, 60))
def test_solving_keeps_the_meaning(factor: int, offset: int, divisor: int, least: int, extent: int) -> None:
    requirement = at_least((S * factor + offset) // divisor, least)
    assert all(r.is_met({"s": extent}) for r in distinct([requirement])) == requirement.is_met({"s": extent})


def test_the_tightest_bounds_are_kept_with_their_layers() -> None:
    found = distinct([at_least(S, 2, "a"), at_least(S - 1, 4, "b"), at_least(40, S, "c"), at_least(30, S, "d"),
                      Requirement("==", S, T, "e"), Requirement("==", S, T, "f")])
    assert [(str(r), r.layer) for r in found] == [("s >= 5", "b"), ("30 >= s", "d"), ("s == t", "f")]


def test_likely_extents_meet_the_requirements() -> None:
    assert likely({"s": 1, "t": 8}, [at_least(S, 100)]) == {"s": 128, "t": 8}
    assert likely({"s": 128}, [at_least(S, 1791)]) == {"s": 2048}
    assert likely({"s": 1}, [at_least(0, S)]) == {"s": 1}


@pytest.mark.parametrize(("left", "right", "found"), [
    (S, 4, ("s", 4)), (4, S, ("s", 4)), (S, T, ("s", "t")), (S * 6, 8256, ("s", 1376)), (60, S * 3, ("s", 20)),
    (S * 6, 7, None), (S + 1, 4, None), (S * T, 4, None),
])
def test_what_an_equality_says_a_symbol_is(left: Dim, right: Dim, found: tuple[str, str | int] | None) -> None:
    assert Requirement("==", left, right, "layer").as_equality() == found
    assert at_least(left, right).as_equality() is None
