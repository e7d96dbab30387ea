"""Small modules in normal form for the tests of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.operators.reference import run
from narrowcast.passes.base import Pass, require_well_formed

EPS = float(np.finfo(np.float32).eps)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Seeded float32 values of about unit variance."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def const(value: object) -> ir.Constant:
    """A float32 constant of anything that NumPy takes."""
    return ir.constant(np.asarray(value, dtype=np.float32))


class Net:
    """A GraphBuilder that also makes the inputs: ``net.x`` of the first shape, ``net.inputs`` of all."""

    def __init__(self, *shapes: Sequence[int], dtype: str = "float32") -> None:
        self.inputs = [relax.Var(f"in{i}", relax.TensorType(tuple(s), dtype)) for i, s in enumerate(shapes)]
        self.x = self.inputs[0]
        self.builder = ir.GraphBuilder(self.inputs)

    def __call__(self, expr: ir.Expr, name: str = "op") -> relax.Var:
        return self.builder.emit(expr, name)

    def module(self, *outputs: relax.Var) -> tvm.IRModule:
        """The module that returns ``outputs``."""
        return ir.with_main(tvm.IRModule(), self.builder.finish(list(outputs)))


def ops_of(mod: tvm.IRModule) -> list[str]:
    """The operator names of ``main`` without their namespace, in order."""
    return [str(ir.op_name(b.value)).split(".")[-1] for b in ir.op_bindings(mod["main"])]


def names_of(mod: tvm.IRModule) -> list[str]:
    """The binding names of ``main``, in order."""
    return [b.var.name for b in ir.op_bindings(mod["main"])]


def random_inputs(mod: tvm.IRModule, seed: int = 0) -> list[torch.Tensor]:
    """One float tensor per parameter of ``main``."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ir.shape_of(p), generator=generator) for p in mod["main"].params]


def apply_checked(step: Pass | Callable[[tvm.IRModule], tvm.IRModule], mod: tvm.IRModule,
                  *, terms: int = 64) -> tvm.IRModule:
    """Apply a pass and check what every pass promises: the argument stays, the result is well formed and computes the
    same to the rounding of ``terms`` float32 operations on the way to an output."""
    text = mod.script(show_meta=True)
    after = step(mod)
    assert mod.script(show_meta=True) == text, "the pass wrote into its argument"
    require_well_formed(after, "the pass")
    inputs = random_inputs(mod)
    for expected, found in zip(run(mod, inputs), run(after, inputs), strict=True):
        tolerance = terms * EPS * max(float(expected.abs().max()), 1.0)
        torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance)
    return after


def assert_unchanged(step: Pass, mod: tvm.IRModule) -> None:
    """Check that the pass does nothing to ``mod``."""
    tvm.ir.assert_structural_equal(apply_checked(step, mod), mod)


def assert_equal(found: tvm.IRModule, expected: tvm.IRModule) -> None:
    """Equal operators, attributes, arguments and names; constants to float32's rounding."""
    assert ops_of(found) == ops_of(expected)
    left, right = ir.op_bindings(found["main"]), ir.op_bindings(expected["main"])
    for a, b in zip(left, right, strict=True):
        assert str(a.value.attrs) == str(b.value.attrs)
        for x, y in zip(a.value.args, b.value.args, strict=True):
            if isinstance(y, ir.Constant):
                np.testing.assert_allclose(ir.constant_value(x), ir.constant_value(y), rtol=8 * EPS, atol=8 * EPS)
            elif isinstance(y, relax.Var):
                assert x.name == y.name
            else:
                tvm.ir.assert_structural_equal(x, y)
