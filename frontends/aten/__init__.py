"""How each ATen operator is written in the normal form: one small function per operator, in one table.

A key is the operator's name without the namespace (``"add"`` for every overload of ``aten.add`` and for ``aten.add_``),
or with the overload (``"upsample_nearest2d.vec"``) where overloads take their arguments in another order; operators
outside of ``aten`` keep their namespace (``"quantized_decomposed.quantize_per_tensor"``). A function gets the context
and the arguments in the order of the operator's schema, keyword-only ones by keyword.
"""

from __future__ import annotations

from . import (
    activations,
    elementwise,
    indexing,
    movement,
    network,
    padding,
    pooling,
    quantization,
    recurrent,
    reduction,
    slicing,
)
from .context import Context, Handler, Value

__all__ = ["TABLE", "Context", "Handler", "Value"]

TABLE: dict[str, Handler] = {
    **elementwise.TABLE, **activations.TABLE, **network.TABLE, **pooling.TABLE, **movement.TABLE, **reduction.TABLE,
    **slicing.TABLE, **padding.TABLE, **indexing.TABLE, **recurrent.TABLE, **quantization.TABLE,
}
