"""Zeros put around images as the padding of the convolutions and average pools that read them."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..ir import dims_of, op_name
from .graph import Graph, Replacement, replace_matches
from .kinds import CONVOLUTION, pads_zero
from .relayout import call_of, ints

_POOLS = frozenset(f"relax.nn.avg_pool{rank}d" for rank in (1, 2, 3))


@dataclass(frozen=True)
class FoldPads:
    """Let a convolution, or an average pool that counts them, add the zeros that a pad before it adds.

    Before::

        framed = relax.nn.pad(x, [0, 0, 0, 1, 0, 1, 0, 0]); y = relax.nn.conv2d(framed, W, strides=2, NHWC, OHWI)

    After::

        y = relax.nn.conv2d(x, W, strides=2, padding=[0, 0, 1, 1], NHWC, OHWI)

    Networks trained by TensorFlow are padded so at one end only, which PyTorch's own padding cannot say.

    Requires: the normal form.
    Ensures: no convolution reads zeros that a pad put around its image.
    Does not fire when: the pad adds something else than zeros, crops, or adds channels or images; or where the windows
    of a pool that counts no padding would meet padding of both kinds, or reach beyond it.
    """

    name: str = "FoldPads"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, _find)


def _find(graph: Graph, binding: relax.VarBinding) -> Replacement | None:
    call, name = binding.value, op_name(binding.value)
    if name not in CONVOLUTION | _POOLS:
        return None
    pad, attrs = graph.call(call.args[0], "relax.nn.pad"), call.attrs
    if pad is None or not pads_zero(pad):
        return None
    widths, layout = ints(pad.attrs.pad_width), str(attrs.data_layout if name in CONVOLUTION else attrs.layout)
    ends = [(widths[2 * axis], widths[2 * axis + 1]) for axis in range(len(dims_of(pad)))]
    spatial = [axis for axis, letter in enumerate(layout) if letter in "DHW"]
    if min(widths) < 0 or any(sum(ends[axis]) for axis in range(len(layout)) if axis not in spatial):
        return None
    own = ints(attrs.padding)
    padding = [width + ends[axis][end] for width, (end, axis) in
               zip(own, ((end, axis) for end in (0, 1) for axis in spatial), strict=True)]
    common = {"strides": ints(attrs.strides), "padding": padding, "dilation": ints(attrs.dilation)}
    if name in CONVOLUTION:
        return Replacement((pad.args[0], call.args[1]), lambda emit, x, weight: call_of(call)(
            x, weight, **common, groups=int(attrs.groups), data_layout=layout, kernel_layout=str(attrs.kernel_layout)))
    if bool(attrs.ceil_mode) or (any(own) and not bool(attrs.count_include_pad)):
        return None
    return Replacement((pad.args[0],), lambda emit, x: call_of(call)(
        x, ints(attrs.pool_size), **common, count_include_pad=True, layout=layout))
