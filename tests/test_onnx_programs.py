"""ONNX models with open extents and branches as compiled programs, against ONNX Runtime."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowcast import ProgramError
from narrowcast.compiler import compile

EPS = float(np.finfo(np.float32).eps)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes: list[onnx.NodeProto], inputs: Mapping[str, tuple[int, list[int | str]]],
          initializers: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(a, n) for n, a in initializers.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def assert_same(proto: onnx.ModelProto, program: object, feeds: Mapping[str, np.ndarray], terms: int,
                least: float = 0.0) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {s.name: feeds[s.name] for s in program.inputs}  # type: ignore[attr-defined]
    found = program(**given)  # type: ignore[operator]
    for got, want in zip(found if isinstance(found, (tuple, list)) else [found], session.run(None, dict(feeds)),
                         strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=EPS * terms * max(float(np.abs(want).max()), least))


def test_an_image_network_of_any_even_size() -> None:
    """A map is halved, enlarged again and added; its elements become a sequence whose length follows."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], name="fine", pads=[1, 1, 1, 1]),
             helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
             helper.make_node("Resize", ["p", "", "scales"], ["u"], mode="linear"),
             helper.make_node("Add", ["u", "c"], ["a"], name="sum"),
             helper.make_node("Shape", ["a"], ["front"], end=2),
             helper.make_node("Concat", ["front", "rest"], ["t"], axis=0),
             helper.make_node("Reshape", ["a", "t"], ["r"]),
             helper.make_node("Transpose", ["r"], ["s"], perm=[0, 2, 1]),
             helper.make_node("MatMul", ["s", "v"], ["m"], name="head"), helper.make_node("Softmax", ["m"], ["y"])]
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["batch", 3, "height", "width"])}, {
        "w": noise(8, 3, 3, 3), "scales": np.asarray([1, 1, 2, 2], np.float32), "rest": np.asarray([-1]),
        "v": noise(8, 5, seed=1)})
    program = compile(proto)
    for shape in ((1, 3, 8, 6), (2, 3, 4, 10)):
        assert_same(proto, program, {"x": noise(*shape)}, terms=4 * (27 + 8 + 5))
    with pytest.raises(ProgramError, match="sum: the inputs' extents do not fit this layer"):
        program(noise(1, 3, 7, 6))


def test_a_branch_that_only_running_tells() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["h"], ["z"])], op, [], [onnx.ValueInfoProto(name="z")])

    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]),
             helper.make_node("If", ["flag"], ["y"], then_branch=branch("Relu"), else_branch=branch("Sigmoid"))]
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["batch", 4]), "flag": (TensorProto.BOOL, [])}, {"w": noise(4, 3)})
    program = compile(proto)
    for batch, flag in ((1, True), (3, False)):
        assert_same(proto, program, {"x": noise(batch, 4), "flag": np.asarray(flag)}, terms=16)


def test_values_computed_from_extents() -> None:
    """The mean over a sequence, by its length, and the length itself as an input of what follows."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "one"], ["n"]),
             helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
             helper.make_node("ReduceSum", ["x", "axes"], ["t"], keepdims=0),
             helper.make_node("Div", ["t", "f"], ["y"])]
    proto = model(nodes, {"x": (TensorProto.FLOAT, ["batch", "steps", 4])},
                  {"one": np.asarray(1), "axes": np.asarray([1])})
    program = compile(proto)
    for shape in ((2, 5, 4), (1, 9, 4)):
        assert_same(proto, program, {"x": noise(*shape)}, terms=16)


def test_voice_activity_with_an_open_batch() -> None:
    try:
        files = importlib.metadata.files("silero-vad")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package silero-vad is not installed")
    path = next(Path(str(f.locate())) for f in files or () if f.name == "silero_vad_16k_op15.onnx")
    program = compile(path, dims={"sequence": 576})
    for batch in (1, 3):
        feeds = {"input": 0.1 * noise(batch, 576), "state": 0.1 * noise(2, batch, 128, seed=1),
                 "sr": np.asarray(16000, np.int64)}
        assert_same(onnx.load(path), program, feeds, terms=2400, least=1e-3)
