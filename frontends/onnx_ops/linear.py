"""Matrix products."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...dims import Dim, is_equal_dim
from ...ir import Expr, dims_of
from ..equations import is_sound, sums_over_ellipsis
from .broadcasting import broadcast_dims, broadcastable, is_number, shape_text, stated
from .node import OnnxNode, Results, operator

# No extent is as large.
_BEYOND = 2 ** 40


def scaled(node: OnnxNode, x: Expr, factor: float, part: str | None = None) -> Expr:
    """``factor · x``; ``x`` where the factor is 1."""
    return x if factor == 1.0 else node.emit(relax.op.multiply(x, node.constant(np.float32(factor))), part)


def transposed(node: OnnxNode, index: int, part: str) -> Expr:
    """Input ``index`` with its last two axes exchanged; a known one is exchanged at once."""
    value = node.value(index)
    if isinstance(value, np.ndarray):
        return node.constant(value.swapaxes(-1, -2))
    axes = list(range(node.rank(index)))
    return node.emit(relax.op.permute_dims(value, [*axes[:-2], axes[-1], axes[-2]]), part)


@operator("MatMul")
def matmul(node: OnnxNode) -> Results:
    return product(node, node.expr(0), node.expr(1))


def product(node: OnnxNode, a: Expr, b: Expr) -> relax.Var:
    """The matrix product of ``a`` and ``b``, whose extents are stated so that they fit."""
    left, right = list(dims_of(a)), list(dims_of(b))
    if not left or not right:
        raise node.fault("an operand is a number", found=(shape_text(left), shape_text(right)))
    if not all(isinstance(d, int) for d in left + right):
        inner = len(right) - 2 if len(right) > 1 else 0
        left[-1] = right[inner] = broadcast_dims([left[-1:], right[inner:inner + 1]])[0]
        batch = broadcast_dims([left[:-2], right[:-2]])
        for side in (left, right):
            common = batch[len(batch) - len(side[:-2]):]
            side[:-2] = [o if is_number(o, 1) else w for o, w in zip(side, common, strict=False)]
        a, b = stated(node, a, left), stated(node, b, right)
    return node.emit(relax.op.matmul(a, b))


@operator("Gemm")
def gemm(node: OnnxNode) -> Results:
    """``alpha · A B + beta · C``; a known B absorbs alpha, a known C absorbs beta."""
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    if node.rank(0) != 2 or node.rank(1) != 2:
        raise node.fault("the operands are not matrices", found=(shape_text(node.dims(0)), shape_text(node.dims(1))))
    a = transposed(node, 0, "transposed") if node.attribute("transA", 0) else node.expr(0)
    b = node.value(1)
    if isinstance(b, np.ndarray):
        weight = b.T if node.attribute("transB", 0) else b
        result = product(node, a, node.constant(weight * np.asarray(alpha, weight.dtype)))
    else:
        right = transposed(node, 1, "transposed") if node.attribute("transB", 0) else b
        result = scaled(node, product(node, a, right), alpha)
    if not node.has(2) or beta == 0.0:
        return result
    c = node.value(2)
    if isinstance(c, np.ndarray):
        addend = c * np.asarray(beta, c.dtype)
        if c.ndim > 2:
            raise node.fault("the addend has more than two dimensions", found=c.shape)
        columns = c.ndim == 2 and c.shape[0] == 1 and c.shape[1] > 1
        return node.emit(relax.op.add(result, node.constant(addend[0] if columns else addend)))
    return node.emit(relax.op.add(*broadcastable(node, [result, scaled(node, c, beta, "addend")])))


@operator("Einsum")
def einsum(node: OnnxNode) -> Results:
    equation = str(node.attribute("equation", "")).replace(" ", "")
    operands = _agreeing(node, equation.partition("->")[0].split(","), [node.expr(i) for i in range(len(node.inputs))])
    shapes = [dims_of(x) for x in operands]
    if not is_sound(equation, _numbered(shapes)):
        raise node.fault("the equation does not fit the operands", found=equation,
                         expected=", ".join(map(shape_text, shapes)))
    if sums_over_ellipsis(equation):
        raise node.unsupported("that sums over an ellipsis")
    return node.emit(relax.op.einsum(operands, equation))


def _agreeing(node: OnnxNode, terms: list[str], operands: list[Expr]) -> list[Expr]:
    """``operands`` stated so that symbolic extents of one letter are provably equal."""
    shapes = [dims_of(x) for x in operands]
    if all(isinstance(d, int) for s in shapes for d in s) or len(terms) != len(operands):
        return operands
    extents: dict[str, Dim] = {}
    named = [dict(zip(t, s, strict=False)) if "..." not in t else {} for t, s in zip(terms, shapes, strict=True)]
    for letters in named:
        for letter, extent in letters.items():
            extents[letter] = broadcast_dims([[extent], [extents.get(letter, 1)]])[0]
    return [stated(node, x, [o if is_number(o, 1) else extents[n] for n, o in letters.items()])
            if len(letters) == len(shape) else x
            for x, letters, shape in zip(operands, named, shapes, strict=True)]


def _numbered(shapes: list[tuple[Dim, ...]]) -> list[tuple[int, ...]]:
    """``shapes`` with a number of its own for every symbolic extent, to be compared."""
    symbolic: list[Dim] = []
    result = []
    for shape in shapes:
        numbers = []
        for dim in shape:
            if isinstance(dim, int):
                numbers.append(dim)
                continue
            place = next((i for i, other in enumerate(symbolic) if is_equal_dim(other, dim)), len(symbolic))
            symbolic[place:] = symbolic[place:] or [dim]
            numbers.append(_BEYOND + place)
        result.append(tuple(numbers))
    return result
