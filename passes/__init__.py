"""Graph passes: from a frontend's module in normal form to fusion groups. One table, ``PIPELINE``, says which and in
what order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm

from ..operators.control import map_bodies
from .base import Pass, Refusal, run_passes
from .channels_last import ToChannelsLast
from .decompose_transposed import DecomposeTransposedConvolutions
from .eliminate import EliminateCommonSubexpressions, EliminateDeadCode
from .fold_batch_norm import FoldBatchNorm
from .fold_constants import FoldConstants
from .fold_pads import FoldPads
from .fuse import FuseGroups
from .linear_layers import SplitPackedLayers
from .recompose_activations import RecomposeGelu, RecomposeHardActivations, RecomposeSilu
from .recompose_attention import RecomposeAttention
from .recompose_norms import RecomposeLayerNorm, RecomposeRMSNorm, RecomposeSoftmax
from .recompose_quantization import RecomposeFakeQuantize
from .simplify import Simplify
from .verify import VerifyNormalForm
from .verify_grouped import VerifyGroupedForm

PIPELINE: tuple[Pass, ...] = (
    VerifyNormalForm(),
    FoldConstants(),
    EliminateCommonSubexpressions(),
    RecomposeFakeQuantize(),
    Simplify(),
    RecomposeLayerNorm(),
    RecomposeRMSNorm(),
    RecomposeSoftmax(),
    RecomposeGelu(),
    RecomposeSilu(),
    RecomposeHardActivations(),
    FoldBatchNorm(),
    RecomposeAttention(),
    FoldPads(),
    Simplify(),
    FoldConstants(),
    ToChannelsLast(),
    DecomposeTransposedConvolutions(),
    Simplify(),
    SplitPackedLayers(),
    Simplify(),
    EliminateCommonSubexpressions(),
    EliminateDeadCode(),
    FuseGroups(),
    VerifyGroupedForm(),
)
"""The way from the normal form to the grouped form."""


def run_pipeline(
    mod: tvm.IRModule, passes: Sequence[Pass] = PIPELINE, observe: Callable[[str, tvm.IRModule], None] | None = None,
) -> tvm.IRModule:
    """Take a module in normal form through ``passes``, after the bodies of its loops and branches; by default it ends
    in grouped form.

    ``observe(name, module)`` sees every pass's result. Raises VerificationError, which names the pass, where a
    requirement is broken.
    """
    return run_passes(map_bodies(mod, lambda body: run_pipeline(body, passes)), passes, observe)


__all__ = [
    "PIPELINE",
    "DecomposeTransposedConvolutions",
    "EliminateCommonSubexpressions",
    "EliminateDeadCode",
    "FoldBatchNorm",
    "FoldConstants",
    "FoldPads",
    "FuseGroups",
    "Pass",
    "RecomposeAttention",
    "RecomposeFakeQuantize",
    "RecomposeGelu",
    "RecomposeHardActivations",
    "RecomposeLayerNorm",
    "RecomposeRMSNorm",
    "RecomposeSilu",
    "RecomposeSoftmax",
    "Refusal",
    "Simplify",
    "SplitPackedLayers",
    "ToChannelsLast",
    "VerifyGroupedForm",
    "VerifyNormalForm",
    "run_pipeline",
]
