"""Indices that come at run time: counted as PyTorch and ONNX say, and never followed out of the data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import narrowcast as nc
from narrowcast.errors import UnsupportedOperatorError
from narrowcast.frontends import import_model

ROWS, WIDTH = 7, 5
BAD = np.array([10**6, -5, 3, -(10**9), 2**62, -1])
DATA = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) + 1.0
UPDATES = np.full((len(BAD), WIDTH), -1.0, np.float32)


def onnx_model(op: str, indices: tuple[int, ...], dtype: int = TensorProto.INT64, **attributes: int) -> onnx.ModelProto:
    """One operator on the known ``DATA`` with unknown indices."""
    inputs = [helper.make_tensor_value_info("ids", dtype, indices)]
    constants = [numpy_helper.from_array(DATA, "data")]
    names = ["data", "ids"]
    if op.startswith("Scatter"):
        updates = UPDATES if op == "ScatterElements" else UPDATES[:, 0]
        constants.append(numpy_helper.from_array(updates, "updates"))
        names.append("updates")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op, names, ["y"], name="pick", **attributes)
    return helper.make_model(helper.make_graph([node], "graph", inputs, [output], constants),
                             opset_imports=[helper.make_opsetid("", 18)])


def compiled(model: object, *examples: np.ndarray) -> nc.Program:
    return nc.compile(model, "cpu", None, example_inputs=tuple(torch.from_numpy(e) for e in examples), num_threads=1)


def test_an_embedding_reads_rows_of_its_table_only() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(ROWS, WIDTH).eval()
    program = compiled(nn.Sequential(embedding).eval(), np.zeros(len(BAD), np.int64))
    table = embedding.weight.detach().numpy()
    np.testing.assert_array_equal(program(BAD), table[np.clip(BAD, 0, ROWS - 1)])
    valid = np.array([0, 6, 3, 3, 1, 5])
    np.testing.assert_array_equal(program(valid), table[valid])


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_gather_counts_negative_indices_from_the_end_and_stays_inside(dtype: type) -> None:
    kind = TensorProto.INT64 if dtype == np.int64 else TensorProto.INT32
    program = compiled(onnx_model("Gather", (len(BAD),), kind), np.zeros(len(BAD), dtype))
    bad = BAD.clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
    found = program(bad)
    np.testing.assert_array_equal(found, DATA[bad % ROWS])
    np.testing.assert_array_equal(found[[1, 2, 5]], DATA[[-5, 3, -1]])


def test_gather_along_another_axis() -> None:
    program = compiled(onnx_model("Gather", (len(BAD),), axis=1), np.zeros(len(BAD), np.int64))
    np.testing.assert_array_equal(program(BAD), DATA[:, BAD % WIDTH])


def test_gather_elements_and_gather_nd_stay_inside() -> None:
    ids = np.stack([BAD] * WIDTH, 1)
    program = compiled(onnx_model("GatherElements", ids.shape), np.zeros_like(ids))
    np.testing.assert_array_equal(program(ids), DATA[BAD % ROWS])
    ids = np.stack([BAD, BAD[::-1]], 1)
    program = compiled(onnx_model("GatherND", ids.shape), np.zeros_like(ids))
    np.testing.assert_array_equal(program(ids), DATA[BAD % ROWS, BAD[::-1] % WIDTH])


def test_scatters_write_inside_only() -> None:
    ids = np.stack([BAD] * WIDTH, 1)
    expected = DATA.copy()
    expected[BAD % ROWS] = -1.0
    program = compiled(onnx_model("ScatterElements", ids.shape), np.zeros_like(ids))
    np.testing.assert_array_equal(program(ids), expected)
    ids = np.stack([BAD, BAD[::-1]], 1)
    expected = DATA.copy()
    expected[BAD % ROWS, BAD[::-1] % WIDTH] = -1.0
    program = compiled(onnx_model("ScatterND", ids.shape), np.zeros_like(ids))
    np.testing.assert_array_equal(program(ids), expected)


class Picks(nn.Module):
    """Every way of PyTorch to pick by index, on a known table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("data", torch.from_numpy(DATA))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = ids[:, None].expand(-1, WIDTH)
        return (
            self.data[ids], self.data[ids, ids], self.data.gather(0, wide), self.data.index_select(0, ids),
            self.data.scatter(0, wide, torch.full_like(wide, -1.0, dtype=torch.float32)),
            torch.ops.aten.index_put(self.data, [ids, ids], torch.ones(len(BAD)), True),
        )


