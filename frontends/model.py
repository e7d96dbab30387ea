"""What a frontend returns: the model in normal form and the signature it had in the user's framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import tvm

from ..ir import TensorSpec
from ..requirements import DimRange, Requirement, likely

__all__ = ["DimRange", "ImportedModel", "Requirement", "likely"]


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
