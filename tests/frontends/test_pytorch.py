"""The PyTorch frontend: names, preferred forms, inputs and outputs, what it leaves alone, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from narrowcast.frontends import ImportedModel, import_model
from narrowcast.ir import constant_value, op_bindings, op_name, shape_of

from .bindings import names, operations

Same = Callable[..., ImportedModel]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 3, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.relu(self.bn1(self.conv1(x))) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block(), Block())
        self.fc = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer1(x).mean((2, 3))) * 2


def test_layer_names_survive(same_as_pytorch: Same) -> None:
    block = ["conv1", "conv1.1", "bn1", "bn1.1", "relu", "add", "relu.1"]
    imported = same_as_pytorch(Net(), torch.randn(2, 3, 5, 5))
    assert names(imported) == [*(f"layer1.{i}.{n}" for i in (0, 1) for n in block), "mean", "fc", "fc.1", "mul"]
    assert imported.source == "pytorch" and imported.outputs == ("output",)


def test_names_survive_a_region_without_gradients(same_as_pytorch: Same) -> None:
    class Frozen(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                y = self.layer1(x)
            return self.fc(y.mean((2, 3)))

    assert "layer1.1.bn1" in names(same_as_pytorch(Frozen(), torch.randn(2, 3, 5, 5)))


def test_a_linear_layer_is_a_matmul_with_the_transposed_weight() -> None:
    layer = nn.Linear(3, 5)
    imported = import_model(layer, torch.randn(2, 3))
    assert operations(imported) == ["relax.matmul", "relax.add"]
    weight, bias = (constant_value(b.value.args[1]) for b in op_bindings(imported.mod["main"]))
    np.testing.assert_array_equal(weight, layer.weight.detach().numpy().T)
    np.testing.assert_array_equal(bias, layer.bias.detach().numpy())


def test_a_convolution_has_its_bias_as_an_addition_per_channel() -> None:
    imported = import_model(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5))
    assert operations(imported) == ["relax.nn.conv2d", "relax.add"]
    assert shape_of(op_bindings(imported.mod["main"])[1].value.args[1]) == (4, 1, 1)


def test_batch_normalization_is_a_multiplication_and_an_addition() -> None:
    imported = import_model(nn.BatchNorm2d(4), torch.randn(1, 4, 5, 5))
    assert operations(imported) == ["relax.multiply", "relax.add"]
    assert all(shape_of(b.value.args[1]) == (4, 1, 1) for b in op_bindings(imported.mod["main"]))


FORMS = {
    "gelu": (nn.GELU(), ["relax.nn.gelu"]), "gelu_tanh": (nn.GELU(approximate="tanh"), ["relax.nn.gelu_tanh"]),
    "silu": (nn.SiLU(), ["relax.nn.silu"]), "relu6": (nn.ReLU6(), ["relax.clip"]),
    "hard_swish": (nn.Hardswish(), ["narrowcast.hard_swish"]),
    "hard_sigmoid": (nn.Hardsigmoid(), ["narrowcast.hard_sigmoid"]),
    "layer_norm": (nn.LayerNorm(6), ["relax.nn.layer_norm"]), "rms_norm": (nn.RMSNorm(6), ["relax.nn.rms_norm"]),
    "softmax": (nn.Softmax(-1), ["relax.nn.softmax"]),
    "dropout": (nn.Sequential(nn.Dropout(), nn.ReLU()), ["relax.nn.relu"]),
    "leaky_relu": (nn.LeakyReLU(), ["relax.nn.leakyrelu"]), "sigmoid": (nn.Sigmoid(), ["relax.sigmoid"]),
    "noise": (nn.Sequential(nn.Identity(), nn.Tanh()), ["relax.tanh"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_preferred_forms(name: str) -> None:
    module, expected = FORMS[name]
    assert operations(import_model(module, torch.randn(4, 6))) == expected


def test_an_embedding_is_a_take_that_stays_inside_the_table(same_as_pytorch: Same) -> None:
    imported = same_as_pytorch(nn.Embedding(10, 4), torch.randint(0, 10, (2, 3)))
    call = op_bindings(imported.mod["main"])[0].value
    assert op_name(call) == "relax.take" and call.attrs.axis == 0 and call.attrs.mode == "clip"


ATTENTIONS: dict[str, tuple[dict[str, Any], list[tuple[int, ...]]]] = {
    "plain": ({}, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)]),
    "scaled": ({"scale": 0.3}, [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)]),
    "causal": ({"is_causal": True}, [(2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)]),
    "grouped": ({"enable_gqa": True}, [(2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)]),
    "three_dims": ({}, [(3, 5, 8), (3, 7, 8), (3, 7, 8)]),
    "five_dims": ({}, [(2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 8)]),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str, same_as_pytorch: Same) -> None:
    options, shapes = ATTENTIONS[name]
    imported = same_as_pytorch(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
                               *(torch.randn(s) for s in shapes))
    causal = "is_causal" in options
    assert [o for o in operations(imported) if "attention" in o] == ["relax.nn.attention" + "_bias" * causal]
    assert "scaled_dot_product_attention" in names(imported)


@pytest.mark.parametrize("sizes", [(5, 7), (2, 1, 1, 7), (2, 3, 5, 7), (2, 1, 5, 1)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_with_a_mask_that_is_an_input(sizes: tuple[int, ...], kind: str, same_as_pytorch: Same) -> None:
    mask = torch.rand(sizes) > 0.3 if kind == "bool" else torch.randn(sizes)
    if kind == "bool":
        mask[..., 0] = True
    imported = same_as_pytorch(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
                               *(torch.randn(2, 3, n, 8) for n in (5, 7, 7)), mask)
    assert "relax.nn.attention_bias" in operations(imported)


def test_attention_with_a_constant_mask_of_minus_infinity(same_as_pytorch: Same) -> None:
    mask = torch.full((5, 5), -torch.inf).triu(1)
    imported = same_as_pytorch(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask),
                               torch.randn(2, 3, 5, 8))
    assert operations(imported).count("relax.nn.attention_bias") == 1


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention(need_weights: bool, same_as_pytorch: Same) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mha = attention

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mha(x, x, x, need_weights=need_weights)[0]

    imported = same_as_pytorch(Model(), torch.randn(2, 5, 8))
    assert ("relax.nn.attention" in operations(imported)) != need_weights
