"""Types of narrowcast's own Relax operators."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.errors import VerificationError
from narrowcast.operators import hard_sigmoid, hard_swish, lstm


def var(name: str, *shape: object) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, "float32"))


def lstm_inputs(directions: int, steps: object = 5) -> list[relax.Var]:
    return [var("x", steps, 2, 3), var("w", directions, 16, 3), var("r", directions, 16, 4), var("b", directions, 16),
            var("h0", directions, 2, 4), var("c0", directions, 2, 4)]


@pytest.mark.parametrize("make", [hard_swish, hard_sigmoid])
def test_elementwise_operators_keep_the_type(make: object) -> None:
    x = var("x", 2, 3, 4)
    result = ir.GraphBuilder([x]).emit(make(x), "y")  # type: ignore[operator]
    tvm.ir.assert_structural_equal(result.ty, x.ty)
    assert ir.op_name(make(x)) == f"narrowcast.{make.__name__}"  # type: ignore[operator, attr-defined]


@pytest.mark.parametrize("directions", [1, 2])
def test_lstm_gives_all_states_and_the_last_ones(directions: int) -> None:
    inputs = lstm_inputs(directions)
    builder = ir.GraphBuilder(inputs)
    result = builder.emit(lstm(*inputs), "lstm")
    assert isinstance(result.ty, relax.TupleType)
    fields = [builder.emit(relax.TupleGetItem(result, i), f"lstm.{i}") for i in range(3)]
    assert [ir.shape_of(f) for f in fields] == [(5, directions, 2, 4), (directions, 2, 4), (directions, 2, 4)]
    mod = ir.with_main(tvm.IRModule(), builder.finish(fields))
    relax.analysis.well_formed(mod)
    assert "narrowcast.lstm" in mod.script()
    tvm.ir.assert_structural_equal(mod, tvm.ir.load_json(tvm.ir.save_json(mod)))


def test_lstm_wants_static_shapes() -> None:
    inputs = lstm_inputs(1, steps=tvm.tirx.Var("n", "int64"))
    with pytest.raises((VerificationError, RuntimeError), match="a static shape was required"):
        ir.GraphBuilder(inputs).emit(lstm(*inputs), "lstm")


def test_operators_are_pure() -> None:
    """Passes may drop and share their calls."""
    for name in ("hard_swish", "hard_sigmoid", "lstm"):
        assert bool(tvm.ir.Op.get(f"narrowcast.{name}").get_attr("FPurity"))
