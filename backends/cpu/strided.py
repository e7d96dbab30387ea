"""Tensors as a flat buffer with a shape and strides: what transposing, slicing, broadcasting and reshaping do to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import tvm

from ...dims import Dim, is_equal_dim, is_one, product_of, simplified


@dataclass(frozen=True)
class Strided:
    """A tensor in a flat buffer.

    strides : distance in the buffer of neighbours along each axis; 0 where an element is repeated.
    offset : index in the buffer of the element with index 0.
    """

    buffer: tvm.ir.Expr
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in order from the start of the buffer."""
        return is_equal_dim(self.offset, 0) and all(
            is_equal_dim(own, other)
            for own, other, extent in zip(self.strides, strides_of(self.shape), self.shape, strict=True)
            if not is_one(extent))

    def transposed(self, axes: Sequence[int]) -> Strided:
        """The axes in another order."""
        return replace(self, shape=tuple(self.shape[a] for a in axes), strides=tuple(self.strides[a] for a in axes))

    def sliced(self, axis: int, first: Dim, extent: Dim, step: Dim = 1) -> Strided:
        """``extent`` elements along an axis, from ``first`` on, every ``step``-th (backwards where negative)."""
        shape, strides = list(self.shape), list(self.strides)
        shape[axis], strides[axis] = extent, simplified(self.strides[axis] * step)
        offset = simplified(self.offset + first * self.strides[axis])
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def without(self, axis: int) -> Strided:
        """The elements with index 0 along an axis."""
        cut = slice(axis, axis + 1)
        shape, strides = list(self.shape), list(self.strides)
        del shape[cut], strides[cut]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def inserted(self, axis: int) -> Strided:
        """A new axis of extent 1."""
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(axis, 1)
        strides.insert(axis, 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def broadcast(self, shape: Sequence[Dim]) -> Strided:
        """Repeated along new leading axes, and along those of extent 1 that become longer."""
        new = len(shape) - len(self.shape)
        strides = [0] * new + [0 if is_one(own) and not is_one(full) else stride for own, full, stride
                               in zip(self.shape, shape[new:], self.strides, strict=True)]
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[Dim]) -> Strided | None:
        """The same elements under another shape, or None where that needs a copy (or might)."""
        shape = tuple(shape)
        if self.is_dense:
            return dense(self.buffer, shape)
        strides: dict[int, Dim] = {}
        for own, other in _runs(self.shape, shape):
            for a, b in pairwise(own):
                if not is_equal_dim(self.strides[a], self.shape[b] * self.strides[b]):
                    return None
            stride: Dim = self.strides[own[-1]] if own else 0
            for axis in reversed(other):
                strides[axis] = stride
                stride = simplified(stride * shape[axis])
        if {a for a, d in enumerate(shape) if not is_one(d)} - strides.keys():
            return None
        return replace(self, shape=shape, strides=tuple(strides.get(a, 0) for a in range(len(shape))))


def dense(buffer: tvm.ir.Expr, shape: Sequence[Dim]) -> Strided:
    """A tensor whose elements lie in order."""
    return Strided(buffer, tuple(shape), strides_of(shape))


def strides_of(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The strides of a tensor whose elements lie in order."""
    return tuple(product_of(shape[axis + 1:]) for axis in range(len(shape)))


def _runs(source: Sequence[Dim], result: Sequence[Dim]) -> list[tuple[list[int], list[int]]]:
    """Runs of axes of both shapes that hold the same elements, as short as can be proved; axes of 1 are left out.

    Nothing is said about axes from the first place on where extents cannot be compared.
    """
    left, right = ([a for a, d in enumerate(shape) if not is_one(d)] for shape in (source, result))
    runs: list[tuple[list[int], list[int]]] = []
    while left and right:
        own, other = [left.pop(0)], [right.pop(0)]
        while not is_equal_dim(a := product_of(source[i] for i in own), b := product_of(result[i] for i in other)):
            if not (isinstance(a, int) and isinstance(b, int)):
                return runs
            shorter, rest = (own, left) if a < b else (other, right)
            if not rest:
                return runs
            shorter.append(rest.pop(0))
        runs.append((own, other))
    return runs
