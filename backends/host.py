"""What a program leaves to Python: operators whose results have an extent that only running tells."""

from __future__ import annotations

import json

import tvm
import tvm_ffi

from ..errors import ProgramError
from ..operators import data_dependent

NAME = "narrowcast.data_dependent"


def _call(operator: str, attributes: str, may_be_empty: int, layer: str, *tensors: tvm.runtime.Tensor) -> object:
    """The results of an operator as new tensors; ProgramError where they are empty and must not be."""
    arrays = [t.numpy() for t in tensors]
    results = data_dependent.compute(operator, json.loads(attributes), arrays)
    if not may_be_empty and data_dependent.extent_found(operator, results) == 0:
        raise ProgramError("nothing was found, and what follows reduces over it or picks from it", layer=layer,
                           found=f"an empty result of {operator}", expected="at least one element")
    found = [tvm.runtime.tensor(r) for r in results]
    return found[0] if len(found) == 1 else tuple(found)


# The registry belongs to the process: where the package is imported once more, under another name, it is filled.
if tvm_ffi.get_global_func(NAME, allow_missing=True) is None:
    tvm_ffi.register_error("ProgramError", ProgramError)
    tvm_ffi.register_global_func(NAME, _call)
