"""What a program leaves to Python: operators whose results have an extent that only running tells, and loops and
branches of which only running tells how they go."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..errors import ProgramError
from ..operators import data_dependent
from ..operators.control import CheckedBody, Places, run_branch, run_loop
from ..requirements import Requirement

FIND, CONTROL = "narrowcast.find", "narrowcast.control"
# What TVM's tensors are aligned to.
_ALIGNMENT = 64


def _aligned_bytes(count: int) -> np.ndarray:
    """So many bytes of new memory that a tensor of TVM can be without a copy."""
    memory = np.empty(count + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start:start + count]


class TvmTensors:
    """What TVM's tensors can (``control.Tensors``); these are made and read in every iteration, so by DLPack."""

    _nothing = _aligned_bytes(1)[:0].view(np.bool_)

    def number(self, value: int) -> tvm.runtime.Tensor:
        memory = _aligned_bytes(8).view(np.int64)
        memory[0] = value
        return tvm.runtime.from_dlpack(memory.reshape(()))

    def extent(self, value: int) -> tvm.runtime.Tensor:
        return tvm.runtime.from_dlpack(self._nothing.reshape(value, 0))

    def item(self, tensor: tvm.runtime.Tensor) -> int:
        return int(np.from_dlpack(tensor))

    def shape(self, tensor: tvm.runtime.Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def stack(self, tensors: Sequence[tvm.runtime.Tensor]) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(np.stack([np.from_dlpack(t) for t in tensors]))

    def empty(self, shape: Sequence[int], dtype: str) -> tvm.runtime.Tensor:
        return tvm.runtime.empty(tuple(shape), dtype)


@lru_cache(maxsize=1024)
def _stated(text: str) -> tuple[tuple[Requirement, ...], Places]:
    """The requirements of a body and where symbols stand, as ``body_text`` wrote them."""
    stated = json.loads(text)
    return Requirement.all_from_json(stated["requirements"]), stated["places"]


def body_text(requirements: Sequence[Requirement], places: Places) -> str:
    """What a program says of a body: ``CheckedBody``'s requirements and places."""
    return json.dumps({"requirements": Requirement.all_to_json(requirements), "places": places}, sort_keys=True)


def _checked(machine: ctypes.c_void_p, function: Any, text: str, layer: str) -> CheckedBody[tvm.runtime.Tensor]:
    """A function of the virtual machine as a body."""
    call = partial(tvm.get_global_func("vm.builtin.invoke_closure"), machine, function)
    return CheckedBody(lambda operands: call(*operands), *_stated(text), layer, TvmTensors())


def _control(machine: ctypes.c_void_p, layer: str, needed: str, counts: str, stacked: str,
             *args: Any) -> tuple[tvm.runtime.Tensor, ...]:
    """The results of a loop or a branch.

    Parameters
    ----------
    counts : of the tensors that are states, and that each body takes.
    stacked : the element types of what a loop stacks; null for a branch.
    args : a function and its ``body_text`` for every body, the tensors, the shapes of what is stacked.
    """
    parts, dtypes = json.loads(counts), json.loads(stacked)
    bodies = 2 if dtypes is None else len(parts) - 1
    functions = [_checked(machine, f, text, layer) for f, text in zip(args[:2 * bodies:2], args[1:2 * bodies:2],
                                                                      strict=True)]
    operands = args[2 * bodies:]
    if dtypes is None:
        return _found(layer, needed, run_branch(functions, parts, operands))
    tensors = len(operands) - len(dtypes)
    empty = [(tuple(s), d) for s, d in zip(operands[tensors:], dtypes, strict=True)]
    return _found(layer, needed, run_loop(functions, parts, operands[:tensors], empty))


def _find(layer: str, needed: str, operator: str, attributes: str, *tensors: tvm.runtime.Tensor) -> object:
    """The results of a data-dependent operator as new tensors."""
    results = data_dependent.compute(operator, json.loads(attributes), [t.numpy() for t in tensors])
    found = _found(layer, needed, [tvm.runtime.tensor(r) for r in results])
    return found[0] if len(found) == 1 else found


def _found(layer: str, needed: str, results: Sequence[tvm.runtime.Tensor]) -> tuple[tvm.runtime.Tensor, ...]:
    """The results; ProgramError where one is empty along an axis that must not be: ``needed`` lists result and axis."""
    for result, axis in json.loads(needed):
        if results[result].shape[axis] == 0:
            raise ProgramError("nothing was found, and what follows reduces over it or picks from it", layer=layer,
                               found=f"a result of shape {list(results[result].shape)}",
                               expected="at least one element")
    return tuple(results)


# The registry belongs to the process: where the package is imported once more, under another name, it is filled.
if tvm_ffi.get_global_func(FIND, allow_missing=True) is None:
    tvm_ffi.register_error("ProgramError", ProgramError)
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)  # A loop that does not end is the user's to end.
    tvm_ffi.register_global_func(FIND, _find)
    tvm_ffi.register_global_func(CONTROL, _control)
