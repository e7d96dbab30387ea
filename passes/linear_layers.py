"""Linear layers of a graph, and the separation of those that compute several values at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from ..dims import as_dim, equal_dims, product_of
from ..ir import Constant, Expr, constant, constant_value, dims_of, op_name, same_dims
from .graph import Emit, Graph, Replacement, replace_matches


@dataclass(frozen=True)
class LinearLayer:
    """``x @ weight + bias`` with a constant weight [K, N] and a constant bias, [N] or a scalar, or none.

    product, addition : the bindings; the last one's variable is the layer's value.
    """

    product: relax.VarBinding
    addition: relax.VarBinding | None
    x: Expr
    weight: np.ndarray
    bias: np.ndarray | None

    @classmethod
    def find(cls, graph: Graph, expr: Expr) -> LinearLayer | None:
        """The layer whose value is ``expr``; None where there is none, or more than the bias reads the product."""
        product, addition, bias = graph.producer(expr), None, None
        if product is not None and op_name(product.value) == "relax.add":
            addition, (inner, offset) = product, product.value.args
            product = graph.producer(inner)
            if not isinstance(offset, Constant) or len(dims_of(offset)) > 1 or product is None:
                return None
            if graph.only_reader(product.var) is None or not same_dims(product.var, addition.var):
                return None
            bias = constant_value(offset)
        if product is None or op_name(product.value) != "relax.matmul":
            return None
        x, weight = product.value.args
        if isinstance(x, Constant) or not isinstance(weight, Constant) or len(dims_of(weight)) != 2:
            return None
        return cls(product, addition, x, constant_value(weight), bias)

    def columns(self, start: int, stop: int) -> LinearLayer:
        """The layer that computes the outputs ``start`` … ``stop - 1`` only."""
        bias = self.bias if self.bias is None or self.bias.size == 1 else self.bias[start:stop]
        return LinearLayer(self.product, self.addition, self.x, self.weight[:, start:stop], bias)

    def emit(self, emit: Emit, x: Expr) -> relax.Var:
        """Bind the layer, applied to ``x``, under its own names."""
        value = emit(relax.op.matmul(x, constant(self.weight)), name=self.product.var.name)
        if self.addition is None or self.bias is None:
            return value
        return emit(relax.op.add(value, constant(self.bias)), name=self.addition.var.name)


@dataclass(frozen=True)
class SplitPackedLayers:
    """Compute the slices of a linear layer's outputs as layers of their own.

    Before::

        y = relax.matmul(x, W); q = relax.strided_slice(y, [-1], [0], [n]); k = relax.strided_slice(y, [-1], [n], [2 n])

    After::

        q = relax.matmul(x, W[:, :n]); k = relax.matmul(x, W[:, n:2 n])

    A reshape that splits the last dimension may stand between; then the first of its parts is sliced, as in the packed
    query, key and value of transformers.

    Requires: the normal form.
    Ensures: the slices' bytes are not copied; the layers have the packed layer's name, with ``.N`` from the second on.
    Does not fire when: something else than such slices reads the layer's value.
    """

    name: str = "SplitPackedLayers"

    def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
        return replace_matches(mod, _find)


def _find(graph: Graph, binding: relax.VarBinding) -> Replacement | None:
    bounds = _slice_bounds(binding)
    if bounds is None:
        return None
    view = binding.value.args[0]
    reshape = graph.call(view, "relax.reshape")
    value = view if reshape is None else reshape.args[0]
    layer = LinearLayer.find(graph, value)
    if layer is None or (reshape is not None and graph.only_reader(value) is None) or view in graph.outputs:
        return None
    last = len(dims_of(value)) - 1
    readers = [_slice_bounds(reader) for reader in graph.uses[view]]
    if not equal_dims(dims_of(view)[:last], dims_of(value)[:last]) or any(r is None or r[0] != last for r in readers):
        return None
    width = product_of(dims_of(view)[last + 1:])
    if not isinstance(width, int):
        return None
    part = layer.columns(bounds[1] * width, bounds[2] * width)
    shape = dims_of(binding.var)

    def build(emit: Emit, x: Expr) -> Expr:
        result = part.emit(emit, x)
        return result if equal_dims(dims_of(result), shape) else relax.op.reshape(result, shape)

    return Replacement((layer.x,), build)


def _slice_bounds(binding: relax.VarBinding) -> tuple[int, int, int] | None:
    """``(axis, begin, end)`` of a slice without gaps along one axis; None for anything else."""
    call = binding.value
    if op_name(call) != "relax.strided_slice" or not all(isinstance(a, relax.Tuple) for a in call.args[1:]):
        return None
    axes, begin, end, *strides = ([as_dim(v) for v in a.fields] for a in call.args[1:])
    shape = dims_of(call.args[0])
    if len(axes) != 1 or any(s != [1] for s in strides):
        return None
    axis = axes[0] % len(shape)
    if not all(isinstance(v, int) for v in (begin[0], end[0], shape[axis])):
        return None
    first, last, _ = slice(begin[0], end[0]).indices(shape[axis])
    return axis, first, last
