"""The stand-alone cast: one tensor read from one storage and written to another."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...dims import Dim, product_of, symbols_in
from ...precision import Storage
from ..target import Capabilities
from .epilogue import Position
from .kernel import Kernel, assume_extents, buffer_dtype
from .loops import Loops, for_each_vector
from .vector_math import bound
from .vector_memory import Index, flat_view, import_conversions, load_float, store_float


def build_cast(shape: Sequence[Dim], source: Storage, target: Storage, capabilities: Capabilities, threads: int,
               typical: Sequence[tuple[str, int]] = ()) -> Kernel:
    """A kernel ``func(source, symbols..., target)`` for a tensor of the given shape; both storages are those of floats.

    typical : an extent for every symbol of the shape.
    """
    size, lanes = product_of(shape), capabilities.vector_bits // 32
    symbols = symbols_in(size)
    with IRBuilder() as builder, T.prim_func():
        T.func_name(f"cast_{source.dtype}_to_{target.dtype}")
        T.func_attr({"tirx.noalias": True})
        given = T.arg("x0", T.buffer(tuple(shape), buffer_dtype(source)))
        for symbol in symbols:
            T.arg(symbol.name, symbol)
        x, y = (flat_view(b) for b in (given, T.arg("y0", T.buffer(tuple(shape), buffer_dtype(target)))))
        assume_extents(symbols)
        import_conversions(capabilities.features)

        def convert(position: Position, valid: Index) -> None:
            value = bound(load_float(x, position.column, lanes, valid, source))
            store_float(y, position.column, value, valid, target, capabilities.features)

        loops = Loops(capabilities.vector_bits // 8, threads, typical)
        for_each_vector(1, size, lanes, loops, convert)
    return Kernel(builder.get(), (), 0, tuple(symbols))
