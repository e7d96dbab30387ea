"""What an epilogue takes from its group; its code is tested through the kernels that use it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.epilogue import Epilogue, merge_dimensions, row_index
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import capabilities
from narrowcast.errors import UnsupportedOperatorError
from narrowcast.precision import FLOAT32, Precision

from .groups import NATIVE, group_of

op, nn = relax.op, relax.op.nn
BIAS = np.arange(5, dtype=np.float32)
WEIGHT = np.ones((3, 5), np.float32)
Chain = list[Callable[[relax.Expr], relax.Expr]]


def epilogue(chain: Chain, *, take_bias: bool = True) -> Epilogue:
    """The epilogue of a product [2, 3] x [3, 5] that is followed by a chain of operators."""
    def body(b: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        var = b.emit(op.matmul(p[0], relax.const(WEIGHT)), "layer")
        for i, step in enumerate(chain):
            var = b.emit(step(var), f"step{i}")
        return var

    group = group_of("matmul", [(2, 3)], body)
    request = KernelRequest(group, Precision.FP32, (FLOAT32,), (FLOAT32,))
    return Epilogue(request, capabilities(NATIVE), group.anchor, take_bias=take_bias)


def add_bias(x: relax.Expr) -> relax.Expr:
    return op.add(x, relax.const(BIAS))


def test_the_first_constant_is_the_bias() -> None:
    found = epilogue([add_bias, nn.relu])
    np.testing.assert_array_equal(found.bias, BIAS)
    assert found.constants == [] and not found.is_identity
    assert epilogue([add_bias]).is_identity


@pytest.mark.parametrize(("step", "bias"), [
    (lambda x: op.subtract(x, relax.const(BIAS)), -BIAS),
    (lambda x: op.add(relax.const(BIAS), x), BIAS),
    (lambda x: op.add(x, relax.const(np.float32(2.0))), np.full(5, 2.0)),
    (lambda x: op.add(x, relax.const(BIAS[None])), BIAS),
])
def test_forms_of_a_bias(step: Callable[[relax.Expr], relax.Expr], bias: np.ndarray) -> None:
    np.testing.assert_array_equal(epilogue([step]).bias, bias)


@pytest.mark.parametrize("chain", [
    [nn.relu, add_bias],
    [lambda x: op.add(x, relax.const(np.ones((2, 1), np.float32)))],
    [lambda x: op.subtract(relax.const(BIAS), x)],
    [lambda x: op.add(x, x)],
])
def test_what_is_not_a_bias_stays_in_the_chain(chain: Chain) -> None:
    found = epilogue(chain)
    assert found.bias is None and not found.is_identity


def test_a_bias_stays_when_nobody_asks_for_it() -> None:
    found = epilogue([add_bias], take_bias=False)
    assert found.bias is None
    np.testing.assert_array_equal(found.constants[0], BIAS)


@pytest.mark.parametrize(("chain", "together"), [
    ([add_bias, nn.relu], 1), ([add_bias, nn.gelu], 8), ([op.sigmoid, nn.relu], 8),
    ([op.exp, lambda x: op.greater(x, relax.const(np.float32(2.0)))], 1)])
def test_polynomials_are_computed_several_at_a_time(chain: Chain, together: int) -> None:
    """Not where results are masks, which are no vectors of numbers."""
    assert epilogue(chain).together == together


def test_operands_have_to_come_from_outside() -> None:
    def body(b: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        before = b.emit(nn.relu(p[1]), "before")
        return b.emit(op.add(b.emit(op.matmul(p[0], relax.const(WEIGHT)), "layer"), before), "add")

    group = group_of("matmul", [(2, 3), (2, 5)], body)
    request = KernelRequest(group, Precision.FP32, (FLOAT32,) * 2, (FLOAT32,))
    with pytest.raises(UnsupportedOperatorError, match="layer: an operand of the epilogue"):
        Epilogue(request, capabilities(NATIVE), group.anchor)


def test_merge_dimensions() -> None:
    assert merge_dimensions([(2, 3, 4), (2, 3, 4)]) == [(24,), (24,)]
    assert merge_dimensions([(2, 3, 4), (2, 1, 1)]) == [(2, 12), (2, 1)]
    assert merge_dimensions([(2, 1, 4), (1, 1, 4)]) == [(2, 4), (1, 4)]
    assert merge_dimensions([(1, 1)]) == [(1,)]


@pytest.mark.parametrize(("shape", "full"), [((2, 3), (2, 3)), ((1, 3), (2, 3)), ((2, 1), (2, 3)), ((1, 1), (2, 3)),
                                             ((2, 1, 4), (2, 3, 4)), ((1, 3, 1), (2, 3, 4))])
def test_row_index(shape: tuple[int, ...], full: tuple[int, ...]) -> None:
    rows = np.broadcast_to(np.arange(np.prod(shape)).reshape(shape), full).reshape(-1)
    found = [row_index(shape, full, tvm.tirx.const(row, "int32")) for row in range(rows.size)]
    assert [f if isinstance(f, int) else int(f.value) for f in found] == rows.tolist()