def test_picks_of_pytorch_stay_inside() -> None:
    program = compiled(Picks().eval(), np.zeros(len(BAD), np.int64))
    inside = BAD % ROWS
    scattered, added = DATA.copy(), DATA.copy()
    scattered[inside] = -1.0
    np.add.at(added, (inside, BAD % WIDTH), 1.0)
    clipped = DATA[np.clip(BAD, 0, ROWS - 1)]
    expected = (DATA[inside], DATA[inside, BAD % WIDTH], DATA[inside], clipped, scattered, added)
    for found, wanted in zip(program(BAD), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_repeated_indices_add_up_whatever_the_number_of_threads() -> None:
    class Histogram(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.index_put(torch.zeros(4), [ids], torch.ones(20_000), True)

    ids = np.arange(20_000) % 4
    program = nc.compile(Histogram(), "cpu", None, example_inputs=torch.from_numpy(ids), num_threads=2)
    np.testing.assert_array_equal(program(ids), np.full(4, 5_000.0, np.float32))


def test_a_constant_index_out_of_range_is_refused() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ids", torch.tensor([0, 9]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.scatter(0, self.ids, torch.zeros(2))

    with pytest.raises(UnsupportedOperatorError, match="a constant index is out of range"):
        import_model(Constant().eval(), torch.ones(ROWS))


def picking_model(op: str, **attributes: int) -> onnx.ModelProto:
    """``op`` on the places of an input that are not 0, of which there may be none: int64 [2, count] or [count, 2]."""
    by_rows = op in ("GatherND", "ScatterND")
    nodes = [helper.make_node("NonZero", ["x"], ["places"], name="places"),
             helper.make_node("Transpose", ["places"], ["rows"], name="rows"),
             helper.make_node(op, ["rows" if by_rows else "places", "ids", *(["updates"] if "Scatter" in op else [])],
                              ["y"], name="pick", **attributes)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 4)),
              helper.make_tensor_value_info("ids", TensorProto.INT64, (2, 1))]
    if "Scatter" in op:
        inputs.append(helper.make_tensor_value_info("updates", TensorProto.INT64, (2, 2) if by_rows else (2, 1)))
    output = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    return helper.make_model(helper.make_graph(nodes, "graph", inputs, [output]),
                             opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize(("op", "attributes"), [
    ("Gather", {"axis": 1}), ("GatherElements", {"axis": 1}), ("GatherND", {}), ("ScatterElements", {"axis": 1}),
    ("ScatterND", {})])
def test_picking_from_an_axis_that_only_running_tells(op: str, attributes: dict[str, int]) -> None:
    """Where it has no elements there is nothing to pick or to write to."""
    x = np.zeros((3, 4), np.float32)
    x[[0, 1, 1], [1, 0, 3]] = 1.0
    ids, updates = np.array([[1], [-1]]), np.array([[7, 8], [9, 10]])
    if op == "ScatterElements":
        updates = updates[:, :1]
    given = (ids, updates) if "Scatter" in op else (ids,)
    program = compiled(picking_model(op, **attributes), x, *given)
    places = np.stack(np.nonzero(x))
    expected = {
        "Gather": lambda: places[:, ids], "GatherND": lambda: places.T[ids[:, 0]],
        "GatherElements": lambda: np.take_along_axis(places, ids % 3, 1),
        "ScatterElements": lambda: np.array([[0, 7, 1], [1, 0, 9]]),
        "ScatterND": lambda: np.array([[0, 1], [7, 8], [9, 10]]),
    }[op]()
    np.testing.assert_array_equal(program(x, *given), expected)
    with pytest.raises(nc.ProgramError, match="places: nothing was found, and what follows reduces over it or picks"):
        program(np.zeros_like(x), *given)


def test_features_of_no_features_are_refused() -> None:
    node = helper.make_node("ArrayFeatureExtractor", ["x", "ids"], ["y"], domain="ai.onnx.ml", name="pick")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 0)),
              helper.make_tensor_value_info("ids", TensorProto.INT64, (2,))]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([node], "graph", inputs, [output]),
                              opset_imports=[helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 18)])
    with pytest.raises(nc.ImportModelError, match=r"pick(.|\n)*nothing to pick from"):
        import_model(model)
