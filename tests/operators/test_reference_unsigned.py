"""Unsigned integers of 16, 32 and 64 bits in the reference: exactly what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tvm import relax

from narrowcast.ir import Expr
from narrowcast.operators.reference import evaluate_call
from narrowcast.operators.semantics import tensor_of

DTYPES = st.sampled_from([np.uint16, np.uint32, np.uint64])
SHAPE = (3, 4)
BINARY: dict[str, tuple[Callable[..., Expr], Callable[..., np.ndarray]]] = {
    "add": (relax.op.add, np.add), "subtract": (relax.op.subtract, np.subtract),
    "multiply": (relax.op.multiply, np.multiply), "divide": (relax.op.divide, np.floor_divide),
    "floor_mod": (relax.op.floor_mod, np.mod), "mod": (relax.op.mod, np.fmod),
    "maximum": (relax.op.maximum, np.maximum), "minimum": (relax.op.minimum, np.minimum),
    "less": (relax.op.less, np.less), "greater_equal": (relax.op.greater_equal, np.greater_equal),
    "equal": (relax.op.equal, np.equal), "bitwise_xor": (relax.op.bitwise_xor, np.bitwise_xor),
}


def evaluated(function: Callable[..., Expr], *operands: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
    variables = [relax.Var(f"x{i}", relax.TensorType(a.shape, a.dtype.name)) for i, a in enumerate(operands)]
    call = relax.BlockBuilder().normalize(function(*variables))
    value = evaluate_call(call, [tensor_of(a) for a in operands])
    return tuple(v.numpy() for v in value) if isinstance(value, tuple) else value.numpy()


def operands(count: int) -> st.SearchStrategy[list[np.ndarray]]:
    return DTYPES.flatmap(lambda d: st.lists(arrays.arrays(d, SHAPE), min_size=count, max_size=count))


@pytest.mark.parametrize("name", list(BINARY))
@settings(max_examples=15, deadline=None)
@given(operands(2))
def test_binary(name: str, xs: list[np.ndarray]) -> None:
    a, b = xs
    function, expected = BINARY[name]
    b = np.maximum(b, 1) if name in ("divide", "mod", "floor_mod") else b
    found = evaluated(function, a, b)
    want = expected(a, b)
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found, want)


@settings(max_examples=30, deadline=None)
@given(operands(1))
def test_reductions_and_order(xs: list[np.ndarray]) -> None:
    (x,) = xs
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.max(v, 1), x), x.max(axis=1))
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.min(v, 1), x), x.min(axis=1))
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.argmax(v, 1), x), x.argmax(axis=1))
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.sum(v, 0), x), x.sum(axis=0, dtype=x.dtype))
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.prod(v, 0), x), x.prod(axis=0, dtype=x.dtype))
    values, _ = evaluated(lambda v: relax.op.topk(v, 2, 1, "both", True, "int64"), x)
    np.testing.assert_array_equal(values, np.sort(x, axis=1)[:, :-3:-1])


@settings(max_examples=30, deadline=None)
@given(operands(1))
def test_movement_and_conversion(xs: list[np.ndarray]) -> None:
    (x,) = xs
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.flip(v, 1), x), x[:, ::-1])
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.astype(v, "float32"), x), x.astype(np.float32))
    np.testing.assert_array_equal(evaluated(lambda v: relax.op.astype(v, "int16"), x), x.astype(np.int16))
    np.testing.assert_array_equal(evaluated(relax.op.bitwise_not, x), ~x)


@pytest.mark.parametrize("reduction", ["add", "max", "min"])
def test_scattering_keeps_the_order_of_large_numbers(reduction: str) -> None:
    x, index, updates = (np.array(v, t) for v, t in (
        ([2 ** 63, 5, 7], np.uint64), ([0, 1], np.int64), ([3, 2 ** 64 - 1], np.uint64)))
    want = {"add": [2 ** 63 + 3, 4, 7], "max": [2 ** 63, 2 ** 64 - 1, 7], "min": [3, 5, 7]}[reduction]
    found = evaluated(lambda *v: relax.op.scatter_elements(*v, 0, reduction), x, index, updates)
    np.testing.assert_array_equal(found, np.array(want, np.uint64))
