"""Operators whose results have an extent that only running tells, from ONNX to the saved program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import narrowcast
from narrowcast import ProgramError
from narrowcast.operators import data_dependent


def _model(nodes: list[onnx.NodeProto], outputs: dict[str, int]) -> onnx.ModelProto:
    """A model of one input x, float32 [n, 4]; ``outputs`` by name with their element types."""
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _places() -> narrowcast.Program:
    nodes = [helper.make_node("NonZero", ["x"], ["places"], name="places"),
             helper.make_node("Transpose", ["places"], ["rows"], name="rows", perm=[1, 0]),
             helper.make_node("GatherND", ["x", "rows"], ["values"], name="values"),
             helper.make_node("Relu", ["values"], ["positive"], name="positive")]
    return narrowcast.compile(_model(nodes, {"places": TensorProto.INT64, "positive": TensorProto.FLOAT}))


def test_places_and_what_is_computed_of_them(tmp_path: Path) -> None:
    program = narrowcast.load(_places().save(tmp_path / "places.nc"))
    assert program.outputs[0].shape == (2, "places.count")
    rng = np.random.default_rng(0)
    for rows, share in ((1, 0.5), (7, 0.3), (40, 0.9), (3, 0.0)):
        x = (rng.standard_normal((rows, 4)) * (rng.random((rows, 4)) < share)).astype(np.float32)
        places, positive = program(x)
        assert np.array_equal(places, np.stack(np.nonzero(x)))
        assert np.array_equal(positive, np.maximum(x[np.nonzero(x)], 0))


def test_nothing_to_reduce_over_is_an_error_that_names_the_layer() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["places"], name="places"),
             helper.make_node("Cast", ["places"], ["floats"], name="floats", to=TensorProto.FLOAT),
             helper.make_node("ReduceMax", ["floats"], ["last"], name="last", keepdims=0)]
    program = narrowcast.compile(_model(nodes, {"last": TensorProto.FLOAT}))
    assert program(np.array([[0, 1, 0, 0], [0, 0, 0, 2]], np.float32)) == 3
    with pytest.raises(ProgramError, match="places: nothing was found, and what follows reduces over it or"):
        program(np.zeros((2, 4), np.float32))


def test_unique_in_both_orders() -> None:
    x = np.array([3, 1, 3, 2, 1], np.float32)
    for in_order, values, places, inverse, counts in (
        (False, [1, 2, 3], [1, 3, 0], [2, 0, 2, 1, 0], [2, 1, 2]),
        (True, [3, 1, 2], [0, 1, 3], [0, 1, 0, 2, 1], [2, 2, 1]),
    ):
        found = data_dependent.compute("narrowcast.unique", {"in_order": in_order}, [x])
        assert [f.tolist() for f in found] == [values, places, inverse, counts]


def test_boxes_that_overlap_better_ones_go() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3], [1, 3, 0, 2]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.3, 0.4]]], np.float32)
    attributes = {"max_boxes": 5, "iou_threshold": 0.5, "centred": False}
    found = data_dependent.compute("narrowcast.non_max_suppression", attributes, [boxes, scores])[0]
    assert found.tolist() == [[0, 0, 0], [0, 0, 3]]
    all_kept = data_dependent.compute("narrowcast.non_max_suppression", {**attributes, "iou_threshold": 1.0},
                                      [boxes, scores])[0]
    assert all_kept[:, 2].tolist() == [0, 1, 3, 2]
    best = data_dependent.compute("narrowcast.non_max_suppression", {**attributes, "score_threshold": 0.5},
                                  [boxes, scores])[0]
    assert best.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("dims", [[], [3, 4], ["n", 2]])
def test_only_the_number_of_places_is_read(dims: list[int | str]) -> None:
    """A scalar's places have no coordinates."""
    nodes = [helper.make_node("NonZero", ["x"], ["places"], name="places"),
             helper.make_node("Shape", ["places"], ["shape"])]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    outputs = [helper.make_tensor_value_info("shape", TensorProto.INT64, [2])]
    model = helper.make_model(helper.make_graph(nodes, "count", [value], outputs), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 21)])
    x = np.ones([5 if isinstance(d, str) else d for d in dims], np.float32)
    np.testing.assert_array_equal(narrowcast.compile(model, num_threads=1)(x), [x.ndim, x.size])
