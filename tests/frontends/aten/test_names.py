"""Names of layers: the user's own, letter by letter, and the same from both frontends."""

from __future__ import annotations

import ast
from collections.abc import Callable

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

from narrowcast.frontends import ImportedModel, import_model
from narrowcast.ir import groups_of, op_bindings
from narrowcast.models.efficientnet_lite import ConvNorm, MobileBlock
from narrowcast.passes import run_pipeline

WEIGHTED = ("conv", "depthwise", "matmul")


class PaddedConv(nn.Conv2d):
    """A convolution whose padding is a module of its own, as EfficientNet's are."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, groups=groups, bias=False)
        self.static_padding = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.static_padding(x)
        return functional.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._expand_conv = PaddedConv(4, 8, 2)
        self._bn0 = nn.BatchNorm2d(8)
        self._depthwise_conv = PaddedConv(8, 8, 2, groups=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._depthwise_conv(torch.relu(self._bn0(self._expand_conv(x))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 4, 3)
        self._blocks = nn.ModuleList([Block()])
        self._fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._conv_stem(x)
        for block in self._blocks:
            x = block(x)
        return self._fc(x.mean((2, 3)))


class Mobile(nn.Module):
    """EfficientNet-lite's parts, with a few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 8, 3, 2)
        self.blocks = nn.Sequential(
            MobileBlock(8, 8, 1, 3, 1), MobileBlock(8, 12, 3, 5, 2), MobileBlock(12, 12, 3, 3, 1))
        self.classifier = nn.Linear(12, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.blocks(self.stem(x)).mean((2, 3)))


def from_onnx(module: nn.Module, x: torch.Tensor) -> onnx.ModelProto:
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto


def weighted_groups(imported: ImportedModel) -> list[tuple[str, str]]:
    return [(g.kind, g.name) for g in groups_of(run_pipeline(imported.mod)) if g.kind in WEIGHTED]


def test_leading_underscores_are_the_users() -> None:
    imported = import_model(Network().eval(), torch.randn(1, 3, 12, 12))
    found = {b.var.name for b in op_bindings(imported.mod["main"])}
    assert {"_conv_stem", "_blocks.0._expand_conv", "_blocks.0._bn0", "_blocks.0._depthwise_conv", "_fc"} <= found
    ast.parse(imported.mod.script(show_meta=False))


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_keep_underscores(strict: bool) -> None:
    program = torch.export.export(Network().eval(), (torch.randn(1, 3, 12, 12),), strict=strict)
    assert [n for _, n in weighted_groups(import_model(program))] == [
        "_conv_stem", "_blocks.0._expand_conv", "_blocks.0._depthwise_conv", "_fc"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [Network, Mobile])
def test_both_frontends_name_weighted_groups_alike(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = build().eval(), torch.randn(1, 3, 16, 16)
    ours, theirs = (weighted_groups(import_model(m, (x if m is module else x.numpy(),)))
                    for m in (module, from_onnx(module, x)))
    assert ours == theirs and len(ours) >= 4
    parameters = dict(module.named_parameters())
    assert all(f"{name}.weight" in parameters for _, name in ours)


def test_a_layer_that_does_more_keeps_its_name() -> None:
    class Activated(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(super().forward(x)) + 1

    imported = import_model(nn.Sequential(Activated(3, 4, 3)).eval(), torch.randn(1, 3, 8, 8))
    found = [b.var.name for b in op_bindings(imported.mod["main"])]
    assert found == ["0", "0.1", "0.relu", "0.add"]
