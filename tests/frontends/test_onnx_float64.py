"""float64 inputs: kept where the type matters, narrowed where a network begins, on the way in and out of programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowcast
from narrowcast.frontends.onnx import import_onnx
from narrowcast.ir import op_bindings, op_name
from narrowcast.operators.reference import run, to_numpy
from narrowcast.operators.semantics import tensor_of

RNG = np.random.default_rng(0)
# Magnitudes that float32 does not have, and differences that it does not see.
A = RNG.standard_normal((3, 4)) * 10.0 ** RNG.integers(-120, 120, (3, 4))
B = RNG.standard_normal((3, 4)) * 10.0 ** RNG.integers(-120, 120, (3, 4))
NEAR = 1e9 + RNG.standard_normal((3, 4)) * 1e-6
TWO_AXES, FIRST_AXIS = np.int64([3, 2, 2]), np.int64([0])


def model_of(op: str, inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray] | None = None,
             outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    constants = constants or {}
    node = helper.make_node(op, [*inputs, *constants], [f"y{i}" for i in range(outputs)], **attributes)
    return model_with([node], inputs, constants, [f"y{i}" for i in range(outputs)])


def model_with(nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray],
               outputs: list[str]) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in inputs.items()]
    return helper.make_model(
        helper.make_graph(nodes, "wide", infos, [onnx.ValueInfoProto(name=n) for n in outputs],
                          [numpy_helper.from_array(a, n) for n, a in constants.items()]),
        ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


CASES: dict[str, tuple[onnx.ModelProto, list[np.ndarray]]] = {
    **{op: (model_of(op, {"a": A}), [A]) for op in ("Abs", "Neg", "Identity", "Flatten", "Transpose")},
    **{op: (model_of(op, {"a": A, "b": B}), [A, B]) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    **{op: (model_of(op, {"a": NEAR, "b": NEAR[::-1].copy()}), [NEAR, NEAR[::-1].copy()])
       for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Sub")},
    "Add of a constant": (model_of("Add", {"a": A}, {"b": B}), [A]),
    "Sub from a constant": (model_with([helper.make_node("Sub", ["b", "a"], ["y"])], {"a": A}, {"b": B}, ["y"]), [A]),
    "Mul by a known float32 of a function": (model_with([
        helper.make_node("Constant", [], ["half"], value_float=0.5), helper.make_node("CastLike", ["half", "a"], ["h"]),
        helper.make_node("Mul", ["a", "h"], ["y"])], {"a": A}, {}, ["y"]), [A]),
    "Sqrt": (model_of("Sqrt", {"a": np.abs(A)}), [np.abs(A)]),
    "Sum": (model_of("Sum", {"a": A, "b": B, "c": A}), [A, B, A]),
    "Where": (model_of("Where", {"c": A > 0, "a": A, "b": B}), [A > 0, A, B]),
    "Reshape": (model_of("Reshape", {"a": A}, {"s": TWO_AXES}), [A]),
    "Expand": (model_of("Expand", {"a": A}, {"s": np.int64([2, 3, 4])}), [A]),
    "Tile": (model_of("Tile", {"a": A}, {"s": np.int64([2, 3])}), [A]),
    "Unsqueeze": (model_of("Unsqueeze", {"a": A}, {"s": FIRST_AXIS}), [A]),
    "Squeeze": (model_of("Squeeze", {"a": A[None]}, {"s": FIRST_AXIS}), [A[None]]),
    "Concat": (model_of("Concat", {"a": A, "b": B}, axis=1), [A, B]),
    "Slice": (model_of("Slice", {"a": A}, {"s": FIRST_AXIS, "e": np.int64([2])}), [A]),
    "Gather": (model_of("Gather", {"a": A}, {"i": np.int64([2, 0, -1])}), [A]),
    "Split": (model_of("Split", {"a": A}, outputs=2, axis=1, num_outputs=2), [A]),
    "Cast to int64": (model_of("Cast", {"a": NEAR}, to=TensorProto.INT64), [NEAR]),
    "Cast to bool": (model_of("Cast", {"a": A * 1e-200}, to=TensorProto.BOOL), [A * 1e-200]),
    **{op: (model_of(op, {"a": NEAR}, {"i": np.int64([1])}, keepdims=0), [NEAR])
       for op in ("ReduceMax", "ReduceMin", "ReduceSum")},
}


@pytest.mark.parametrize("name", CASES)
def test_operators_that_keep_float64(name: str) -> None:
    """To the bit, but for sums, whose order is free."""
    model, inputs = CASES[name]
    expected = ReferenceEvaluator(model).run(None, dict(zip((i.name for i in model.graph.input), inputs, strict=True)))
    imported = import_onnx(model)
    program = narrowcast.compile(model, num_threads=1)
    compiled = program(*inputs)
    for found in (to_numpy(run(imported.mod, [tensor_of(a) for a in inputs])),
                  compiled if isinstance(compiled, tuple) else (compiled,)):
        for y, wanted in zip(found, expected, strict=True):
            assert y.dtype == wanted.dtype
            np.testing.assert_allclose(y, wanted, rtol=4 * np.finfo(np.float64).eps if "Reduce" in name else 0, atol=0)


def test_bits_of_float64() -> None:
    """ONNX Runtime and the reference implementation lack the operator for it: NumPy's view is the definition."""
    model = model_of("BitCast", {"a": A}, to=TensorProto.INT64)
    model.opset_import[0].version = 26
    np.testing.assert_array_equal(narrowcast.compile(model, num_threads=1)(A), A.view(np.int64))
    back = model_of("BitCast", {"a": A.view(np.int64)}, to=TensorProto.DOUBLE)
    back.opset_import[0].version = 26
    np.testing.assert_array_equal(narrowcast.compile(back, num_threads=1)(A.view(np.int64)), A)


