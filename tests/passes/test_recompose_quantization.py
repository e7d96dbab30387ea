"""RecomposeFakeQuantize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from narrowcast import ir
from narrowcast.ir import Expr
from narrowcast.operators import fake_quantize
from narrowcast.passes import RecomposeFakeQuantize

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, names_of, ops_of

op, nn = relax.op, relax.op.nn


def quantize(net: Net, x: Expr, scale: float = 0.1, zero_point: int = 3, dtype: str = "uint8", *, name: str = "q",
             bounds: tuple[int, int] | None = None) -> relax.Var:
    """As the frontends write it."""
    low, high = bounds or (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    steps = net(op.round(net(op.divide(x, const(scale)), f"{name}.steps")), f"{name}.steps")
    if zero_point:
        steps = net(op.add(steps, const(zero_point)), f"{name}.steps")
    return net(op.astype(net(op.clip(steps, float(low), float(high)), f"{name}.steps"), dtype), name)


def dequantize(net: Net, q: Expr, scale: float = 0.1, zero_point: int = 3, *, name: str = "d") -> relax.Var:
    steps = net(op.astype(q, "float32"), f"{name}.steps")
    if zero_point:
        steps = net(op.subtract(steps, const(zero_point)), f"{name}.steps")
    return net(op.multiply(steps, const(scale)), name)


FORMS = {"uint8": ("uint8", 3, 0, 255), "no zero point": ("uint8", 0, 0, 255), "int8": ("int8", -5, -128, 127),
         "int16": ("int16", 300, -2**15, 2**15 - 1)}


@pytest.mark.parametrize(("dtype", "zero_point", "low", "high"), FORMS.values(), ids=FORMS)
def test_there_and_back_is_one_operator(dtype: str, zero_point: int, low: int, high: int) -> None:
    net, expected = Net((2, 50)), Net((2, 50))
    before = net.module(dequantize(net, quantize(net, net.x, 0.1, zero_point, dtype), 0.1, zero_point))
    scale = float(np.float32(0.1))
    after = expected.module(expected(fake_quantize(expected.x, scale=scale, zero_point=zero_point, low=low, high=high),
                                     "q"))
    assert_equal(apply_checked(RecomposeFakeQuantize(), before), after)


def test_narrower_bounds_are_kept() -> None:
    net = Net((2, 50))
    after = apply_checked(RecomposeFakeQuantize(), net.module(dequantize(net, quantize(net, net.x, bounds=(0, 127)))))
    (binding,) = ir.op_bindings(after["main"])
    assert (int(binding.value.attrs.low), int(binding.value.attrs.high)) == (0, 127)


MOVEMENTS: dict[str, Callable[[Expr], Expr]] = {
    "reshape": lambda q: op.reshape(q, (6, 16)), "max pool": lambda q: nn.max_pool2d(q, 2, 2),
    "slice": lambda q: op.strided_slice(q, [1], [0], [2]), "permute": lambda q: op.permute_dims(q, [0, 2, 3, 1]),
    "pad with the zero point": lambda q: nn.pad(q, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=3),
}


@pytest.mark.parametrize("move", MOVEMENTS.values(), ids=MOVEMENTS)
def test_integers_that_only_move_become_floats(move: Callable[[Expr], Expr]) -> None:
    net = Net((2, 3, 4, 4))
    q = quantize(net, net.x)
    after = apply_checked(RecomposeFakeQuantize(), net.module(dequantize(net, net(move(q), "move"))))
    assert names_of(after) == ["q", "move"] and ops_of(after)[0] == "fake_quantize"


def test_integers_that_something_else_reads_stay_for_it() -> None:
    net = Net((2, 50))
    q = quantize(net, net.x)
    both = net.module(dequantize(net, q), net(op.astype(q, "float32"), "levels"))
    after = apply_checked(RecomposeFakeQuantize(), both)
    assert ops_of(after).count("fake_quantize") == 1 and "clip" in ops_of(after)


def test_tensors_of_one_grid_are_joined() -> None:
    net = Net((2, 5), (2, 3))
    parts = [quantize(net, x, name=name) for x, name in zip(net.inputs, ("left", "right"), strict=True)]
    after = apply_checked(RecomposeFakeQuantize(), net.module(dequantize(net, net(op.concat(parts, 1), "join"))))
    assert names_of(after) == ["left", "right", "join"]


@pytest.mark.parametrize("other", [
    lambda net: dequantize(net, quantize(net, net.x), 0.2),
    lambda net: dequantize(net, quantize(net, net.x), 0.1, 4),
    lambda net: dequantize(net, net(nn.pad(quantize(net, net.x), [0, 0, 1, 1], pad_value=0), "pad")),
    lambda net: dequantize(net, net(op.maximum(quantize(net, net.x), relax.const(np.uint8(9))), "clamp")),
], ids=["scale", "zero point", "pad with another level", "arithmetic on levels"])
def test_other_integers_stay(other: Callable[[Net], relax.Var]) -> None:
    net = Net((2, 50))
    assert_unchanged(RecomposeFakeQuantize(), net.module(other(net)))
