"""The choice of layouts: convolutions and pools channels-last, permutations pushed until they cancel."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ..ir import GraphBuilder, op_bindings, op_name, outputs_of, with_main, without_dead_code
from .layouts import Layouts
from .relayout import as_it_is, rule_for


@dataclass(frozen=True)
class ToChannelsLast:
    """Compute convolutions, pools and resizes with the channel as the last axis.

    Before::

        y = relax.nn.conv2d(x, W); b = relax.add(y, bias[C, 1, 1]); z = relax.nn.conv2d(b, V); m = relax.mean(z, [2, 3])

    After::

        t = relax.permute_dims(x, [0, 2, 3, 1]); y = relax.nn.conv2d(t, W', NHWC, OHWI); b = relax.add(y, bias'[C])
        z = relax.nn.conv2d(b, V', NHWC, OHWI); m = relax.mean(z, [1, 2])

    Every value of the network is kept in the layout its producer makes; permutations, the network's own included, are
    composed and only written where an operator insists on another layout (each once). Elementwise operators,
    reductions, concatenations, slices, pads and softmax take the layout they are given; a permutation that moves no
    element is a reshape; a flattened map that only constant matrices read is left in its layout, and the
    rows of the matrices are permuted instead.

    Requires: the normal form.
    Ensures: convolutions and transposed convolutions with constant weights, pools and resize2d are channels-last, the
    weights of 2-D convolutions OHWI and of transposed ones IHWO (1-D and 3-D likewise); a network of these has no
    permutation but at its inputs and outputs; the softmax axis is the last.
    Does not fire when: the operator has no channels-last form here (group and instance normalization, weights that are
    computed, …): it gets, and leaves, the user's layout.
    """

    name: str = "ToChannelsLast"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return with_main(mod, without_dead_code(_relayout(mod["main"])))


def _relayout(func: relax.Function) -> relax.Function:
    layouts = Layouts(GraphBuilder(func.params), func)
    for param in func.params:
        layouts.define_plain(param, param)
    for binding in op_bindings(func):
        rule = rule_for(op_name(binding.value))
        if rule is None or not rule(layouts, binding):
            as_it_is(layouts, binding)
    outputs = [layouts.plain(v) for v in outputs_of(func)]
    as_tuple = isinstance(func.ret_ty, relax.TupleType)
    return layouts.builder.finish(outputs, as_tuple=as_tuple, attrs=func.attrs)
