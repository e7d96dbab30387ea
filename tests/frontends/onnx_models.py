"""Small ONNX models for tests, and the comparison of an imported one with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from narrowcast.frontends import ImportedModel
from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.reference import run
from narrowcast.passes.verify import VerifyNormalForm

EPS = float(np.finfo(np.float32).eps)
KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}
Shape = Sequence[int | str | None]


def node(op: str, inputs: str, outputs: str = "y", **attributes: object) -> onnx.NodeProto:
    """A node by the names of its inputs and outputs, separated by commas; an empty name is one left out."""
    return helper.make_node(op, inputs.split(",") if inputs else [], outputs.split(","), **attributes)


def graph(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Shape | tuple[str, Shape]], outputs: str = "y",
          initializers: Mapping[str, np.ndarray] | None = None) -> onnx.GraphProto:
    """A graph; an input is a shape of float32, or a pair of element type and shape."""
    values = []
    for name, given in inputs.items():
        dtype, shape = given if len(given) == 2 and isinstance(given[1], (list, tuple)) else ("float32", given)
        values.append(helper.make_tensor_value_info(name, KINDS[str(dtype)], shape))  # type: ignore[arg-type]
    return helper.make_graph(list(nodes), "g", values, [onnx.ValueInfoProto(name=n) for n in outputs.split(",")],
                             [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()])


def model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Shape | tuple[str, Shape]], outputs: str = "y",
          initializers: Mapping[str, np.ndarray] | None = None, opset: int = 20, **extra: object) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph(nodes, inputs, outputs, initializers), opset_imports=imports, ir_version=10, **extra)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def computed(imported: ImportedModel, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What the imported model gives, by the reference semantics."""
    return [t.numpy() for t in run(imported.mod, {s.name: torch.from_numpy(np.array(feeds[s.name]))
                                                  for s in imported.inputs})]


def expected(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime gives."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def agrees(proto: onnx.ModelProto, *feeds: Mapping[str, np.ndarray], terms: int = 1, least: float = 0.0,
           dims: Mapping[str, int] | None = None) -> ImportedModel:
    """Import once; for all feeds both programs agree to the rounding of sums of ``terms`` products.

    Errors are relative to the largest result, or to ``least`` where that is larger.
    """
    imported = import_onnx(proto, dims=dims)
    VerifyNormalForm()(imported.mod)
    for feed in feeds:
        for got, want in zip(computed(imported, feed), expected(proto, feed), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            scale = max(float(np.abs(want).max()), least) if want.size and want.dtype.kind == "f" else 0.0
            np.testing.assert_allclose(got, want, rtol=0, atol=EPS * terms * scale)
    return imported
