"""The functions of a lowered module."""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import relax


class Functions:
    """The functions of a lowered module but ``main``; equal kernels are one."""

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self._shared: dict[int, tuple[tvm.tirx.PrimFunc, tvm.ir.GlobalVar]] = {}
        self._names: set[str] = {"main"}

    def add(self, func: relax.Function | tvm.tirx.PrimFunc, name: str) -> tvm.ir.GlobalVar:
        """A new function, called ``name`` as far as that is a symbol and not taken."""
        symbol = re.sub(r"\W", "_", name)
        while symbol in self._names:
            symbol += "_"
        self._names.add(symbol)
        return self.builder.add_func(func.with_attr("global_symbol", symbol), symbol)

    def kernel(self, func: tvm.tirx.PrimFunc, name: str) -> tvm.ir.GlobalVar:
        """The GlobalVar of ``func``, shared with an equal function that is there already."""
        for attribute in ("global_symbol", "layer"):
            if attribute in (func.attrs or {}):
                func = func.without_attr(attribute)
        key = tvm_ffi.structural_hash(func)
        known = self._shared.get(key)
        if known is None or not tvm_ffi.structural_equal(known[0], func):
            known = self._shared[key] = func, self.add(func, name)
        return known[1]
