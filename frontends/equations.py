"""Einstein summation: whether an equation fits its operands.

Relax takes the equation's word for it and reads outside of its tables where it is wrong, so both frontends ask first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


def is_sound(equation: str, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the terms of ``equation`` (without spaces) fit the operands' shapes and name all that the result names.

    A letter's extents agree, or are 1 in some operands; so do those that an ellipsis stands for.
    """
    left, _, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes) or not all(_TERM.fullmatch(term) for term in (*terms, result)):
        return False
    extents: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        named = _extents(term, shape)
        if named is None or not all(_agree(extents.get(letter, 1), extent) for letter, extent in named.items()):
            return False
        extents |= {letter: extent for letter, extent in named.items() if extent != 1 or letter not in extents}
    letters = result.replace("...", "")
    known = len(set(letters)) == len(letters) and set(letters) <= set(extents)
    return known and ("..." in left or "..." not in result) and _ellipses_agree(terms, shapes)


def sums_over_ellipsis(equation: str) -> bool:
    """Whether the result drops the axes of an ellipsis, which has no translation."""
    left, arrow, result = equation.partition("->")
    return bool(arrow) and "..." in left and "..." not in result


def _extents(term: str, shape: tuple[int, ...]) -> dict[str, int] | None:
    """The extents of a term's letters; None where it does not fit."""
    before, ellipsis, after = term.partition("...")
    spare = len(shape) - len(before) - len(after)
    if spare < 0 or (spare and not ellipsis):
        return None
    named: dict[str, int] = {}
    pairs = [*zip(before, shape, strict=False), *zip(after, shape[len(shape) - len(after):], strict=True)]
    return named if all(named.setdefault(letter, extent) == extent for letter, extent in pairs) else None


def _agree(one: int, other: int) -> bool:
    return one == other or 1 in (one, other)


def _ellipses_agree(terms: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> bool:
    parts = [term.partition("...") for term in terms]
    hidden = [shape[len(before):len(shape) - len(after)] for (before, dots, after), shape
              in zip(parts, shapes, strict=True) if dots]
    try:
        np.broadcast_shapes(*hidden)
    except ValueError:
        return False
    return True
