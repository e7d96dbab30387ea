"""Conversions between element types and quantizations to them, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper, numpy_helper

import narrowcast
from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.reference import run, to_numpy
from narrowcast.operators.semantics import tensor_of

SMALL = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
KINDS = {"float8_e4m3fn": TensorProto.FLOAT8E4M3FN, "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
         "float8_e5m2": TensorProto.FLOAT8E5M2, "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
         "float4_e2m1fn": TensorProto.FLOAT4E2M1, "float8_e8m0fnu": TensorProto.FLOAT8E8M0}
FLOATS = arrays.arrays(np.float32, (24,), elements=st.floats(width=32, allow_nan=False))


def graph(nodes: Sequence[onnx.NodeProto], inputs: dict[str, np.ndarray], outputs: Sequence[str],
          constants: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in inputs.items()]
    weights = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    results = [onnx.ValueInfoProto(name=n) for n in outputs]
    return helper.make_model(helper.make_graph(nodes, "types", infos, results, weights), ir_version=12,
                             opset_imports=[helper.make_opsetid("", 26)])


def reference(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    imported = import_onnx(model, inputs)
    return to_numpy(run(imported.mod, [tensor_of(a.astype(s.dtype))
                                       for a, s in zip(inputs, imported.inputs, strict=True)]))


def cast(x: np.ndarray, to: int, **attributes: object) -> np.ndarray:
    """``x`` cast and cast back, which nothing may undo."""
    there = helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)
    back = helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT)
    return reference(graph([there, back], {"x": x}, ["z"]), x)[0]


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=40, deadline=None)
@given(FLOATS, st.booleans())
def test_floats_of_8_and_4_bits(name: str, x: np.ndarray, saturate: bool) -> None:
    """As ml_dtypes rounds; where a cast saturates, from what is cut to the largest number."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.concatenate([x, np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 464, 464.1, 6, 5, 7, 1e-9])])
    largest = float(ml_dtypes.finfo(dtype).max)
    want = (np.clip(x, -largest, largest) if saturate else x).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(cast(x, KINDS[name], saturate=int(saturate)), want)


@settings(max_examples=40, deadline=None)
@given(FLOATS, st.sampled_from(["up", "down", "nearest"]), st.booleans())
def test_powers_of_two(x: np.ndarray, mode: str, saturate: bool) -> None:
    x = np.abs(x)
    want = numpy_helper.to_float8e8m0(x, saturate, mode).astype(np.float32)
    np.testing.assert_array_equal(cast(x, TensorProto.FLOAT8E8M0, saturate=int(saturate), round_mode=mode), want)


@pytest.mark.parametrize("kind, dtype", [(TensorProto.INT4, ml_dtypes.int4), (TensorProto.UINT4, ml_dtypes.uint4),
                                         (TensorProto.INT2, ml_dtypes.int2), (TensorProto.UINT2, ml_dtypes.uint2)])
def test_packed_integers_keep_their_lowest_bits(kind: int, dtype: type) -> None:
    x = np.arange(-40, 40).astype(np.float32) + np.float32(0.25)
    np.testing.assert_array_equal(cast(x, kind), x.astype(dtype).astype(np.float32))


def test_half_precision_is_computed_in_full() -> None:
    x = np.float32([1 / 3, 70000])
    np.testing.assert_array_equal(cast(x, TensorProto.FLOAT16), x)


def test_a_type_is_that_which_the_model_declares() -> None:
    """CastLike reads the element type of a value that the normal form holds in another."""
    x, like = np.float32([1.3, 500]), np.zeros((), ml_dtypes.float8_e4m3fn)
    node = helper.make_node("CastLike", ["x", "like"], ["y"])
    for model, inputs in ((graph([node], {"x": x, "like": like}, ["y"]), (x, like)),
                          (graph([node], {"x": x}, ["y"], {"like": like}), (x,))):
        np.testing.assert_array_equal(reference(model, *inputs)[0], np.float32([1.25, 448]))


