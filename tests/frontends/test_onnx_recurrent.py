"""The recurrent layers of ONNX against ONNX Runtime, and against ONNX's own node tests."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from narrowcast.errors import ImportModelError
from narrowcast.frontends.model import ImportedModel
from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.recurrent import GATES
from narrowcast.operators.reference import run

from .bindings import operations

EPS = float(np.finfo(np.float32).eps)
STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6
ACTIVATIONS = ("Relu", "LeakyRelu", "HardSigmoid", "Elu", "Softsign", "Softplus", "Tanh", "Sigmoid")
WITH_PARAMETERS = ("Affine", "ThresholdedRelu", "ScaledTanh")


@dataclass(frozen=True)
class Case:
    """A node: which of its optional inputs it has, and its attributes."""

    op: str
    attributes: dict[str, object] = field(default_factory=dict)
    has: str = "B H C"
    lengths: tuple[int, ...] | None = None

    @property
    def directions(self) -> int:
        return 2 if self.attributes.get("direction") == "bidirectional" else 1


def inputs_of(case: Case) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    rows, d = GATES[case.op.lower()] * HIDDEN, case.directions
    shapes = {"X": (STEPS, BATCH, INPUTS), "W": (d, rows, INPUTS), "R": (d, rows, HIDDEN), "B": (d, 2 * rows),
              "L": (), "H": (d, BATCH, HIDDEN), "C": (d, BATCH, HIDDEN), "P": (d, 3 * HIDDEN)}
    found = {n: (generator.standard_normal(s) * 0.7).astype(np.float32) for n, s in shapes.items()
             if n in ("X", "W", "R") or (n in case.has and (n in "BH" or case.op == "LSTM"))}
    if case.lengths is not None:
        found["L"] = np.asarray(case.lengths, np.int32)
    return found


def model_of(case: Case, *, constants: str = "", opset: int = 14) -> onnx.ModelProto:
    arrays = inputs_of(case)
    names = [n if n in arrays else "" for n in "XWRBLHCP"]
    outputs = ["Y", "Y_h", *(["Y_c"] if case.op == "LSTM" else [])]
    node = helper.make_node(case.op, names[:8 if case.op == "LSTM" else 6], outputs, "node", hidden_size=HIDDEN,
                            **case.attributes)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, TensorProto.INT32 if n == "L" else TensorProto.FLOAT, a.shape)
         for n, a in arrays.items() if n not in constants],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def results(imported: ImportedModel, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [t.numpy() for t in run(imported.mod, [torch.from_numpy(arrays[i.name]) for i in imported.inputs])]


def check(case: Case, constants: str) -> None:
    model, arrays = model_of(case, constants=constants), inputs_of(case)
    imported = import_onnx(model)
    assert operations(imported)[0] == f"narrowcast.{case.op.lower()}"
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {n: a for n, a in arrays.items() if n not in constants})
    for got, want in zip(results(imported, arrays), expected, strict=True):
        assert got.shape == want.shape
        # the longest sum has INPUTS + HIDDEN products; what steps add to its rounding, unbounded activations can scale
        bound = EPS * 4 * STEPS * (INPUTS + HIDDEN) * np.abs(want).max(initial=1)
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


@pytest.mark.parametrize("constants", ["", "WRB", "WRBLHCP"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_directions_lengths_and_weights_known_or_not(op: str, direction: str, constants: str) -> None:
    for has, lengths in (("B H C", None), ("", None), ("B", (5, 0, 2)), ("H C", (1, 2, 3)), ("B H C", (5, 5, 5))):
        check(Case(op, {"direction": direction}, has, lengths), constants)


@pytest.mark.parametrize("case", [
    *(Case("LSTM", {"direction": d}, "B H C P") for d in ("reverse", "bidirectional")),
    *(Case(op, {"clip": 0.4, "direction": "bidirectional"}, "B H C P", (5, 4, 2)) for op in ("LSTM", "GRU", "RNN")),
    Case("LSTM", {"input_forget": 1}, "B H C P"),
    Case("LSTM", {"input_forget": 1, "clip": 0.5}),
    Case("GRU", {"linear_before_reset": 1, "direction": "bidirectional", "clip": 0.6}),
    Case("GRU", {"linear_before_reset": 1}, ""),
    Case("LSTM", {"activations": ["Relu", "Elu", "Tanh", "HardSigmoid", "Affine", "Softsign"],
                  "activation_alpha": [0.3, 0.4, 0.5], "activation_beta": [0.1, 0.2], "direction": "bidirectional"}),
    Case("GRU", {"activations": ["HardSigmoid", "softsign"]}),
    *(Case("RNN", {"activations": [a]}) for a in ACTIVATIONS),
    *(Case("RNN", {"activations": [a], "activation_alpha": [0.3], "activation_beta": [0.6]})
      for a in ACTIVATIONS + WITH_PARAMETERS),
], ids=lambda c: f"{c.op}-{c.attributes}-{c.has}".replace(" ", ""))
def test_forms(case: Case) -> None:
    check(case, "WRBP")


def cases_of_onnx() -> list[object]:
    """ONNX's own node tests of these operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node = importlib.import_module("onnx.backend.test.case.node")
        for module in ("lstm", "gru", "rnn"):
            importlib.import_module(f"{node.__name__}.{module}")
    return [c for c in node._NodeTestCases if c.model.graph.node[0].op_type in ("LSTM", "GRU", "RNN")]


