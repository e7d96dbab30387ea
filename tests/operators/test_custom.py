"""Types of narrowcast's own Relax operators."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.operators import hard_sigmoid, hard_swish


def var(name: str, *shape: object) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, "float32"))


@pytest.mark.parametrize("make", [hard_swish, hard_sigmoid])
def test_elementwise_operators_keep_the_type(make: object) -> None:
    x = var("x", 2, 3, 4)
    result = ir.GraphBuilder([x]).emit(make(x), "y")  # type: ignore[operator]
    tvm.ir.assert_structural_equal(result.ty, x.ty)
    assert ir.op_name(make(x)) == f"narrowcast.{make.__name__}"  # type: ignore[operator, attr-defined]


def test_operators_are_pure() -> None:
    """Passes may drop and share their calls."""
    for name in ("hard_swish", "hard_sigmoid", "lstm", "gru", "rnn"):
        assert bool(tvm.ir.Op.get(f"narrowcast.{name}").get_attr("FPurity"))
