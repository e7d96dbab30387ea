"""The ONNX frontend on the node tests that ONNX ships: rightly translated, or refused as unsupported."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from narrowcast.errors import CompileError, UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.reference import run

# Modules of ONNX's own node tests whose operators are translated and that do not take seconds to import.
MODULES = (
    "add",
    "argmax",
    "argmin",
    "attention",
    "bitcast",
    "bitshift",
    "bitwiseand",
    "bitwisenot",
    "bitwiseor",
    "bitwisexor",
    "cast",
    "castlike",
    "clip",
    "conv",
    "convinteger",
    "convtranspose",
    "cumsum",
    "depthtospace",
    "dequantizelinear",
    "div",
    "dynamicquantizelinear",
    "einsum",
    "equal",
    "eyelike",
    "gather",
    "gatherelements",
    "gathernd",
    "gemm",
    "greater",
    "greater_or_equal",
    "groupnormalization",
    "isinf",
    "isnan",
    "layernormalization",
    "less",
    "less_or_equal",
    "logsoftmax",
    "lstm",
    "matmul",
    "matmulinteger",
    "max",
    "min",
    "mod",
    "mul",
    "neg",
    "onehot",
    "pad",
    "pow",
    "qlinearconv",
    "qlinearmatmul",
    "quantizelinear",
    "reducel1",
    "reducel2",
    "reduce_log_sum",
    "reduce_log_sum_exp",
    "reducemax",
    "reducemean",
    "reducemin",
    "reduceprod",
    "reducesum",
    "reducesumsquare",
    "reshape",
    "resize",
    "rmsnormalization",
    "rotaryembedding",
    "scatterelements",
    "scatternd",
    "sign",
    "slice",
    "softmax",
    "squeeze",
    "sub",
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
    cases = [c for c in node._NodeTestCases if "_expanded" not in c.name and c.name not in FRACTIONAL and _is_listed(c)]
    outcomes = {c.name: _outcome(c) for c in cases}
    assert {n: o for n, o in outcomes.items() if o not in ("right", "unsupported")} == {}
    assert sum(o == "right" for o in outcomes.values()) > 0.9 * len(outcomes) > 300


def _is_listed(case: object) -> bool:
    """Whether a case is one of ``MODULES``: another test of this process may have imported more of them."""
    operators = {n.op_type.lower() for n in case.model.graph.node}  # type: ignore[attr-defined]
    return bool(operators & {name.replace("_", "") for name in MODULES})


def _outcome(case: object) -> str:
    inputs, outputs = ([_array(v) for v in values] for values in case.data_sets[0])  # type: ignore[attr-defined]
    kinds = {str(a.dtype) for a in [*inputs, *outputs]}
    if "object" in kinds:
        return "unsupported"
    tolerance = 2e-2 if kinds & {"float16", "bfloat16"} else 1e-4
    outcome = "unsupported"
    for constants in (set(), set(range(1, len(inputs)))):
        try:
            return _compare(case.model, inputs, constants, outputs, tolerance)  # type: ignore[attr-defined]
        except UnsupportedOperatorError:
            continue
        except CompileError as error:
            outcome = str(error)
    return outcome


def _array(value: object) -> np.ndarray:
    """An input or output; those of packed types are messages."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


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
    results = [t.numpy() for t in run(imported.mod, tensors)]
    return "right" if all(map(partial(_agree, tolerance=tolerance), results, outputs)) else "wrong"


def _agree(got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    """Floats to the tolerance, everything else exactly."""
    if got.shape != want.shape:
        return False
    if want.dtype.kind in "biu":
        return bool((got == want).all())
    return np.allclose(got.astype(np.float64), want.astype(np.float64), tolerance, tolerance, equal_nan=True)
