"""The translations of ONNX operators against ONNX Runtime, and against ONNX's own node tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from narrowcast.errors import UnsupportedOperatorError
from narrowcast.frontends.model import ImportedModel
from narrowcast.frontends.onnx import import_onnx
from narrowcast.ir import Constant, op_bindings, shape_of
from narrowcast.operators.reference import run

from .bindings import operations

EPS = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Case:
    """One node: the shape of its input ``x`` (or an array of it), its other inputs, and the ops it has to become.

    terms : the longest sum of products behind an element, which bounds the rounding.
    """

    op: str
    x: tuple[int, ...] | np.ndarray
    others: Sequence[np.ndarray | None] = ()
    attributes: dict[str, object] = field(default_factory=dict)
    opset: int = 20
    becomes: tuple[str, ...] | None = None
    terms: int = 1
    outputs: int = 1
    domain: str = ""


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def noise(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def number(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def data_of(case: Case) -> np.ndarray:
    return case.x if isinstance(case.x, np.ndarray) else noise(*case.x, seed=0)


def model_of(case: Case) -> onnx.ModelProto:
    x = data_of(case)
    names = ["x", *("" if a is None else f"c{i}" for i, a in enumerate(case.others))]
    outputs = [f"y{i}" for i in range(case.outputs)]
    graph = helper.make_graph(
        [helper.make_node(case.op, names, outputs, name="node", domain=case.domain, **case.attributes)],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, f"c{i}") for i, a in enumerate(case.others) if a is not None],
    )
    imports = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def results(imported: ImportedModel, x: np.ndarray) -> list[np.ndarray]:
    return [t.numpy() for t in run(imported.mod, [torch.from_numpy(x)])]


def check(case: Case) -> ImportedModel:
    model, x = model_of(case), data_of(case)
    imported = import_onnx(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for got, want in zip(results(imported, x), session.run(None, {"x": x}), strict=True):
        assert got.shape == want.shape
        if want.dtype.kind == "f":
            # A few roundings of the elementwise parts, and one for every term of the longest sum.
            np.testing.assert_allclose(got, want, rtol=0, atol=EPS * (16 + case.terms) * np.abs(want).max(initial=1))
        else:
            assert np.array_equal(got, want)
    if case.becomes is not None:
        assert operations(imported) == [n if n.startswith("narrowcast.") else f"relax.{n}" for n in case.becomes]
    return imported


IMAGE = (2, 4, 7, 6)
FOUR = tuple(np.abs(noise(4, seed=i)) + 0.5 for i in range(4))

PREFERRED = [
    Case(
        "Conv",
        IMAGE,
        [noise(6, 4, 3, 3), noise(6)],
        {"pads": [1, 0, 2, 1], "strides": [2, 1]},
        becomes=("nn.conv2d", "add"),
        terms=36,
    ),
    Case(
        "Conv",
        IMAGE,
        [noise(8, 1, 3, 2)],
        {"group": 4, "strides": [2, 1], "auto_pad": "SAME_UPPER"},
        becomes=("nn.conv2d",),
        terms=6,
    ),
    Case(
        "Conv",
        (2, 4, 9),
        [noise(6, 4, 3), noise(6)],
        {"auto_pad": "SAME_LOWER", "strides": [2]},
        becomes=("nn.conv1d", "add"),
        terms=12,
    ),
    Case("Conv", (1, 2, 4, 5, 6), [noise(3, 2, 2, 2, 2)], becomes=("nn.conv3d",), terms=16),
    Case(
        "ConvTranspose",
        IMAGE,
        [noise(4, 3, 3, 3), noise(3)],
        {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 1, 0, 1]},
        becomes=("nn.conv2d_transpose", "add"),
        terms=36,
    ),
    Case(
        "ConvTranspose",
        (1, 4, 9),
        [noise(4, 3, 3)],
        {"strides": [2], "auto_pad": "SAME_UPPER"},
        becomes=("nn.conv1d_transpose",),
        terms=12,
    ),
    Case("ConvTranspose", IMAGE, [noise(4, 3, 3, 3)], {"strides": [2, 2], "output_shape": [13, 12]}, terms=36),
    Case("BatchNormalization", IMAGE, FOUR, becomes=("multiply", "add"), terms=4),
    Case("BatchNormalization", (5, 4), FOUR, becomes=("multiply", "add"), terms=4),
    Case("Gemm", (5, 4), [noise(4, 3), noise(3)], {"alpha": 0.5, "beta": 2.0}, becomes=("matmul", "add"), terms=4),
    Case(
        "Gemm",
        (4, 5),
        [noise(3, 4), noise(1, 3)],
        {"transA": 1, "transB": 1},
        becomes=("permute_dims", "matmul", "add"),
        terms=4,
    ),
    Case("Gemm", (5, 4), [noise(4, 3), number(2)], becomes=("matmul", "add"), terms=4),
    Case("MatMul", (2, 5, 4), [noise(4, 3)], becomes=("matmul",), terms=4),
    Case("LayerNormalization", (2, 3, 8), [noise(8), noise(8)], becomes=("nn.layer_norm",), terms=16),
    Case("LayerNormalization", (2, 3, 8), [noise(3, 8)], {"axis": -2}, becomes=("nn.layer_norm",), terms=48),
    Case("Gelu", (3, 4), becomes=("nn.gelu",)),
    Case("Gelu", (3, 4), attributes={"approximate": "tanh"}, becomes=("nn.gelu_tanh",)),
    Case("Relu", (3, 4), becomes=("nn.relu",)),
    Case("HardSwish", (3, 4), becomes=("narrowcast.hard_swish",)),
    Case("HardSigmoid", (3, 4), attributes={"alpha": 1 / 6}, becomes=("narrowcast.hard_sigmoid",)),
    Case("HardSigmoid", (3, 4), becomes=("multiply", "add", "clip")),
    Case("Clip", (3, 4), [number(0), number(6)], becomes=("clip",)),
    Case("Clip", (3, 4), [number(0)], becomes=("nn.relu",)),
    Case("Clip", (3, 4), [None, number(0.5)], becomes=("minimum",)),
    Case("Clip", (3, 4), attributes={"min": 0.0, "max": 6.0}, opset=6 + 4, becomes=("clip",)),
    Case("Softmax", (2, 3, 4), becomes=("nn.softmax",), terms=4),
    Case("Softmax", (2, 3, 4), opset=12, becomes=("reshape", "nn.softmax", "reshape"), terms=12),
    Case("Softmax", (2, 3, 4), attributes={"axis": -1}, opset=11, becomes=("nn.softmax",), terms=4),
    Case("LogSoftmax", (2, 3, 4), attributes={"axis": 1}, becomes=("nn.log_softmax",), terms=3),
    Case("GlobalAveragePool", IMAGE, becomes=("nn.adaptive_avg_pool2d",), terms=42),
    Case("ReduceMean", IMAGE, [ints(-1, -2)], becomes=("nn.adaptive_avg_pool2d",), terms=42),
    Case("Pow", (3, 4), [number(2)], becomes=("multiply",)),
    Case("Add", (3, 4), [noise(4)], becomes=("add",)),
    Case("Identity", (3, 4), becomes=()),
    Case("Dropout", (3, 4), [number(0.5)], becomes=()),
    Case("Reshape", (2, 3, 4), [ints(0, -1)], becomes=("reshape",)),
    Case("Flatten", (2, 3, 4), attributes={"axis": -1}, becomes=("reshape",)),
    Case("Transpose", (2, 3, 4), becomes=("permute_dims",)),
    Case("Gather", (5, 4), [np.asarray(-2)], {"axis": 0}, becomes=("strided_slice", "reshape")),
    Case("Gather", (5, 4), [ints(3, 1)], {"axis": 1}, becomes=("strided_slice", "flip")),
    Case("Gather", (5, 4), [ints(0, 3, 1)], {"axis": 1}, becomes=("take",)),
    Case("Split", (2, 7), [ints(3, 4)], {"axis": 1}, outputs=2, becomes=("strided_slice", "strided_slice")),
    Case("Split", (2, 7), attributes={"axis": 1, "num_outputs": 3}, outputs=3),
    Case("Split", (2, 6), attributes={"axis": 1, "split": [4, 2]}, opset=11, outputs=2),
]

POOLS = [
    Case("MaxPool", IMAGE, attributes={"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    Case("MaxPool", IMAGE, attributes={"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    Case("MaxPool", IMAGE, attributes={"kernel_shape": [2, 2], "dilations": [2, 3]}),
    Case("MaxPool", (2, 3, 9), attributes={"kernel_shape": [2], "strides": [3], "ceil_mode": 1, "pads": [1, 1]}),
    Case("AveragePool", IMAGE, attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, terms=9),
    Case(
        "AveragePool", IMAGE, attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, terms=9
    ),
    Case("AveragePool", IMAGE, attributes={"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}, terms=6),
    Case(
        "AveragePool",
        IMAGE,
        attributes={
            "kernel_shape": [3, 3],
            "strides": [3, 2],
            "ceil_mode": 1,
            "pads": [1, 0, 1, 1],
            "count_include_pad": 1,
        },
        terms=9,
    ),
    Case("LpPool", IMAGE, attributes={"kernel_shape": [2, 2], "p": 2}, opset=18, terms=8),
    Case("GlobalMaxPool", IMAGE),
    Case("GlobalLpPool", IMAGE, terms=42),
]

REDUCTIONS = [
    Case(
        op,
        (2, 3, 4),
        [ints(0, 2)] if opset >= 18 else [],
        {"keepdims": keep} | ({} if opset >= 18 else {"axes": [0, 2]}),
        opset,
        terms=8,
    )
    for op in (
        "ReduceMax",
        "ReduceMin",
        "ReduceMean",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceSumSquare",
    )
    for opset, keep in ((18, 1), (11, 0))
] + [
    Case("ReduceSum", (2, 3, 4), opset=13, terms=24),
    Case("ReduceSum", (2, 3, 4), attributes={"noop_with_empty_axes": 1}),
    Case("ReduceLogSum", np.abs(noise(2, 3, 4)), [ints(1)], terms=3),
    Case("ArgMax", (2, 3, 4), attributes={"axis": 1}),
    Case("ArgMin", (3, 4), attributes={"keepdims": 0}),
    Case("ArgMax", np.zeros((2, 3), np.float32), attributes={"axis": 1, "select_last_index": 1}),
    Case("TopK", (2, 6), [ints(3)], outputs=2),
    Case("TopK", (5, 2), [ints(2)], {"axis": 0, "largest": 0}, outputs=2),
    Case("CumSum", (3, 5), [ints(1)], {"exclusive": 1, "reverse": 1}, terms=5),
]

MOVEMENTS = [
    Case("Slice", (7, 6), [ints(-2, 1), ints(-100, 100), ints(0, 1), ints(-2, 3)]),
    Case("Slice", (7, 6), attributes={"starts": [1], "ends": [-1], "axes": [1]}, opset=9),
    Case("Squeeze", (2, 1, 3, 1)),
    Case("Squeeze", (2, 1, 3), [ints(-2)]),
    Case("Unsqueeze", (2, 3), [ints(-1, 0)]),
    Case("Squeeze", (1, 3), attributes={"axes": [0]}, opset=11),
    Case("Expand", (3, 1), [ints(2, 1, 4)]),
    Case("Tile", (2, 3), [ints(2, 1)]),
    Case("Trilu", (4, 5), [np.asarray(-1)], {"upper": 0}),
    Case("Trilu", (2, 4, 4)),
    Case("Pad", (3, 4), [ints(1, 0, 0, 2), number(0.5)]),
    Case("Pad", (3, 4), [ints(1, 2, 1, 1)], {"mode": "reflect"}),
    Case("Pad", (3, 4), [ints(-1, 2, 0, -1)], {"mode": "edge"}),
    Case("Pad", (3, 4), [ints(1, 1), None, ints(-1)], {"mode": "wrap"}, opset=19),
    Case("DepthToSpace", (1, 8, 2, 3), attributes={"blocksize": 2}),
    Case("DepthToSpace", (1, 8, 2, 3), attributes={"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", (1, 2, 4, 6), attributes={"blocksize": 2}),
    Case("Concat", (2, 3), [noise(2, 2)], {"axis": -1}),
    Case("GatherElements", (3, 4), [ints(0, -1, 2, 1)[None]]),
    Case("GatherND", (3, 4, 2), [ints(0, -1, 2, 1).reshape(2, 2)]),
    Case("GatherND", (2, 3, 4), [ints(1, 2).reshape(2, 1)], {"batch_dims": 1}),
    Case("ScatterElements", (3, 4), [ints(0, -1, 2, 1)[None], noise(1, 4)]),
    Case("ScatterElements", (3, 4), [ints(0, 0, 2, 1)[None], noise(1, 4)], {"axis": 1, "reduction": "add"}),
    Case("ScatterND", (4, 3), [ints(-1, 1).reshape(2, 1), noise(2, 3)]),
    Case("OneHot", ints(0, -1, 5, 2), [ints(3), np.asarray([-1, 2], np.float32)]),
    Case("Where", np.asarray([True, False, True]), [noise(3), noise(3, seed=2)]),
    Case("Compress", (4, 3), [np.asarray([True, False, True])], {"axis": 0}),
    Case("Einsum", (2, 3, 4), [noise(2, 4, 5)], {"equation": "bij, bjk -> bik"}, terms=4),
]

ELEMENTWISE = [
    *(
        Case(op, (3, 4))
        for op in (
            "Abs",
            "Atan",
            "Ceil",
            "Cos",
            "Elu",
            "Erf",
            "Exp",
            "Floor",
            "LeakyRelu",
            "Neg",
            "Round",
            "Selu",
            "Sigmoid",
            "Sign",
            "Sin",
            "Softplus",
            "Softsign",
            "Tanh",
            "Mish",
            "Reciprocal",
            "ThresholdedRelu",
            "Shrink",
            "IsNaN",
            "IsInf",
        )
    ),
    *(Case(op, np.abs(noise(3, 4))) for op in ("Log", "Sqrt")),
    *(
        Case(op, (3, 4), [noise(4)])
        for op in ("Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Less", "GreaterOrEqual", "PRelu", "Equal")
    ),
    Case("Round", np.asarray([0.5, 1.5, -0.5, -2.5], np.float32)),
    Case("Celu", (3, 4), attributes={"alpha": 2.0}, opset=12),
    Case("Pow", np.abs(noise(3, 4)), [np.asarray(3, np.int64)]),
    Case("Div", ints(-7, 7, 5), [ints(2, -2, 3)]),
    Case("Mod", ints(-7, 7, 5), [ints(2, -3, 3)]),
    Case("Mod", (3, 4), [noise(4)], {"fmod": 1}),
    Case("Cast", (3, 4), attributes={"to": TensorProto.INT32}),
    Case("Cast", (3, 4), attributes={"to": TensorProto.BOOL}),
    Case("BitShift", np.asarray([1, 2, 8], np.uint8), [np.asarray([1, 2, 3], np.uint8)], {"direction": "LEFT"}),
    Case("Hardmax", (3, 4)),
    Case("PRelu", (2, 3, 4), [noise(3, 1)]),
]

NORMALIZATIONS = [
    Case("InstanceNormalization", IMAGE, [noise(4), noise(4)], terms=84),
    Case("LRN", IMAGE, attributes={"size": 3}, terms=3),
    Case("GroupNormalization", IMAGE, [noise(4), noise(4)], {"num_groups": 2}, opset=21, terms=168),
    Case("LpNormalization", (3, 4), attributes={"axis": 0, "p": 1}, terms=3),
    Case("LpNormalization", (3, 4), terms=4),
    Case("MeanVarianceNormalization", IMAGE, terms=168),
    Case("QuantizeLinear", (3, 4), [number(0.1), np.asarray(3, np.int8)]),
    Case("QuantizeLinear", (3, 4), [np.asarray([0.1, 0.2, 0.3], np.float32)], {"axis": 0}),
    Case("DequantizeLinear", np.asarray([0, 100, 255], np.uint8), [number(0.1), np.asarray(128, np.uint8)]),
    Case(
        "FusedMatMul",
        (2, 4, 3),
        [noise(2, 5, 4)],
        {"transA": 1, "transB": 1, "alpha": 0.5},
        domain="com.microsoft",
        terms=4,
    ),
    Case("Gelu", (3, 4), domain="com.microsoft"),
    Case("FastGelu", (3, 4), [noise(4)], domain="com.microsoft"),
    Case("QuickGelu", (3, 4), domain="com.microsoft"),
    Case("BiasGelu", (3, 4), [noise(4)], domain="com.microsoft"),
    Case(
        "SkipLayerNormalization",
        (2, 3, 8),
        [noise(2, 3, 8), noise(8), noise(8), noise(8)],
        domain="com.microsoft",
        terms=16,
    ),
]

RESIZES = [
    Case(
        "Resize",
        (1, 2, 4, 5),
        [None, np.asarray([1, 1, *scales], np.float32)],
        {"mode": mode, "coordinate_transformation_mode": coordinates},
        terms=16,
    )
    for mode in ("nearest", "linear", "cubic")
    for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    for scales in ((2, 2), (0.6, 1.7))
] + [
    Case("Resize", (1, 2, 4, 5), [None, None, ints(1, 2, 7, 3)], {"mode": "linear"}, terms=16),
    Case("Resize", (1, 2, 4, 5), [None, None, ints(7, 3)], {"mode": "nearest", "axes": [2, 3], "nearest_mode": "ceil"}),
    Case("Resize", (4, 5), [None, np.asarray([1.5, 3], np.float32)], {"mode": "linear"}, terms=16),
    Case("Upsample", (1, 2, 3, 4), [np.asarray([1, 1, 2, 3], np.float32)], opset=9),
    Case("Resize", (1, 2, 3, 4), [np.asarray([1, 1, 2, 2], np.float32)], opset=10, becomes=("image.resize2d",)),
]


def identify(case: Case) -> str:
    return f"{case.op}-{case.opset}-{'-'.join(map(str, case.attributes.values()))}"


@pytest.mark.parametrize(
    "case", [*PREFERRED, *POOLS, *REDUCTIONS, *MOVEMENTS, *ELEMENTWISE, *NORMALIZATIONS, *RESIZES], ids=identify
)
def test_operator_agrees_with_onnx_runtime(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        Case("Einsum", (2, 3, 4), [], {"equation": "...ij->ij"}),
    ],
    ids=identify,
)
def test_forms_without_translation_say_so(case: Case) -> None:
    with pytest.raises(UnsupportedOperatorError, match=case.op):
        import_onnx(model_of(case))


def test_bias_is_per_channel_and_weights_are_folded() -> None:
    convolution = check(PREFERRED[0])
    assert shape_of(op_bindings(convolution.mod["main"])[1].value.args[1]) == (6, 1, 1)
    gemm = check(Case("Gemm", (5, 4), [noise(3, 4), noise(3)], {"transB": 1}, becomes=("matmul", "add"), terms=4))
    product, bias = op_bindings(gemm.mod["main"])
    assert isinstance(product.value.args[1], Constant) and shape_of(product.value.args[1]) == (4, 3)
    assert shape_of(bias.value.args[1]) == (3,)


def test_a_wrong_weight_is_noticed() -> None:
    """The tolerance of these tests does not hide a relative error of 1e-4 in one weight."""
    case = PREFERRED[0]
    changed = [
        case.others[0] * np.where(np.arange(36 * 6).reshape(6, 4, 3, 3) == 7, np.float32(1.01), 1),
        case.others[1],
    ]
    got = results(import_onnx(model_of(Case(case.op, case.x, changed, case.attributes))), data_of(case))[0]
    want = results(import_onnx(model_of(case)), data_of(case))[0]
    assert np.abs(got - want).max() > EPS * (16 + case.terms) * np.abs(want).max()


bound = st.integers(-9, 9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(bound, bound, st.integers(-3, 3).filter(bool)), min_size=2, max_size=2))
def test_slices_are_those_of_numpy(parts: list[tuple[int, int, int]]) -> None:
    starts, ends, steps = (ints(*p) for p in zip(*parts, strict=True))
    x = noise(5, 6)
    want = x[tuple(slice(*p) for p in parts)]  # ONNX and Python count bounds alike.
    got = results(import_onnx(model_of(Case("Slice", x, [starts, ends, ints(0, 1), steps]))), x)[0]
    assert np.array_equal(got, want)


@settings(max_examples=25, deadline=None)
@given(st.integers(5, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1), st.booleans(), st.booleans())
def test_pools_that_round_up_are_those_of_pytorch(
    extent: int, kernel: int, stride: int, pad: int, average: bool, counted: bool
) -> None:
    pad = min(pad, kernel // 2)
    attributes: dict[str, object] = {"kernel_shape": [kernel], "strides": [stride], "pads": [pad, pad], "ceil_mode": 1}
    if average:
        attributes["count_include_pad"] = int(counted)
    x = noise(1, 2, extent)
    got = results(import_onnx(model_of(Case("AveragePool" if average else "MaxPool", x, (), attributes))), x)[0]
    t = torch.from_numpy(x)
    want = (
        torch.nn.functional.avg_pool1d(t, kernel, stride, pad, True, counted)
        if average
        else torch.nn.functional.max_pool1d(t, kernel, stride, pad, ceil_mode=True)
    ).numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=EPS * (4 + kernel) * float(np.abs(want).max()))
