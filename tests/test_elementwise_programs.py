"""Elementwise ONNX operators on every element type, at a shape that the generic schedule vectorizes, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from scipy import special

from narrowcast import Program
from narrowcast.compiler import compile

SHAPE = (1, 64)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5]
EPS = float(np.finfo(np.float32).eps)
KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int32": TensorProto.INT32,
         "int64": TensorProto.INT64, "uint8": TensorProto.UINT8, "bool": TensorProto.BOOL}
Reference = Callable[..., np.ndarray]

FUNCTIONS: dict[str, Reference] = {
    "Tan": np.tan, "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh, "Asin": np.arcsin, "Acos": np.arccos,
    "Atan": np.arctan, "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh, "Sin": np.sin, "Cos": np.cos,
    "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Erf": special.erf, "Sigmoid": special.expit, "Ceil": np.ceil,
    "Floor": np.floor, "Round": np.rint, "Reciprocal": np.reciprocal, "Softplus": lambda x: np.logaddexp(x, 0),
}
TESTS: dict[str, Reference] = {"IsNaN": np.isnan, "IsInf": np.isinf}
ARITHMETIC: dict[str, Reference] = {"Abs": np.abs, "Neg": np.negative, "Sign": np.sign}
COMPARISONS: dict[str, Reference] = {
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal}
BINARY: dict[str, Reference] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum, **COMPARISONS}
INTEGERS: dict[str, Reference] = {
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor, "Mod": np.mod,
    "Div": lambda a, b: (a / b).astype(a.dtype), "BitwiseNot": np.invert, "Shrink": lambda x: x}
SIGNED: dict[str, Reference] = {"PRelu": lambda x, slope: np.where(x < 0, x * slope, x)}
LOGIC: dict[str, Reference] = {
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "Not": np.logical_not, "Equal": np.equal}
OPERATORS: dict[str, Mapping[str, Reference]] = {
    "float32": {**FUNCTIONS, **TESTS, **ARITHMETIC, **BINARY, "Div": np.divide, "Mod": np.fmod,
                "Pow": lambda x, y: np.where(x == 1, 1, x ** y)},
    "float64": {**FUNCTIONS, **ARITHMETIC, **BINARY, "Div": np.divide},
    **{dtype: {**ARITHMETIC, **BINARY, **INTEGERS, **SIGNED} for dtype in ("int32", "int64")},
    "uint8": {**BINARY, **INTEGERS}, "bool": LOGIC,
}
UNARY = {*FUNCTIONS, *TESTS, *ARITHMETIC, "BitwiseNot", "Shrink", "Not"}


def operands(dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return [rng.random(SHAPE) < 0.5 for _ in range(2)]
    if dtype.startswith("float"):
        x, y = (rng.standard_normal(SHAPE).astype(np.float32).astype(dtype) * 2 for _ in range(2))
        x[0, :8], y[0, 8:16], y[0, 16:32] = SPECIAL, SPECIAL, x[0, 16:32]
        return [x, y]
    x, y = (rng.integers(0 if dtype == "uint8" else -20, 20, SHAPE).astype(dtype) for _ in range(2))
    return [x, np.where(y == 0, x.dtype.type(3), y)]


def program_of(dtype: str) -> Program:
    """One program with an output for every operator."""
    nodes = [helper.make_node(name, ["x"] if name in UNARY else ["x", "y"], [f"{name}.out"], name=name,
                              **({"fmod": 1} if name == "Mod" and dtype.startswith("float") else {}))
             for name in OPERATORS[dtype]]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, KINDS[dtype], SHAPE) for n in "xy"],
                              [onnx.ValueInfoProto(name=n.output[0]) for n in nodes])
    return compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), num_threads=1)


@pytest.mark.parametrize("dtype", OPERATORS)
def test_operators(dtype: str) -> None:
    x, y = operands(dtype)
    for (name, reference), found in zip(OPERATORS[dtype].items(), program_of(dtype)(x, y), strict=True):
        with np.errstate(all="ignore"):
            expected = reference(x) if name in UNARY else reference(x, y)
        if not dtype.startswith("float") or name in COMPARISONS or name in TESTS:
            np.testing.assert_array_equal(found, expected, err_msg=name)
            continue
        # A few units; an exponent multiplies the error of a logarithm, up to log(1e4) here.
        np.testing.assert_allclose(found, expected, rtol=(64 if name == "Pow" else 8) * EPS, atol=EPS, err_msg=name)


def test_elements_that_are_not_numbers_equal_nothing() -> None:
    class Comparisons(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x == x, x != x, x != 0.5, x.bool(), torch.logical_not(x), torch.where(x != x, torch.zeros_like(x), x)

    x = torch.tensor([*SPECIAL, 2.0, -3.0, *[0.25] * 6])[None]
    program = compile(Comparisons(), example_inputs=(x,), num_threads=1)
    for found, expected in zip(program(x.numpy()), Comparisons()(x), strict=True):
        np.testing.assert_array_equal(found, expected.numpy())