def test_a_network_is_computed_in_float32() -> None:
    """The product and what follows it; the differences of large numbers before it are exact."""
    weight, bias = RNG.standard_normal((4, 5)), RNG.standard_normal(5)
    nodes = [helper.make_node("Sub", ["x", "origin"], ["d"]), helper.make_node("MatMul", ["d", "w"], ["p"]),
             helper.make_node("Add", ["p", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    inputs = {"x": 1e9 + RNG.standard_normal((3, 4))}
    model = model_with(nodes, inputs, {"origin": np.float64([1e9]), "w": weight, "b": bias}, ["y"])
    program = narrowcast.compile(model, num_threads=1)
    y, (wanted,) = program(inputs["x"]), onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    calls = [(op_name(b.value), str(b.var.ty.dtype)) for b in op_bindings(import_onnx(model).mod["main"])]
    assert calls[:2] == [("relax.subtract", "float64"), ("relax.astype", "float32")]
    assert all(dtype == "float32" for _, dtype in calls[2:])


def test_branches_of_either_width() -> None:
    then = helper.make_graph([helper.make_node("Exp", ["x"], ["t"])], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [onnx.ValueInfoProto(name="e")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    x = RNG.standard_normal(5)
    program = narrowcast.compile(model_with([node], {"c": np.asarray(True), "x": x}, {}, ["y"]), num_threads=1)
    np.testing.assert_allclose(program(np.asarray(True), x), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(program(np.asarray(False), x), -x, rtol=1e-6)


def test_programs_take_float32_for_float64_and_are_saved(tmp_path: Path) -> None:
    model = model_of("Add", {"a": A}, {"b": B})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(B[:1], "b"))
    program = narrowcast.compile(model, num_threads=1)
    program.save(tmp_path / "wide.ncast")
    loaded = narrowcast.load(tmp_path / "wide.ncast")
    for rows in (1, 3):
        np.testing.assert_array_equal(loaded(A[:rows]), A[:rows] + B[:1])
    small = np.float32(RNG.standard_normal((2, 4)))
    np.testing.assert_array_equal(loaded(small), small.astype(np.float64) + B[:1])


def test_float64_inputs_of_a_mixed_network() -> None:
    """Data of float64 calibrates it; the decisions are on what is float32."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((16, 32)).astype(np.float32)
    nodes = [helper.make_node("Sub", ["x", "origin"], ["d"]), helper.make_node("Cast", ["d"], ["f"], to=1),
             helper.make_node("MatMul", ["f", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    x = 1e6 + rng.standard_normal((64, 16))
    model = model_with(nodes, {"x": x[:1]}, {"origin": np.float64([1e6]), "w": weight}, ["y"])
    program = narrowcast.compile(model, data=[(row[None], np.maximum((row[None] - 1e6) @ weight, 0)) for row in x],
                                 metric="rmse", precision="int8", num_threads=1)
    assert "int8" in {str(d.precision) for d in program.plan.decisions}
    wanted = np.maximum((x[:1] - 1e6) @ weight, 0)
    np.testing.assert_allclose(program(x[:1]), wanted, atol=0.05 * np.abs(wanted).max())
