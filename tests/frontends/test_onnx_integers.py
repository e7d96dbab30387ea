"""Arithmetic on integers of every type, through the importer and through compiled programs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import narrowcast
from narrowcast.errors import ImportModelError
from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.reference import run, to_numpy
from narrowcast.operators.semantics import tensor_of

DTYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


Case = tuple[str, list[np.ndarray], int, dict[str, object], np.ndarray]
"""An operator, its operands, how many of them, the last ones, are initializers, its attributes, and the result."""


def model(cases: list[Case]) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A model with a node for every case, and its inputs."""
    nodes, infos, weights, own = [], [], [], []
    for i, (op, inputs, known, attributes, _) in enumerate(cases):
        names = [f"x{i}_{j}" for j in range(len(inputs))]
        nodes.append(helper.make_node(op, names, [f"y{i}"], **attributes))
        for j, (name, array) in enumerate(zip(names, inputs, strict=True)):
            if j >= len(inputs) - known:
                weights.append(numpy_helper.from_array(array, name))
                continue
            infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
            own.append(array)
    outputs = [onnx.ValueInfoProto(name=n.output[0]) for n in nodes]
    graph = helper.make_graph(nodes, "integers", infos, outputs, weights)
    return helper.make_model(graph, ir_version=12, opset_imports=[helper.make_opsetid("", 28)]), own


def check(cases: list[Case], *, compiled: bool = True) -> None:
    """The reference, and the program, give the results."""
    proto, own = model(cases)
    found = [to_numpy(run(import_onnx(proto, own).mod, [tensor_of(a) for a in own]))]
    if compiled:
        results = narrowcast.compile(proto, num_threads=1)(*own)
        found.append(list(results) if isinstance(results, tuple) else [results])
    for results in found:
        for result, (op, *_, want) in zip(results, cases, strict=True):
            np.testing.assert_array_equal(result, want, err_msg=op)
            assert result.dtype == want.dtype


def wrapped(values: list[int], dtype: type) -> np.ndarray:
    """Whole numbers cut to the bits of a type."""
    info = np.iinfo(dtype)
    size = info.max - info.min + 1
    return np.array([(v - info.min) % size + info.min for v in values], dtype)


def operands(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """All signs, the ends of the range, and the quotient of the least number and -1."""
    info, low = np.iinfo(dtype), -7 if np.iinfo(dtype).min else 7
    minus = -1 if info.min else info.max
    x = np.array([info.min, info.max, 7, low, 7, low, info.min, info.min, 100, 0], dtype)
    y = np.array([1, 2, 2, 2, 3, 3, info.max, minus, minus, low], dtype)
    return x, y


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted(x: np.ndarray, counts: list[int], direction: str) -> np.ndarray:
    values = [int(a) << c if direction == "LEFT" else int(a) >> c for a, c in zip(x, counts, strict=True)]
    return wrapped(values, x.dtype.type)


def cases_of(dtype: type) -> list[Case]:
    """What every type of integers has."""
    x, y = operands(dtype)
    info, bits = np.iinfo(dtype), 8 * np.dtype(dtype).itemsize
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    cases: list[Case] = [
        ("Div", [x, y], 0, {}, wrapped([truncated(a, b) for a, b in pairs], dtype)),
        ("Mod", [x, y], 0, {}, wrapped([a % b for a, b in pairs], dtype)),
        ("Mod", [x, y], 0, {"fmod": 1}, wrapped([a - truncated(a, b) * b for a, b in pairs], dtype)),
        ("Max", [x, y], 0, {}, np.maximum(x, y)), ("Min", [x, y], 0, {}, np.minimum(x, y)),
        ("Less", [x, y], 0, {}, x < y), ("Equal", [x, y], 0, {}, x == y),
        ("Clip", [x, np.array(3, dtype), np.array(6, dtype)], 2, {}, np.clip(x, 3, 6)),
        ("Sign", [x], 0, {}, np.sign(x)), ("BitwiseNot", [x], 0, {}, ~x),
    ]
    some = np.array([info.min, info.max, 5, 5, info.min], dtype)
    for direction in ("LEFT", "RIGHT"):
        for known, counts in ((1, [0, 1, bits - 1, 2, 3]), (0, [0, 1, bits, bits - 1, bits + 3])):
            cases.append(("BitShift", [some, np.array(counts, dtype)], known, {"direction": direction},
                          shifted(some, counts, direction)))
    return cases


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_order_and_bits(dtype: type) -> None:
    """Shifts by more bits than there are too, unless they are known to be fewer."""
    check(cases_of(dtype), compiled=dtype in (np.int8, np.int64, np.uint16, np.uint64))


def test_division_by_nothing_does_not_trap() -> None:
    """ONNX leaves it undefined."""
    x, y = np.array([7, -7], np.int32), np.zeros(2, np.int32)
    check([("Div", [x, y], 0, {}, x), ("Mod", [x, y], 0, {}, y)])


def test_a_known_divisor_of_nothing_is_refused() -> None:
    x, y = np.array([7, -7], np.int32), np.array([0, 1], np.int32)
    proto, own = model([("Div", [x, y], 1, {}, x)])
    with pytest.raises(ImportModelError, match="divided by 0"):
        import_onnx(proto, own)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_powers_of_integers(dtype: type) -> None:
    x = np.array([2, -3, 0, 1, -1, -1, 3, 0, 1, 5], dtype)
    y = [5, 3, 0, 100, 101, 100, 2, 7, 90, 1]
    want = wrapped([int(a) ** b for a, b in zip(x, y, strict=True)], dtype)
    check([("Pow", [x, np.array(y, kind)], 0, {}, want) for kind in (np.int32, np.uint8, np.float32)],
          compiled=dtype is np.int32)


def test_negative_and_broken_powers_of_integers() -> None:
    """The whole part of the fraction that they are."""
    check([("Pow", [np.array([2, 1, -1, -1, -5], np.int32), np.array([-1, -3, -3, -2, -1], np.int32)], 0, {},
            np.array([0, 1, -1, 1, 0], np.int32)),
           ("Pow", [np.array([2, 9, 10], np.int32), np.array([0.5, 0.5, 1.5], np.float32)], 0, {},
            np.array([1, 3, 31], np.int32))])


def test_reductions_of_integers() -> None:
    """Their whole parts."""
    x = np.array([[4, 3, 4, 1], [-2, -5, 0, 0]], np.int32)
    wanted = {"ReduceMean": [3, -1], "ReduceL2": [6, 5], "ReduceSumSquare": [42, 29], "ReduceL1": [12, 7],
              "ReduceMax": [4, 0], "ReduceProd": [48, 0]}
    check([(op, [x, np.array([1])], 1, {"keepdims": 0}, np.array(want, np.int32)) for op, want in wanted.items()])


def test_remainders_of_floats() -> None:
    """They have the sign of the divisor, or with fmod that of the dividend, and are exact for any quotient."""
    x, y = np.float32([1e10, -7.5, 7.5, 3e38, -3, 3, 5]), np.float32([3, 2, -2, 1.5, np.inf, np.inf, 5])
    for fmod, function in ((0, np.mod), (1, np.fmod)):
        check([("Mod", [x, y], 0, {"fmod": fmod}, function(x, y))])
