"""Where the values of an ONNX graph are kept while it is translated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx

from .onnx_ops import Value
from .onnx_types import type_name


class Unknown:
    """The result of an operator without translation: what depends on it is not translated either."""


UNKNOWN = Unknown()
Result: TypeAlias = "Value | Unknown | None"
Captures: TypeAlias = Callable[[Result], Result]


@dataclass
class Scope:
    """Values by name, and the element types that the model declares for them; initializers become arrays when they
    are read. ``None`` is an argument that is left out.

    captures : what the values around are here, where this is the scope of a function of its own.
    """

    values: dict[str, Result]
    initializers: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    parent: Scope | None = None
    types: dict[str, str | None] = field(default_factory=dict)
    captures: Captures | None = None

    def declared(self, name: str) -> str | None:
        """The element type that the model declares for ``name``, here or around; None where it is unknown."""
        if name in self.initializers:
            return type_name(self.initializers[name].data_type)
        if name in self.types or name in self.values:
            return self.types.get(name)
        return self.parent.declared(name) if self.parent is not None else None

    def visible(self, names: Iterable[str]) -> set[str]:
        """Those of ``names`` that have a value here or around."""
        asked = set(names)
        own = {n for n in asked if n in self.values or n in self.initializers}
        return own if self.parent is None else own | self.parent.visible(asked - own)


@dataclass(frozen=True)
class Place:
    """Where a node stands: the values around it, the operator sets, and the name of what it emits where that is not
    the node's own (the call of a function)."""

    scope: Scope
    opsets: Mapping[str, int]
    name: str | None
