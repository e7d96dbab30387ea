"""Evaluates ONNX nodes whose inputs are all known, within a limit on memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ..errors import ImportModelError, UnsupportedOperatorError
from .limits import is_tensor_shape

# Values of inputs up to this size decide the shapes of results.
_SHAPE_ELEMENTS = 4096
# Results that are no larger than the input whatever its values are.
_BOUNDED = ("NonZero", "Unique", "Compress")
# Random, with subgraphs, or so slow in NumPy that the program computes them instead.
_NOT_EVALUATED = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "If", "Loop",
    "Scan", "SequenceMap", "Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "MaxPool",
    "AveragePool", "LpPool", "MaxUnpool", "LSTM", "GRU", "RNN", "Resize", "Upsample", "GridSample", "RoiAlign",
    "NonMaxSuppression", "Attention", "Einsum", "ImageDecoder", "DFT", "STFT", "MelWeightMatrix", "Optional",
    "OptionalGetElement", "TfIdfVectorizer", "Col2Im", "CenterCropPad", "BitCast",
}
# What is computed for any number of elements; everything else, which may take long, for so many.
_FAST = {
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape", "Cos", "DequantizeLinear",
    "Div", "Equal", "Exp", "Expand", "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "QuantizeLinear", "Range",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Shape", "Sigmoid", "Sin",
    "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
}
_FEW = 2 ** 20
# The evaluator has only these versions and newer ones, which contain the older.
_EVALUATED_AS = {"QuantizeLinear": 21, "DequantizeLinear": 21}


def can_evaluate(node: onnx.NodeProto, opset: int, elements: int = 0) -> bool:
    """Whether a node of the default domain is one that is computed at import once its inputs, which have so many
    elements, are known."""
    if node.op_type in _NOT_EVALUATED or node.op_type.startswith(("Sequence", "String", "Regex")):
        return False
    if elements > _FEW and node.op_type not in _FAST:
        return False
    try:
        return not onnx.defs.get_schema(node.op_type, opset, "").deprecated
    except onnx.defs.SchemaError:
        return False


def evaluate(node: onnx.NodeProto, opset: int, inputs: Sequence[np.ndarray | None], label: str,
             limit: int) -> list[np.ndarray]:
    """The results of ``node`` (of the default domain), by ONNX's own reference evaluator.

    Raises ImportModelError where the node is inconsistent or the results would take more than ``limit`` bytes.
    """
    given = _one_float({name: array for name, array in zip(node.input, inputs, strict=True) if array is not None})
    if node.op_type == "Range":  # ONNX's own functions pass it vectors of one element.
        given = {n: a.reshape(()) if a.size == 1 else a for n, a in given.items()}
    try:
        model = _model_of(node, max(opset, _EVALUATED_AS.get(node.op_type, 0)), given)
        _check_sizes(node, onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True), label, limit)
        with np.errstate(all="ignore"):
            del model.graph.initializer[:]
            results = ReferenceEvaluator(model).run(None, given)
    except ImportModelError:
        raise
    except Exception as error:  # The evaluator raises whatever NumPy makes of the node.
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImportModelError(f"{node.op_type} of constants cannot be computed", layer=label, found=first) from error
    arrays = [np.asarray(r) for r in results]
    if any(a.dtype == object or a.dtype.kind in "US" for a in arrays):
        raise UnsupportedOperatorError(f"{node.op_type} gives strings or sequences", layer=label)
    return arrays


def widened(array: np.ndarray) -> np.ndarray:
    """Half precision as float32, which holds it exactly; other arrays as they are."""
    return array.astype(np.float32) if str(array.dtype) in ("float16", "bfloat16") else array


def _one_float(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Float arrays in the widest of their element types: normal form has made some of them wider."""
    floats = [a.dtype for a in given.values() if a.dtype.kind == "f"]
    widest = max(floats, key=lambda d: d.itemsize, default=None)
    return {n: a.astype(widest) if a.dtype.kind == "f" else a for n, a in given.items()}


def _model_of(node: onnx.NodeProto, opset: int, given: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A model of the one node; small inputs are also initializers, for shape inference to see."""
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in given.items()]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    small = [numpy_helper.from_array(a, n) for n, a in given.items() if a.size <= _SHAPE_ELEMENTS]
    graph = helper.make_graph([node], "constant", inputs, outputs, small)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def _check_sizes(node: onnx.NodeProto, inferred: onnx.ModelProto, label: str, limit: int) -> None:
    total = 0
    for output in inferred.graph.output:
        kind = output.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if not kind.HasField("shape") or None in dims:
            if node.op_type in _BOUNDED:
                continue
            raise UnsupportedOperatorError(f"{node.op_type} gives a constant of a size that is not known in advance",
                                           layer=label)
        extents = [d for d in dims if d is not None]
        total += math.prod(extents) * helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
        if total > limit or not is_tensor_shape(extents):
            raise ImportModelError(f"{node.op_type} would compute a constant of an impossible size", layer=label,
                                   found=f"{dims}, {total} bytes",
                                   expected=f"at most {limit} more bytes of constants that are computed at import")