def test_a_type_passes_through_movement() -> None:
    x, like = np.float32([[1.3, 500]]), np.zeros((1, 2), np.float32)
    nodes = [helper.make_node("Cast", ["like"], ["small"], to=TensorProto.FLOAT8E5M2),
             helper.make_node("Transpose", ["small"], ["moved"]), helper.make_node("CastLike", ["x", "moved"], ["y"])]
    np.testing.assert_array_equal(reference(graph(nodes, {"x": x, "like": like}, ["y"]), x, like)[0],
                                  x.astype(ml_dtypes.float8_e5m2).astype(np.float32))


@pytest.mark.parametrize("source, target", [(np.float32, np.int32), (np.int32, np.uint32), (np.uint16, np.int16),
                                            (np.uint8, np.int8), (np.int64, np.uint64), (np.uint32, np.float32)])
def test_bits_are_read_as_another_type(source: type, target: type) -> None:
    x = np.random.default_rng(0).integers(0, 256, 12 * np.dtype(source).itemsize).astype(np.uint8).view(source)
    node = helper.make_node("BitCast", ["x"], ["y"], to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    model = graph([node], {"x": x}, ["y"])
    np.testing.assert_array_equal(reference(model, x)[0].view(np.uint8), x.view(np.uint8))
    np.testing.assert_array_equal(narrowcast.compile(model, num_threads=1)(x).view(np.uint8), x.view(np.uint8))


def test_bits_that_the_normal_form_has_lost_are_refused() -> None:
    x = np.zeros(3, np.float16)
    node = helper.make_node("BitCast", ["x"], ["y"], to=TensorProto.INT16)
    with pytest.raises(UnsupportedOperatorError, match="from float16 to int16"):
        import_onnx(graph([node], {"x": x}, ["y"]), [x])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("form", ["tensor", "axis", "blocks"])
def test_quantization(dtype: str, known: bool, form: str) -> None:
    """Quantized, then dequantized, against the definition in NumPy."""
    rng = np.random.default_rng(1)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    info = ml_dtypes.iinfo(kind)
    x = rng.standard_normal((3, 7), dtype=np.float32)
    shape = {"tensor": (), "axis": (7,), "blocks": (3, 4)}[form]
    scale = (rng.random(shape) * 4 / (info.max - info.min) + 0.01).astype(np.float32)
    zero = rng.integers(info.min, info.max + 1, shape).astype(kind)
    attributes = {"axis": 1, **({"block_size": 2} if form == "blocks" else {})}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes)]
    parameters = {"s": scale, "z": zero}
    model = graph(nodes, {"x": x, **({} if known else parameters)}, ["q", "y"], parameters if known else None)
    levels, y = reference(model, x, *(() if known else parameters.values()))
    wide = [np.repeat(p.astype(np.float32), 2, 1)[:, :7] if form == "blocks" else p.astype(np.float32)
            for p in (scale, zero)]
    want = np.clip(np.rint(x / wide[0]) + wide[1], info.min, info.max)
    np.testing.assert_array_equal(levels.astype(np.float32), want)
    np.testing.assert_array_equal(y, (want - wide[1]) * wide[0])


def test_scales_that_do_not_fit_are_refused() -> None:
    x = np.zeros((3, 7), np.float32)
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["q"], axis=1)
    with pytest.raises(ImportModelError, match="does not fit the axis"):
        import_onnx(graph([node], {"x": x}, ["q"], {"s": np.ones(3, np.float32)}), [x])


def test_random_numbers_are_refused() -> None:
    x = np.zeros(3, np.float32)
    for op in ("Bernoulli", "RandomUniformLike", "RandomNormalLike"):
        with pytest.raises(UnsupportedOperatorError, match="drawn at random"):
            import_onnx(graph([helper.make_node(op, ["x"], ["y"], seed=1.0)], {"x": x}, ["y"]), [x])


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn", "float64"])
def test_inputs_of_other_floats_are_taken(kind: str) -> None:
    x = np.float32([1.5, -2]).astype(getattr(ml_dtypes, kind, kind))
    program = narrowcast.compile(graph([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], {"x": x}, ["y"]),
                                 num_threads=1)
    np.testing.assert_array_equal(program(x), np.float32([1.5, -2]))
