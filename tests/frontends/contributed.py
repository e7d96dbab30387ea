"""Single nodes of ONNX Runtime's own domain, through the importer and through ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.reference import run, to_numpy
from narrowcast.operators.semantics import tensor_of

Array = np.ndarray | None


def model(op: str, inputs: Sequence[Array], constants: Sequence[int] = (), outputs: int = 1,
          **attributes: object) -> onnx.ModelProto:
    """A model of one node; ``constants`` are the places of the inputs that are initializers."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain="com.microsoft", **attributes)
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for i, (n, a) in enumerate(zip(names, inputs, strict=True)) if a is not None and i not in constants]
    weights = [onnx.numpy_helper.from_array(inputs[i], names[i]) for i in constants]
    results = [onnx.ValueInfoProto(name=n) for n in node.output]
    graph = helper.make_graph([node], "contributed", infos, results, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21),
                                                                  helper.make_opsetid("com.microsoft", 1)])


def imported(proto: onnx.ModelProto, inputs: Sequence[Array], constants: Sequence[int] = ()) -> list[np.ndarray]:
    """What the imported model computes."""
    own = [a for i, a in enumerate(inputs) if a is not None and i not in constants]
    module = import_onnx(proto, own)
    return to_numpy(run(module.mod, [tensor_of(a.astype(s.dtype)) for a, s in zip(own, module.inputs, strict=True)]))


def expected(proto: onnx.ModelProto, inputs: Sequence[Array], constants: Sequence[int] = ()) -> list[np.ndarray]:
    """What ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constants})


def check(op: str, inputs: Sequence[Array], constants: Sequence[int] = (), *, outputs: int = 1, tolerance: float = 1e-5,
          levels: int = 0, **attributes: object) -> None:
    """Both agree: floats to ``tolerance`` of the largest value, integers to ``levels``."""
    proto = model(op, inputs, constants, outputs, **attributes)
    for got, want in zip(imported(proto, inputs, constants), expected(proto, inputs, constants), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        bound = tolerance * max(np.abs(want).max(initial=0), 1) if want.dtype.kind == "f" else levels
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=bound)
