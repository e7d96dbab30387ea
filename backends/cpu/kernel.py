"""What a kernel is asked to be, and what it is: the contract between the emitters and the rest of the compiler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm

from ...errors import PlanError
from ...ir import Group
from ...precision import Precision, Storage

# Element types of storages as TIR buffers and NumPy arrays carry them: TVM's LLVM code generation has no bfloat.
_BUFFER_DTYPES = {"bfloat16": "uint16"}


def buffer_dtype(storage: Storage) -> str:
    """The element type of a buffer with this storage: bfloat16 travels as ``uint16``, everything else as it is."""
    return _BUFFER_DTYPES.get(storage.dtype, storage.dtype)


@dataclass(frozen=True)
class KernelRequest:
    """One fusion group with everything decided.

    group : the group; its function's constants (weights, biases) are inside its body.
    precision : what its multiply-adds read.
    inputs : the storage of every parameter of the group's function, in order.
    outputs : every materialisation of the tensor that the group computes; at least one, no two equal.
    per_channel : whether INT8 weights have one scale per output channel.
    """

    group: Group
    precision: Precision
    inputs: tuple[Storage, ...]
    outputs: tuple[Storage, ...]
    per_channel: bool = True

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.group.function.params):
            raise PlanError("a kernel needs one storage per input", layer=self.group.name, found=len(self.inputs),
                            expected=len(self.group.function.params))
        if not self.outputs:
            raise PlanError("a kernel needs at least one output", layer=self.group.name)


@dataclass(frozen=True)
class Kernel:
    """The code of one fusion group.

    func : its parameters are one buffer per parameter of the group's function (its storage's ``buffer_dtype``, the
        logical shape), one per entry of ``constants``, then one per requested output (the logical shape). A group
        that computes a tuple has one output buffer per element.
    constants : the packed weights and other arrays, in the order of the parameters.
    macs : multiply-adds of one call.
    """

    func: tvm.tirx.PrimFunc
    constants: tuple[np.ndarray, ...]
    macs: int
