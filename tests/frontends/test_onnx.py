"""The ONNX frontend on whole models: exported networks, names, binding of shapes, folding, functions, branches."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends.model import ImportedModel
from narrowcast.frontends.onnx import import_onnx
from narrowcast.frontends.pytorch import import_pytorch
from narrowcast.ir import Constant, TensorSpec, op_bindings
from narrowcast.operators.reference import run
from narrowcast.passes.verify import VerifyNormalForm

from .bindings import names, operations

EPS = float(np.finfo(np.float32).eps)


def ours(imported: ImportedModel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    inputs = {s.name: torch.from_numpy(a) for s, a in zip(imported.inputs, arrays, strict=True)}
    return [t.numpy() for t in run(imported.mod, inputs)]


def reference(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


def assert_same(model: onnx.ModelProto, arrays: Sequence[np.ndarray], terms: int,
                dims: dict[str, int] | None = None) -> ImportedModel:
    """Both programs agree to the rounding of sums of ``terms`` products, in series through the layers."""
    imported = import_onnx(model, arrays, dims)
    VerifyNormalForm()(imported.mod)
    for got, want in zip(ours(imported, arrays), reference(model, arrays), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=EPS * terms * max(float(np.abs(want).max()), 1e-6))
    return imported


def model_of(nodes: Sequence[onnx.NodeProto], inputs: dict[str, Sequence[int | str]], outputs: Sequence[str],
             initializers: dict[str, np.ndarray] | None = None, opset: int = 20, **extra: object) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, **extra)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.act = nn.Hardswish()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.act(self.bn1(self.conv1(x))) + x)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU6())
        self.layer1 = nn.Sequential(Block(8), Block(8))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.pool(self.layer1(self.stem(x))).flatten(1))


class Encoder(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(32, width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, steps = ids.shape
        x = self.words(ids) + self.places(torch.arange(steps)[None])
        q, k, v = (f(x).view(batch, steps, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        bias = (1.0 - mask[:, None, None, :].float()) * -1e4
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.norm(x + self.out(a.transpose(1, 2).reshape(batch, steps, -1)))
        return x + self.down(nn.functional.gelu(self.up(x)))


def exported(module: nn.Module, arguments: tuple[torch.Tensor, ...], path: Path, *, dynamo: bool) -> onnx.ModelProto:
    torch.onnx.export(module.eval(), arguments, str(path), dynamo=dynamo, verbose=False,
                      **({"external_data": False} if dynamo else {}))
    return onnx.load(str(path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
def test_convolutional_network_has_the_names_and_ops_of_the_pytorch_frontend(tmp_path: Path, dynamo: bool) -> None:
    torch.manual_seed(0)
    module, x = Classifier(), torch.randn(2, 3, 16, 16)
    model = exported(module, (x,), tmp_path / "net.onnx", dynamo=dynamo)
    imported = assert_same(model, [x.numpy()], terms=27 + 72 + 72 + 16)
    theirs = import_pytorch(module, (x,))
    anchors = ("relax.nn.conv2d", "relax.matmul", "relax.nn.adaptive_avg_pool2d", "relax.clip", "narrowcast.hard_swish",
               "relax.nn.relu")

    def named(m: ImportedModel) -> list[tuple[str, str | None]]:
        return [(n, o) for n, o in zip(names(m), operations(m), strict=True) if o in anchors]

    assert named(imported) == named(theirs)
    assert "stem.0" in names(imported) and "layer1.1.add" in names(imported)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
def test_encoder(tmp_path: Path, dynamo: bool) -> None:
    torch.manual_seed(0)
    module = Encoder()
    ids, mask = torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    model = exported(module, (ids, mask), tmp_path / "net.onnx", dynamo=dynamo)
    imported = assert_same(model, [ids.numpy(), mask.numpy()], terms=16 * 6 + 64 + 8)
    linear = [n for n, o in zip(names(imported), operations(imported), strict=True) if o == "relax.matmul"]
    assert {"query", "key", "value", "out", "up", "down"} <= set(linear)
    assert {"relax.take", "relax.nn.layer_norm", "relax.nn.gelu"} <= set(operations(imported))
    if dynamo:
        assert linear[4] == "scaled_dot_product_attention"  # Scores before it are a part of it.


@pytest.mark.models
def test_silero_voice_activity() -> None:
    files = importlib.metadata.files("silero-vad") if importlib.util.find_spec("silero_vad") else None
    path = next((f.locate() for f in files or () if f.name == "silero_vad_16k_sequence.onnx"), None)
    if path is None:
        pytest.skip("the package silero-vad is not installed")
    rng = np.random.default_rng(0)
    audio = 0.1 * rng.standard_normal((6, 576)).astype(np.float32)
    state = [0.1 * rng.standard_normal((1, 1, 128)).astype(np.float32) for _ in range(2)]
    imported = assert_same(onnx.load(path), [audio, *state], terms=256 + 4 * 387 + 6 * 256)
    assert imported.outputs == ("speech_probs", "hn", "cn")
    assert operations(imported).count("relax.nn.conv1d") == 6 and "narrowcast.lstm" in operations(imported)
    assert {"encoder.0", "encoder.3", "recurrent", "output"} <= set(names(imported))


def test_fixed_extents_make_shape_arithmetic_disappear() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["n"]),
             helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
             helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
             helper.make_node("Reshape", ["x", "target"], ["r"]),
             helper.make_node("ConstantOfShape", ["target"], ["ones"],
                              value=numpy_helper.from_array(np.ones(1, np.float32))),
             helper.make_node("Add", ["ones", "r"], ["y"])]
    model = model_of(nodes, {"x": ["batch", 2, 3]}, ["y"], {"zero": np.asarray(0), "axis": np.asarray([0]),
                                                            "rest": np.asarray([6])})
    imported = assert_same(model, [np.arange(24, dtype=np.float32).reshape(4, 2, 3)], terms=1, dims={"batch": 4})
    assert imported.inputs == (TensorSpec("x", (4, 2, 3), "float32"),)
    assert operations(imported) == ["relax.reshape", "relax.add"]
    addend = op_bindings(imported.mod["main"])[1].value.args[1]
    assert isinstance(addend, Constant)  # Constants come second.


def test_static_model_needs_no_examples() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"], name="act")], {"x": [2, 3]}, ["y"])
    imported = import_onnx(model)
    assert names(imported) == ["act"] and imported.source == "onnx" and imported.outputs == ("y",)


def test_extents_without_a_name_are_not_equal() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [-1, "?", "?"]}, ["y"])
    imported = import_onnx(model, [np.zeros((2, 3, 4), np.float32)])
    assert imported.inputs[0].shape == ("x_0", "x_1", "x_2") and imported.hints == {"x_0": 2, "x_1": 3, "x_2": 4}


@pytest.mark.parametrize(("scopes", "name", "expected"), [
    (["", "layer1", "layer1.0", "layer1.0.conv", "conv2d"], "n", "layer1.0.conv"),
    (["", "layer1", "layer1.0", "add_3"], "n", "layer1.0.add"),
    (["", "add_3"], "n", "add_3"),
    (None, "/layer1/layer1.0/conv/Conv", "layer1.0.conv"),
    (None, "/encoder/layer.0/attention/self/query/MatMul", "encoder.layer.0.attention.self.query"),
    (None, "/layer1/layer1.0/Add_1", "layer1.0.add"),
    (None, "/Add_1", "add_1"),
    (None, "a_name", "a_name"),
    (None, "", "y"),
])
def test_names(scopes: list[str] | None, name: str, expected: str) -> None:
    node, child = (helper.make_node("Neg", [i], [o], name=n) for i, o, n in
                   (("x", "y", name), ("y", "z", "/layer1/layer1.0/child/Neg")))
    if scopes is not None:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
    assert names(import_onnx(model_of([node, child], {"x": [3]}, ["z"])))[0] == expected


@pytest.mark.parametrize("text", ["[", "3", "['']", "[1, 2]", "(" * 9000, "__import__('os')", "x" * 20000])
def test_unreadable_scopes_are_ignored(text: str) -> None:
    node = helper.make_node("Neg", ["x"], ["y"], name="own")
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    assert names(import_onnx(model_of([node], {"x": [3]}, ["y"]))) == ["own"]


@pytest.mark.parametrize(("examples", "text"), [
    ([np.zeros((2, 3), np.float32)], "number of example inputs"),
    ([np.zeros((2, 3), np.float64), np.zeros((2, 3), np.float32)], "element type"),
    ([np.zeros((2, 3, 1), np.float32), np.zeros((2, 3), np.float32)], "rank"),
    ([np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32)], "dimension 1"),
    ([np.zeros((2, 3), np.float32), np.zeros((5, 3), np.float32)], "disagree about the dimension 'n'"),
])
def test_examples_that_do_not_fit(examples: list[np.ndarray], text: str) -> None:
    model = model_of([helper.make_node("Add", ["a", "b"], ["y"])], {"a": ["n", 3], "b": ["n", 3]}, ["y"])
    with pytest.raises(ImportModelError, match=text):
        import_onnx(model, examples)


def test_constant_branch_is_taken() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [onnx.ValueInfoProto(name="z")])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    for flag, op in ((True, "relax.nn.relu"), (False, "relax.negative")):
        model = model_of([node], {"x": [3]}, ["y"], {"flag": np.asarray(flag)})
        assert operations(import_onnx(model)) == [op]


def test_functions_of_the_model_are_called_in_place_and_named_after_the_call() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["t"]), helper.make_node("LeakyRelu", ["t"], ["b"])]
    body[1].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function("own", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 20)], ["slope"])
    model = model_of([helper.make_node("Square", ["x"], ["y"], name="layer", domain="own", slope=0.25)], {"x": [3]},
                     ["y"], functions=[function])
    imported = assert_same(model, [np.asarray([-1, 0, 2], np.float32)], terms=2)
    assert names(imported) == ["layer", "layer.1"]


def test_operators_that_onnx_defines_by_functions_need_no_translation() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((1, 2, 4, 8)).astype(np.float32) for i in range(3))
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attention")
    model = model_of([node], {n: [1, 2, 4, 8] for n in "qkv"}, ["y"], opset=23)
    imported = assert_same(model, [q, k, v], terms=8 + 4 + 8)
    assert all(n.startswith("attention") for n in names(imported))


def test_half_precision_becomes_float32() -> None:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2])], [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray([0.5, 2], np.float16), "w")])
    imported = import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert imported.inputs[0].dtype == "float32"
    assert ours(imported, [np.asarray([3, 5], np.float32)])[0].tolist() == [1.5, 10]


def test_outputs_may_be_inputs_and_constants() -> None:
    model = model_of([helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Shape", ["x"], ["s"])],
                     {"x": [2, 3]}, ["y", "s"])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, s = ours(import_onnx(model), [x])
    assert np.array_equal(y, x) and s.tolist() == [2, 3]


def test_all_operators_without_translation_are_listed_together() -> None:
    nodes = [helper.make_node("Bernoulli", ["x"], ["a"], name="first"),
             helper.make_node("Bernoulli", ["x"], ["b"], name="second"),
             helper.make_node("Mystery", ["a"], ["c"], name="third", domain="own"),
             helper.make_node("Relu", ["c"], ["y"], name="fine")]
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_onnx(model_of(nodes, {"x": [3]}, ["y", "b"]))
    text = str(caught.value)
    assert "Bernoulli (2 nodes: first, second)" in text and "own.Mystery (1 node: third)" in text and "fine" not in text


def test_the_callers_model_is_left_alone() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"])
    before = model.SerializeToString()
    first, second = import_onnx(model), import_onnx(model)
    assert model.SerializeToString() == before
    tvm.ir.assert_structural_equal(first.mod, second.mod)


def test_external_data_in_the_models_folder(tmp_path: Path) -> None:
    w = np.arange(2048, dtype=np.float32)
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": [2048]}, ["y"], {"w": w})
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
    imported = import_onnx(tmp_path / "m.onnx")
    assert np.array_equal(ours(imported, [np.zeros(2048, np.float32)])[0], w)


def test_nodes_may_come_in_any_order() -> None:
    nodes = [helper.make_node("Relu", ["t"], ["y"]), helper.make_node("Neg", ["x"], ["t"])]
    assert operations(import_onnx(model_of(nodes, {"x": [3]}, ["y"]))) == ["relax.negative", "relax.nn.relu"]
