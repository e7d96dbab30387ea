"""narrowcast: precision scheduling for trained networks.

``compile`` takes a trained network, a target and an accuracy budget and returns a verified mixed-precision program;
``load`` reads one that was saved, without importing PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _environment  # noqa: F401  (first: it decides how TVM is imported)
from .budget import AccuracyBudget
from .errors import (
    BudgetError,
    CompileError,
    DataError,
    ImportModelError,
    PlanError,
    ProgramError,
    TargetError,
    UnsupportedOperatorError,
    VerificationError,
)
from .precision import Decision, Precision, PrecisionPlan, QParams, Storage
from .program import Program

if TYPE_CHECKING:
    from .compiler import compile

load = Program.load

__all__ = [
    "AccuracyBudget",
    "BudgetError",
    "CompileError",
    "DataError",
    "Decision",
    "ImportModelError",
    "PlanError",
    "Precision",
    "PrecisionPlan",
    "Program",
    "ProgramError",
    "QParams",
    "Storage",
    "TargetError",
    "UnsupportedOperatorError",
    "VerificationError",
    "compile",
    "load",
]


def __getattr__(name: str) -> Any:
    """``compile`` is imported when it is first used: it needs PyTorch, running a program does not."""
    if name == "compile":
        from .compiler import compile

        return compile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
