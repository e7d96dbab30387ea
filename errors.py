"""The family of errors that narrowcast raises for its users.

Every error says what is wrong, where (the layer's own name in the user's model), what was found, what was
expected and what to do. Independent problems are collected and raised together (``CompileError.collect``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .precision import PrecisionPlan


# What was found or expected is cut to so many characters, a collection to so many problems.
_LONGEST, _MOST = 600, 50


def _shown(value: object, longest: int | None = None) -> str:
    """``value`` as text that a terminal only shows: control characters, which a model's names may have, are escaped."""
    text = str(value)
    text = text if longest is None or len(text) <= longest else text[:longest] + " …"
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


class CompileError(Exception):
    """Base of the family.

    Parameters
    ----------
    problem : what is wrong, one sentence.
    layer : the layer's name in the user's model, or None where no layer is concerned.
    found, expected : what was there and what would have been accepted.
    hint : what the user can do.
    """

    def __init__(
        self,
        problem: str,
        *,
        layer: str | None = None,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.layer = layer
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(self._text())

    def _text(self) -> str:
        parts = [_shown(f"{self.layer}: {self.problem}" if self.layer else self.problem)]
        if self.found is not None:
            parts.append(f"found: {_shown(self.found, _LONGEST)}")
        if self.expected is not None:
            parts.append(f"expected: {_shown(self.expected, _LONGEST)}")
        if self.hint is not None:
            parts.append(f"what to do: {self.hint}")
        return "\n  ".join(parts)

    @classmethod
    def collect(cls, problems: Sequence[CompileError]) -> CompileError:
        """One error that carries several independent ones; a single one is returned as it is."""
        if len(problems) == 1:
            return problems[0]
        lines = [f"- {p}" for p in problems[:_MOST]] + ["- …"] * (len(problems) > _MOST)
        error = cls(f"{len(problems)} problems:\n" + "\n".join(lines))
        error.problems = tuple(problems)
        return error

    problems: tuple[CompileError, ...] = ()


class ImportModelError(CompileError):
    """The model cannot be read: broken file, wrong type, inconsistent graph."""


class UnsupportedOperatorError(ImportModelError):
    """The model is sound, but has operators (or forms of them) that narrowcast has no translation for."""


class VerificationError(CompileError):
    """A pass was given, or produced, IR that breaks a stated requirement: a fault of narrowcast, not of the user."""


class DataError(CompileError):
    """Calibration or validation data, labels or a metric are unusable."""


class TargetError(CompileError):
    """The target is unknown, or lacks what was asked of it."""


class PlanError(CompileError):
    """A plan or a precision constraint does not fit the model or the target."""


class ProgramError(CompileError):
    """A program was called with unusable inputs, or its file is broken."""


class BudgetError(CompileError):
    """No program inside the accuracy budget was found.

    ``plan`` is the best plan found and ``measured_drop`` what it measured (in the metric's units, positive is
    worse) on the verification data.
    """

    def __init__(self, problem: str, *, plan: PrecisionPlan, measured_drop: float, **details: object) -> None:
        self.plan = plan
        self.measured_drop = measured_drop
        super().__init__(problem, **details)  # type: ignore[arg-type]
