"""Reference semantics on uint16, uint32 and uint64, which PyTorch stores and moves but hardly computes with.

The narrower two are computed in int64, which holds them. So is uint64 by its bits, since sums, differences, products
and bits are the same with or without a sign; what depends on the order of the numbers runs on the bits with the
highest inverted, which int64 orders like uint64; quotients, remainders, shifts to the right and conversions to floats
run in NumPy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from .semantics import Semantics, Value, result_types

_HIGHEST = torch.iinfo(torch.int64).min
_WIDE = (torch.uint16, torch.uint32, torch.uint64)

# Operators whose results depend on the order of the elements: those that give elements back, and the others.
_SELECTING = frozenset({"maximum", "minimum", "max", "min", "sort", "topk"})
_ORDERING = frozenset({"greater", "greater_equal", "less", "less_equal", "argmax", "argmin", "argsort", "bucketize"})

def _by_any(divide: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A quotient or remainder by 0 as by 1."""
    return lambda a, b: divide(a, np.maximum(b, np.asarray(1, np.asarray(b).dtype)))


_IN_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "divide": _by_any(operator.floordiv), "floor_divide": _by_any(operator.floordiv), "mod": _by_any(operator.mod),
    "floor_mod": _by_any(operator.mod),
    "right_shift": operator.rshift, "power": np.power, "clip": np.clip,
}


def concerns(args: Sequence[Any], call: relax.Call) -> bool:
    """Whether the call computes with, or results in, elements that PyTorch does not compute with."""
    return call.op.name != "narrowcast.bitcast" and any(t in _WIDE for t in (*_types(args), *result_types(call)))


def _types(args: Sequence[Any]) -> list[torch.dtype]:
    flat = [a for arg in args for a in (arg if isinstance(arg, tuple) else (arg,))]
    return [a.dtype for a in flat if isinstance(a, torch.Tensor)]


def evaluate(semantics: Semantics, args: Sequence[Any], call: relax.Call) -> Value:
    """The value of a call that ``concerns`` these types, by the semantics that it has on int64."""
    name = call.op.name.removeprefix("relax.")
    if torch.uint64 in (*_types(args), *result_types(call)):
        if name in _IN_NUMPY:
            return _in_numpy(_IN_NUMPY[name], args)
        if name == "astype":
            return _converted(args[0], result_types(call)[0])
    selects = name in _SELECTING or (name.startswith("scatter_") and str(call.attrs.reduction) in ("max", "min"))
    ordered = (selects or name in _ORDERING) and torch.uint64 in _types(args)
    value = semantics([_widened(a, ordered) for a in args], call)
    results = value if isinstance(value, tuple) else (value,)
    if ordered and selects:
        results = tuple(r ^ _HIGHEST if t == torch.uint64 else r
                        for r, t in zip(results, result_types(call), strict=True))
    narrowed = tuple(r.to(t) for r, t in zip(results, result_types(call), strict=True))
    return narrowed if isinstance(value, tuple) else narrowed[0]


def _widened(arg: Any, ordered: bool) -> Any:
    if isinstance(arg, tuple):
        return tuple(_widened(a, ordered) for a in arg)
    if not isinstance(arg, torch.Tensor) or arg.dtype not in _WIDE:
        return arg
    if arg.dtype == torch.uint64:
        return arg.view(torch.int64) ^ _HIGHEST if ordered else arg.view(torch.int64)
    return arg.to(torch.int64)


def _in_numpy(function: Callable[..., np.ndarray], args: Sequence[Any]) -> torch.Tensor:
    arrays = [a.numpy() if isinstance(a, torch.Tensor) else a for a in args]
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(function(*arrays), arrays[0].dtype))


def _converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.empty(0, dtype=dtype).numpy().dtype
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(x.numpy().astype(target)))
