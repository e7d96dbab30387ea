"""What a pass is, and how a list of passes runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import tvm
from tvm import relax

from ..errors import VerificationError

Refusal = tuple[str, str]
"""The name of a binding that a pass left alone, and the reason, one short sentence."""


class Pass(Protocol):
    """A frozen dataclass whose fields are its options; calling it returns a new module, its argument stays. Where it
    changes nothing it may return its argument."""

    @property
    def name(self) -> str: ...

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule: ...


def run_passes(
    mod: tvm.IRModule, passes: Sequence[Pass], observe: Callable[[str, tvm.IRModule], None] | None = None,
) -> tvm.IRModule:
    """Apply ``passes`` in order; the module is checked for well-formedness before the first and after each change.

    ``observe(name, module)`` sees every pass's result. Raises VerificationError, naming the pass, for a module that
    is not well formed.
    """
    require_well_formed(mod, "the import")
    for step in passes:
        before, mod = mod, step(mod)
        if not mod.same_as(before):
            require_well_formed(mod, step.name)
        if observe is not None:
            observe(step.name, mod)
    return mod


def require_well_formed(mod: tvm.IRModule, after: str) -> None:
    """Raise VerificationError where Relax finds ``mod`` ill formed; ``after`` is what made it."""
    try:
        relax.analysis.well_formed(mod)
    except Exception as error:
        raise VerificationError(f"the module is not well formed after {after}", found=str(error)) from error
