"""Builders of small ONNX models, sound or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def graph_of(nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str], outputs: Sequence[str],
             initializers: dict[str, np.ndarray] | None = None, kind: int = TensorProto.FLOAT) -> onnx.GraphProto:
    """A graph of one input, ``x``."""
    return helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, shape)],
                             [onnx.ValueInfoProto(name=n) for n in outputs],
                             [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()])


def model(*nodes: onnx.NodeProto, shape: Sequence[int | str] = (2, 3), opset: int = 20, kind: int = TensorProto.FLOAT,
          **initializers: np.ndarray) -> onnx.ModelProto:
    """A model from ``x`` to ``y`` with weights by name."""
    graph = graph_of(nodes, shape, ["y"], initializers, kind)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def node(op: str, inputs: str, outputs: str = "y", **attributes: object) -> onnx.NodeProto:
    """A node called ``the_<op>`` with its inputs and outputs in one string each."""
    return helper.make_node(op, inputs.split(","), outputs.split(","), name=f"the_{op}", **attributes)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def real(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


def image(*nodes: onnx.NodeProto, size: int = 8, channels: int = 3, **initializers: np.ndarray) -> onnx.ModelProto:
    """A model on one image."""
    return model(*nodes, shape=(1, channels, size, size), **initializers)


def raw_tensor(dims: Sequence[int], raw: bytes | None, data_type: int = TensorProto.FLOAT,
               **fields: object) -> onnx.ModelProto:
    """``x`` plus a tensor as it is given."""
    result = model(node("Add", "x,w"))
    result.graph.initializer.append(
        TensorProto(name="w", dims=dims, data_type=data_type, raw_data=raw, **fields))  # type: ignore[arg-type]
    return result


def with_functions(calls: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    """A model from ``x`` to ``y`` that calls functions of the domain ``own``."""
    return helper.make_model(graph_of(calls, [2], ["y"]), opset_imports=IMPORTS, functions=functions, ir_version=10)


def function(name: str, body: Sequence[onnx.NodeProto], arguments: Sequence[str] = ("a",),
             results: Sequence[str] = ("b",)) -> onnx.FunctionProto:
    return helper.make_function("own", name, arguments, results, body, IMPORTS)


def call(name: str, argument: str, result: str) -> onnx.NodeProto:
    return helper.make_node(name, [argument], [result], domain="own")


IMPORTS = [helper.make_opsetid("own", 1), helper.make_opsetid("", 20)]
