"""What a frontend returns: the model in normal form and the signature it had in the user's framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tvm

from ..ir import TensorSpec


@dataclass(frozen=True)
class ImportedModel:
    """A model in normal form (see ``ir``).

    mod : the module; its function ``main`` takes ``inputs`` in this order.
    inputs : the inputs that the program will be called with.
    outputs : names of the outputs, in the order in which ``main`` returns them.
    source : the framework the model came from.
    """

    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    source: Literal["pytorch", "onnx"]
