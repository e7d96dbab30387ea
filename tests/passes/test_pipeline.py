"""The pipeline, on modules imported from PyTorch: results, groups, stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from narrowcast import ir
from narrowcast.errors import VerificationError
from narrowcast.frontends.pytorch import import_pytorch
from narrowcast.models.fashion_mnist import ResidualBlock
from narrowcast.operators.reference import run
from narrowcast.passes import PIPELINE, base, run_pipeline

from .graphs import EPS, Net, const

# Rounding: the folded weights, and sums in another order than PyTorch's, over at most this many terms in a row.
TERMS = 1024


def _randomized(model: nn.Module) -> nn.Module:
    """The model in inference form; its normalizations have statistics and its biases values, as trained ones have."""
    torch.manual_seed(0)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 1:
                parameter.data.uniform_(0.5, 1.5) if name == "weight" else parameter.data.normal_()
        if isinstance(module, nn.BatchNorm2d):
            module.register_buffer("running_mean", torch.randn(module.num_features))
            module.register_buffer("running_var", torch.rand(module.num_features) + 0.5)
    return model.eval()


def _compiled(model: nn.Module, *inputs: torch.Tensor) -> list[ir.Group]:
    """The groups of the model after the pipeline; the grouped module computes what PyTorch does."""
    mod = import_pytorch(_randomized(model), inputs).mod
    text = mod.script(show_meta=True)
    grouped = run_pipeline(mod)
    assert mod.script(show_meta=True) == text
    with torch.no_grad():
        expected = model(*inputs)
    (found,) = run(grouped, list(inputs))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TERMS * EPS * float(expected.abs().max()))
    return ir.groups_of(grouped)


def _ops(group: ir.Group) -> list[str]:
    return [str(ir.op_name(b.value)).split(".")[-1] for b in group.bindings]


def _kinds(groups: list[ir.Group]) -> Counter[str]:
    return Counter(g.kind for g in groups)


def test_residual_network() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                        ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(16, 5))
    groups = _compiled(net, torch.randn(1, 3, 32, 32))
    assert _kinds(groups)["conv"] == 6
    assert _kinds(groups)["elementwise"] == 0
    by_name = {g.name: g for g in groups}
    assert _ops(by_name["0"]) == ["conv2d", "add", "relu"]
    assert _ops(by_name["4.conv2"]) == ["conv2d", "add", "add", "relu"]
    assert by_name["4.conv2"].inputs == ("4.conv1", groups[[g.name for g in groups].index("4.conv1") - 1].name)
    assert _ops(by_name["5.shortcut.0"]) == ["conv2d", "add", "add", "relu"]
    movements = [op for g in groups if g.kind == "movement" for op in _ops(g)]
    assert movements.count("permute_dims") == 1


class _InvertedResidual(nn.Module):
    def __init__(self, channels: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), activation())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), activation())
        self.reduce, self.gate = nn.Conv2d(wide, channels, 1), nn.Conv2d(channels, wide, 1)
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.expand(x))
        gate = torch.sigmoid(self.gate(torch.relu(self.reduce(y.mean((2, 3), keepdim=True)))))
        return self.project(y * gate) + x


@pytest.mark.parametrize("activation", [nn.ReLU6, nn.SiLU, nn.Hardswish])
def test_squeeze_and_excitation(activation: Callable[[], nn.Module]) -> None:
    groups = _compiled(nn.Sequential(_InvertedResidual(4, activation)), torch.randn(2, 4, 8, 8))
    assert _kinds(groups) == {"movement": 2, "conv": 4, "depthwise": 1, "reduce": 1, "elementwise": 1}
    assert [_ops(g) for g in groups if g.kind == "movement"] == [["permute_dims"], ["permute_dims"]]
    assert all(len(_ops(g)) == 3 for g in groups if g.kind in ("conv", "depthwise"))


class _Bert(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(self.out(y) + x)
        return self.norm2(self.fc2(nn.functional.gelu(self.fc1(x))) + x)


def test_bert_layer() -> None:
    mask = torch.tensor([[0.0, 0.0, 0.0, -10.0, 0.0]])[:, None, None]
    groups = _compiled(_Bert(16, 4), torch.randn(2, 5, 16), mask.expand(2, 1, 1, 5).contiguous())
    assert _kinds(groups) == {"matmul": 6, "movement": 4, "attention": 1, "layer_norm": 2}
    ops = {g.name: _ops(g) for g in groups}
    assert ops["fc1"] == ["matmul", "add", "gelu"]
    assert ops["out"] == ops["fc2"] == ["matmul", "add", "add"]
    assert all(ops[n] == ["matmul", "add"] for n in ("q", "k", "v"))
    assert [_ops(g) for g in groups if g.kind == "movement"] == [["reshape"]] * 4


def test_transformer_encoder_layer_only_reshapes() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", batch_first=True)
    groups = _compiled(layer, torch.randn(2, 5, 16))
    assert _kinds(groups) == {"matmul": 6, "movement": 4, "attention": 1, "layer_norm": 2}
    assert [_ops(g) for g in groups if g.kind == "movement"] == [["reshape"]] * 4


def test_stages_are_observed_in_order() -> None:
    net = Net((2, 3))
    mod = net.module(net(tvm.relax.op.add(net.x, const([1, 2, 3])), "y"))
    stages: list[tuple[str, tvm.IRModule]] = []
    result = run_pipeline(mod, observe=lambda name, stage: stages.append((name, stage)))
    assert [name for name, _ in stages] == [step.name for step in PIPELINE]
    assert stages[-1][1].same_as(result)


def test_ill_formed_result_names_the_pass() -> None:
    class Broken:
        name = "Broken"

        def __call__(self, mod: tvm.IRModule) -> tvm.IRModule:
            stranger = tvm.relax.Var("stranger", tvm.relax.TensorType((2, 3), "float32"))
            net = Net((2, 3))
            return net.module(net(tvm.relax.op.exp(stranger), "y"))

    net = Net((2, 3))
    with pytest.raises(VerificationError, match="not well formed after Broken"):
        run_pipeline(net.module(net(tvm.relax.op.exp(net.x), "y")), [Broken()])


def test_passes_that_change_nothing_return_their_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net((2, 8))
    mod = net.module(net(relax.op.nn.relu(net.x), "act"))
    checked: list[str] = []
    monkeypatch.setattr(base, "require_well_formed", lambda mod, after: checked.append(after))
    seen = [mod]
    run_pipeline(mod, observe=lambda name, result: seen.append(result))
    changed = [p.name for p, a, b in zip(PIPELINE, seen[:-1], seen[1:], strict=True) if not b.same_as(a)]
    assert changed == ["FoldBatchNorm", "ToChannelsLast", "FuseGroups"]
    assert checked == ["the import", *changed]
