"""The ONNX frontend on the node tests that ONNX ships: rightly translated, or refused as unsupported."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from narrowcast.errors import CompileError, UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.reference import run

# Modules of ONNX's own node tests whose operators are translated and that do not take seconds to import.
MODULES = (
    "attention",
    "conv",
    "convtranspose",
    "depthtospace",
    "dequantizelinear",
    "einsum",
    "gather",
    "gatherelements",
    "gathernd",
    "gemm",
    "groupnormalization",
    "layernormalization",
    "logsoftmax",
    "lstm",
    "matmul",
    "onehot",
    "pad",
    "quantizelinear",
    "reducel2",
    "reducemax",
    "reducemean",
    "reducesum",
    "reshape",
    "resize",
    "rmsnormalization",
    "rotaryembedding",
    "scatterelements",
    "scatternd",
    "slice",
    "softmax",
    "squeeze",
    "topk",
    "trilu",
)
# These compute a length that is not whole; ONNX Runtime, PyTorch and this importer take that of the result.
FRACTIONAL = {f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("linear", "cubic")}


def test_node_tests_of_onnx() -> None:
    """Every case is translated rightly or refused as unsupported; nearly all are translated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node = importlib.import_module("onnx.backend.test.case.node")
        for module in MODULES:
            importlib.import_module(f"{node.__name__}.{module}")
    cases = [c for c in node._NodeTestCases if "_expanded" not in c.name and c.name not in FRACTIONAL]
    outcomes = {c.name: _outcome(c) for c in cases}
    assert {n: o for n, o in outcomes.items() if o not in ("right", "unsupported")} == {}
    assert sum(o == "right" for o in outcomes.values()) > 0.9 * len(outcomes) > 300


def _outcome(case: object) -> str:
    inputs, outputs = case.data_sets[0]  # type: ignore[attr-defined]
    arrays = [np.asarray(a) for a in inputs]
    kinds = {str(a.dtype) for a in [*arrays, *map(np.asarray, outputs)]}
    if kinds & {"object", "uint16", "uint32", "uint64"} or any(
        "float8" in k or "int4" in k or "int2" in k for k in kinds
    ):
        return "unsupported"  # PyTorch, in which the reference computes, lacks these.
    tolerance = 2e-2 if kinds & {"float16", "bfloat16"} else 1e-4
    outcome = "unsupported"
    for constants in (set(), set(range(1, len(arrays)))):
        try:
            return _compare(case.model, arrays, constants, outputs, tolerance)  # type: ignore[attr-defined]
        except UnsupportedOperatorError:
            continue
        except CompileError as error:
            outcome = str(error)
    return outcome


def _compare(
    model: onnx.ModelProto,
    arrays: list[np.ndarray],
    constants: set[int],
    outputs: Sequence[np.ndarray],
    tolerance: float,
) -> str:
    """Run the model with the inputs ``constants`` as initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.initializer.extend(
        numpy_helper.from_array(arrays[i], model.graph.input[i].name) for i in sorted(constants)
    )
    rest = [a for i, a in enumerate(arrays) if i not in constants]
    imported = import_onnx(changed, rest)
    tensors = [torch.from_numpy(np.array(a.astype(s.dtype))) for a, s in zip(rest, imported.inputs, strict=True)]
    for got, want in zip(run(imported.mod, tensors), map(np.asarray, outputs), strict=True):
        if tuple(got.shape) != want.shape or not np.allclose(
            got.double().numpy(), want.astype(np.float64), tolerance, tolerance, equal_nan=True
        ):
            return "wrong"
    return "right"
