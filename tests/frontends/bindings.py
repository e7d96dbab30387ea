"""What the bindings of an imported model are called and what they compute, in order."""

from __future__ import annotations

from narrowcast.frontends import ImportedModel
from narrowcast.ir import op_bindings, op_name


def names(imported: ImportedModel) -> list[str]:
    return [b.var.name for b in op_bindings(imported.mod["main"])]


def operations(imported: ImportedModel) -> list[str]:
    """Names of the operators; "item" for an element of a tuple."""
    return [op_name(b.value) or "item" for b in op_bindings(imported.mod["main"])]