@pytest.mark.parametrize("known", [False, True])
def test_node_tests_of_onnx(known: bool) -> None:
    """All of them, with weights that are inputs and with weights that are initializers."""
    cases = cases_of_onnx()
    assert len(cases) >= 18
    for case in cases:
        inputs, outputs = case.data_sets[0]  # type: ignore[attr-defined]
        model = onnx.ModelProto()
        model.CopyFrom(case.model)  # type: ignore[attr-defined]
        names = [i.name for i in model.graph.input]
        if known:
            model.graph.initializer.extend(
                numpy_helper.from_array(a, n) for a, n in zip(inputs[1:], names[1:], strict=True))
        found = results(import_onnx(model), dict(zip(names, inputs, strict=True)))
        for got, want in zip(found, outputs, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=0, atol=EPS * 64, err_msg=case.name)  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_the_batch_may_come_first(op: str) -> None:
    """ONNX Runtime lacks this layout: the transposed layer has to give the transposed results."""
    case, turned = Case(op, lengths=(5, 1, 2)), Case(op, {"layout": 1}, lengths=(5, 1, 2))
    arrays = inputs_of(case)
    transposed = {n: a.transpose(1, 0, 2) if n in "XHC" else a for n, a in arrays.items()}
    for constants in ("WRBL", "WRBLHC"):
        model = model_of(turned, constants=constants)
        for value in (*model.graph.input, *model.graph.initializer):
            if value.name in ("X", "H", "C"):
                dims = value.dims if isinstance(value, TensorProto) else value.type.tensor_type.shape.dim
                if isinstance(value, TensorProto):
                    value.CopyFrom(numpy_helper.from_array(transposed[value.name], value.name))
                else:
                    for dim, extent in zip(dims, transposed[value.name].shape, strict=True):
                        dim.dim_value = extent
        found = results(import_onnx(model), {n: np.ascontiguousarray(a) for n, a in transposed.items()})
        for got, want, axes in zip(found, results(import_onnx(model_of(case)), arrays), ((2, 0, 1, 3), (1, 0, 2),
                                                                                     (1, 0, 2)), strict=False):
            np.testing.assert_allclose(got, want.transpose(axes), rtol=0, atol=EPS * STEPS * (INPUTS + HIDDEN))


def test_extents_under_different_names_are_the_same() -> None:
    """The batch of a state is that of the sequence, whatever the file calls it."""
    case = Case("LSTM", lengths=(5, 1, 2))
    model, arrays = model_of(case, constants="WRB"), inputs_of(case)
    names = {"X": ("steps", "batch", "features"), "L": ("samples",), "H": ("d", "n", "h"), "C": ("d", "batch", "h")}
    for value in model.graph.input:
        for dim, name in zip(value.type.tensor_type.shape.dim, names[value.name], strict=True):
            dim.dim_param = name
    imported = import_onnx(model)
    shapes = {i.name: i.shape for i in imported.inputs}
    batch = shapes["X"][1]
    assert shapes == {"X": ("steps", batch, INPUTS), "L": (batch,), **dict.fromkeys("HC", (1, batch, HIDDEN))}
    for got, want in zip(results(imported, arrays), results(import_onnx(model_of(case)), arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=EPS * STEPS * (INPUTS + HIDDEN))


@pytest.mark.parametrize("opset", [7, 14, 22])
def test_opsets(opset: int) -> None:
    case = Case("GRU")
    found = results(import_onnx(model_of(case, constants="WRB", opset=opset)), inputs_of(case))
    assert found[0].shape == (STEPS, 1, BATCH, HIDDEN)


@pytest.mark.parametrize(("attributes", "message"), [
    ({"direction": "sideways"}, "the direction is unknown"),
    ({"activations": ["Tanh", "Tanh"]}, "the number of activations is wrong"),
    ({"activations": ["Gelu"]}, "an activation is unknown"),
    ({"activations": ["ScaledTanh"]}, "lacks its alpha or beta"),
    ({"direction": "bidirectional"}, "the operand w does not fit the others"),
])
def test_nodes_that_contradict_the_definition(attributes: dict[str, object], message: str) -> None:
    model = model_of(Case("RNN"))
    for name, value in attributes.items():
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    with pytest.raises(ImportModelError, match=message):
        import_onnx(model)
