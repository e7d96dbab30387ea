"""From a kernel request to a kernel: one table from the kind of group to its builder."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ...errors import UnsupportedOperatorError
from ...ir import op_name
from ...operators import linear_attention
from ...operators.recurrent import is_recurrent
from ..target import Capabilities
from .kernel import ChainRequest, Kernel, KernelRequest
from .nothing import build_nothing, computes_nothing

Builder = Callable[..., Kernel]

# Kind of group: the module of this package and its builder.
BUILDERS = {
    "conv": ("convolution", "build_conv"),
    "depthwise": ("depthwise", "build_depthwise"),
    "matmul": ("gemm", "build_matmul"),
    "batched_matmul": ("gemm", "build_batched_matmul"),
    "attention": ("attention", "build_attention"),
    "softmax": ("rows", "build_rows"),
    "layer_norm": ("rows", "build_rows"),
    "rms_norm": ("rows", "build_rows"),
    "reduce": ("rows", "build_rows"),
    "pool": ("pooling", "build_pool"),
    "elementwise": ("elementwise", "build_elementwise"),
    "movement": ("movement", "build_movement"),
    "recurrent": ("recurrent", "build_recurrent"),
    "opaque": ("legalized", "build_opaque"),
}


def emit(request: KernelRequest | ChainRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a fusion group, or of a chain, for calls that use ``threads`` threads.

    Raises UnsupportedOperatorError, naming the layer, where the group has operators that no builder takes.
    """
    if isinstance(request, ChainRequest):
        return _builder("expansion", "build_expanded")(request, capabilities, threads)
    kind = request.group.kind
    if kind not in BUILDERS:
        raise UnsupportedOperatorError("no kernels for this kind of group", layer=request.group.name, found=kind,
                                       expected=", ".join(BUILDERS))
    if computes_nothing(request):
        return build_nothing(request)
    if kind == "opaque" and is_recurrent(op_name(request.group.bindings[0].value)):
        return _builder(*BUILDERS["recurrent"])(request, capabilities, threads)
    if kind == "opaque" and op_name(request.group.bindings[0].value) == linear_attention.NAME:
        return _builder("linear_attention", "build_linear_attention")(request, capabilities, threads)
    return _builder(*BUILDERS[kind])(request, capabilities, threads)


def _builder(module: str, name: str) -> Builder:
    return getattr(import_module(f".{module}", __package__), name)
