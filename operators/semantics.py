"""What the families of reference semantics share: the type of an entry, element types, axes and layouts.

An entry of a family's table is a function ``(args, call) -> value``. ``args`` follows ``call.args``: tensors are
PyTorch tensors, tuples of tensors are tuples, shapes and tuples of integers are tuples of ints, scalars are ints,
bools or floats. ``call`` is read for attributes and, where the operator chooses one, the result's element type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from ..errors import UnsupportedOperatorError

Value = torch.Tensor | tuple[torch.Tensor, ...]
Semantics = Callable[[Sequence[Any], relax.Call], Value]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8,
    "uint16": torch.uint16, "uint32": torch.uint32, "uint64": torch.uint64, "bool": torch.bool,
}


def torch_dtype(dtype: object) -> torch.dtype:
    """The PyTorch element type of a TVM one; UnsupportedOperatorError where PyTorch has none."""
    try:
        return TORCH_DTYPES[str(dtype)]
    except KeyError:
        raise UnsupportedOperatorError("an element type without reference semantics", found=str(dtype),
                                       expected=", ".join(TORCH_DTYPES)) from None


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A PyTorch tensor that holds a copy of the array's elements (bfloat16 arrays included)."""
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


def result_types(call: relax.Call) -> tuple[torch.dtype, ...]:
    """The element types that Relax infers for the call's results."""
    ty = call.ty
    if not isinstance(ty, (relax.TensorType, relax.TupleType)):
        ty = relax.BlockBuilder().normalize(call).ty
    return tuple(torch_dtype(t.dtype) for t in (ty.fields if isinstance(ty, relax.TupleType) else [ty]))


def result_dtype(call: relax.Call) -> torch.dtype:
    """The element type to compute the call's (first) result in: its own, or int64 for one that PyTorch does not
    compute with (``reference_unsigned``)."""
    dtype = result_types(call)[0]
    return torch.int64 if dtype in (torch.uint16, torch.uint32, torch.uint64) else dtype


def ints(values: Any) -> tuple[int, ...]:
    """A tuple of ints from an attribute that is one integer or a sequence of them."""
    if isinstance(values, (list, tuple)) or hasattr(values, "__len__"):
        return tuple(int(v) for v in values)
    return (int(values),)


def axes_of(axes: object, rank: int) -> tuple[int, ...]:
    """The non-negative axes of an attribute; all of them where it is None."""
    return tuple(range(rank)) if axes is None else tuple(a % rank for a in ints(axes))


def of_tensors(function: Callable[..., torch.Tensor]) -> Semantics:
    """The entry for an operator that is a PyTorch function of its arguments and has no attributes."""
    return lambda args, call: function(*args)


def to_layout(x: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """``x`` with its axes, named by the letters of ``source``, in the order of ``target``."""
    source, target = str(source), str(target)
    if source == target:
        return x
    if sorted(source) != sorted(target):
        raise UnsupportedOperatorError("a layout without reference semantics", found=source,
                                       expected=f"a permutation of {target}")
    return x.permute([source.index(axis) for axis in target])


def refuse(call: relax.Call, what: str) -> UnsupportedOperatorError:
    """The error for a form of an operator that has no semantics here."""
    return UnsupportedOperatorError(f"{call.op.name} {what} has no reference semantics", found=str(call.attrs))
