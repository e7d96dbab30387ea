"""What a frontend returns: the model in normal form and the signature it had in the user's framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tvm


@dataclass(frozen=True)
class InputSpec:
    """One input of the model: its name, its static shape and its element type ("float32", "int64", "bool" …)."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ImportedModel:
    """A model in normal form (see ``ir``).

    mod : the module; its function ``main`` takes ``inputs`` in this order.
    inputs : the inputs that the program will be called with.
    outputs : names of the outputs, in the order in which ``main`` returns them.
    source : the framework the model came from.
    """

    mod: tvm.IRModule
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    source: Literal["pytorch", "onnx"]
