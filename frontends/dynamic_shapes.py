"""What the user says about dynamic dimensions, in the form that ``torch.export.export`` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim
from torch.export.dynamic_shapes import _combine_args, _tree_map_with_path
from torch.utils import _pytree as pytree

from ..errors import ImportModelError


@dataclass(frozen=True)
class DynamicShapes:
    """Which dimensions are dynamic.

    for_export : for ``torch.export``: a dimension that the user names by a string is one that PyTorch may find
        anything out about (``Dim.AUTO``), and not one that has to hold for every extent.
    names : those names, by the identity of the example tensor and the axis.
    named : the identity of the example tensor and the axis of every dimension that has a name, a string or a ``Dim``.
    """

    for_export: Any
    names: Mapping[tuple[int, int], str]
    named: frozenset[tuple[int, int]] = frozenset()

    def traceable(self, example: torch.Tensor) -> torch.Tensor:
        """An example with two of what it has one of along named dimensions: ``torch.export`` takes 1 for fixed."""
        result = example
        for axis, extent in enumerate(example.shape):
            if extent == 1 and (id(example), axis) in self.named:
                result = torch.cat([result, result], axis)
        return result


NOTHING_DYNAMIC = DynamicShapes(None, {})


def read_dynamic_shapes(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
                        given: Any) -> DynamicShapes:
    """``given`` for a call of ``module`` with these arguments, every tensor of which is another object.

    ImportModelError where it does not have the structure of the arguments.
    """
    if given is None:
        return NOTHING_DYNAMIC
    if len(args) == 1 and not kwargs and _is_axes(given):
        given = (given,)
    arguments: Any = _combine_args(module, args, kwargs)
    if not isinstance(given, Mapping):
        arguments = tuple(arguments.values())
    completed = _completed(arguments, given, "")
    names: dict[tuple[int, int], str] = {}
    named: set[tuple[int, int]] = set()

    def collect(path: Any, value: Any, axes: Any = None) -> None:
        pairs = list(axes.items() if isinstance(axes, Mapping) else enumerate(axes or ()))
        names.update({(id(value), axis): name for axis, name in pairs if isinstance(name, str)})
        named.update((id(value), axis) for axis, name in pairs if isinstance(name, (str, Dim)))

    _tree_map_with_path(collect, arguments, completed, tree_name="inputs")
    wrong = sorted({n for n in names.values() if not n.isidentifier()})
    if wrong:
        raise ImportModelError("the names of dynamic dimensions have to be identifiers", found=wrong)
    return DynamicShapes(pytree.tree_map_only(str, lambda _: Dim.AUTO, completed), names, frozenset(named))


def _is_axes(given: Any) -> bool:
    """Whether this is what is said about one tensor: dimensions by axis."""
    if isinstance(given, Mapping):
        return bool(given) and all(isinstance(key, int) for key in given)
    return isinstance(given, (list, tuple)) and any(isinstance(d, (str, int, Dim)) for d in given)


def _completed(value: Any, given: Any, path: str) -> Any:
    """``given`` with None for the parts of ``value`` that it does not speak of, and with a dict of axes for tensors."""
    if isinstance(value, Mapping) and (given is None or isinstance(given, Mapping)):
        given = given or {}
        unknown = [k for k in given if k not in value]
        if unknown:
            raise ImportModelError("dynamic_shapes= speaks of arguments that the example inputs do not have",
                                   layer=path or None, found=unknown, expected=list(value))
        return {k: _completed(v, given.get(k), f"{path}.{k}".strip(".")) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and (given is None or isinstance(given, (list, tuple))):
        given = [None] * len(value) if given is None else given
        if len(given) != len(value):
            raise ImportModelError("dynamic_shapes= does not have one entry for every argument", layer=path or None,
                                   found=len(given), expected=len(value))
        parts = [_completed(v, g, f"{path}.{i}".strip(".")) for i, (v, g) in enumerate(zip(value, given, strict=True))]
        return tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, torch.Tensor) and given is not None:
        _check_axes(value, given, path)
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
        return {axis: Dim.STATIC if dim is None else dim for axis, dim in pairs}
    return given


def _check_axes(tensor: torch.Tensor, given: Any, path: str) -> None:
    fits = isinstance(given, (Mapping, list, tuple)) and (
        all(isinstance(a, int) and 0 <= a < tensor.ndim for a in given) if isinstance(given, Mapping)
        else len(given) == tensor.ndim)
    if not fits:
        raise ImportModelError("dynamic_shapes= does not fit an argument", layer=path or None, found=given,
                               expected=f"a dict from some of the axes 0 to {tensor.ndim - 1} to names, "
                                        f"or a sequence of {tensor.ndim} entries")
