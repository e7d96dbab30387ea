"""Graph passes: from a frontend's module in normal form to fusion groups. One table, ``PIPELINE``, says which and in
what order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm

from .base import Pass, Refusal, run_passes
from .fuse import FuseGroups
from .verify_grouped import VerifyGroupedForm

PIPELINE: tuple[Pass, ...] = (
    FuseGroups(),
    VerifyGroupedForm(),
)


def run_pipeline(
    mod: tvm.IRModule, passes: Sequence[Pass] = PIPELINE, observe: Callable[[str, tvm.IRModule], None] | None = None,
) -> tvm.IRModule:
    """Take a module in normal form through ``passes``; by default it ends in grouped form.

    ``observe(name, module)`` sees every pass's result. Raises VerificationError, which names the pass, where a
    requirement is broken.
    """
    return run_passes(mod, passes, observe)


__all__ = ["PIPELINE", "FuseGroups", "Pass", "Refusal", "VerifyGroupedForm", "run_pipeline"]
