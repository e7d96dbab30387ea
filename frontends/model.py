"""What a frontend returns: the model in normal form and the signature it had in the user's framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import tvm

from ..ir import Dim, TensorSpec, analyzer_of, as_dim, dim_text, evaluate_dim, is_equal_dim


@dataclass(frozen=True)
class DimRange:
    """The extents that a symbol may have: from ``minimum`` to ``maximum`` (None: no end)."""

    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True)
class Requirement:
    """A relation between extents that a layer takes for granted and that only the inputs' shapes can show.

    relation : "==" or ">=", between ``left`` and ``right``.
    layer : the layer that needs it.
    """

    relation: Literal["==", ">="]
    left: Dim
    right: Dim
    layer: str

    def holds(self) -> bool | None:
        """Whether the relation is provably true or false; None where it depends on the symbols' extents."""
        left, right = as_dim(self.left), as_dim(self.right)
        if isinstance(left, int) and isinstance(right, int):
            return left == right if self.relation == "==" else left >= right
        analyzer = analyzer_of(left, right)
        if self.relation == "==":
            return True if is_equal_dim(left, right) else None
        return True if analyzer.can_prove(left >= right) else False if analyzer.can_prove(left < right) else None

    def is_met(self, extents: Mapping[str, int]) -> bool:
        """Whether the relation holds for these extents of the symbols, by name."""
        left, right = (evaluate_dim(side, extents) for side in (self.left, self.right))
        return left == right if self.relation == "==" else left >= right

    def __str__(self) -> str:
        return f"{dim_text(self.left)} {self.relation} {dim_text(self.right)}"


@dataclass(frozen=True)
class ImportedModel:
    """A model in normal form (see ``ir``).

    mod : the module; its function ``main`` takes ``inputs`` in this order.
    inputs : the inputs that the program will be called with.
    outputs : names of the outputs, in the order in which ``main`` returns them.
    source : the framework the model came from.
    hints : a typical extent of every symbol, by name.
    ranges : what the source says about the extents of symbols, by name.
    requirements : relations between extents that have to hold when the program is called; outside of them ``main`` may
        read past the end of a tensor.
    """

    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    source: Literal["pytorch", "onnx"]
    hints: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, DimRange] = field(default_factory=dict)
    requirements: tuple[Requirement, ...] = ()
