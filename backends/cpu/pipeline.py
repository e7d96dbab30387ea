"""The lowering of kernels to what LLVM gets: TVM's passes for CPU code, in two short lists.

TVM's default list of about fifty passes is made for schedules with blocks and for GPUs; most of its time goes into
passes that find nothing in kernels that are written out. ``lower_blocks`` brings scheduled functions (those that come
from TVM's legalization) into the same written-out form, so that one list serves all kernels.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline

NAME = "narrowcast"

_BLOCKS = (
    s_tir.transform.CanonicalizeLoop, s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation, s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation, s_tir.transform.LowerMatchBuffer, s_tir.transform.StmtSimplify,
    s_tir.transform.LowerOpaqueBlock,
)


def lower_blocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled function with blocks as plain loops over buffers."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.transform.Sequential([p() for p in _BLOCKS])(mod)["main"].without_attr("global_symbol")


def _kernel_passes() -> list[tvm.transform.Pass]:
    return [
        tirx.transform.FlattenBuffer(), tirx.transform.NarrowDataType(32), tirx.transform.VectorizeLoop(True),
        tirx.transform.StorageRewrite(), tirx.transform.UnrollLoop(), tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(), s_tir.transform.RewriteUnsafeSelect(), tirx.transform.CommonSubexprElim(),
        tirx.transform.VerifyMemory(), tirx.transform.AnnotateEntryFunc(), tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]


def _pipeline() -> tuple[tvm.transform.Pass, object, object]:
    return (tvm.transform.Sequential(_kernel_passes()), compilation_pipeline.finalize_host_passes,
            compilation_pipeline.finalize_device_passes)


compilation_pipeline.register_tir_pipeline(NAME, _pipeline)
