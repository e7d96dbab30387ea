"""Small relatives of well-known networks through the PyTorch frontend and the pipeline of passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from narrowcast.frontends import ImportedModel
from narrowcast.ir import groups_of
from narrowcast.operators import reference
from narrowcast.passes import run_pipeline

from .vision_networks import ConvNextBlock

Same = Callable[..., ImportedModel]


class SqueezeExcite(nn.Module):
    """MobileNetV3's and EfficientNet's gate."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1))))
        return x * F.hardsigmoid(gate)


class MobileBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True))
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False), nn.BatchNorm2d(8),
                                       nn.ReLU6())
        self.gate = SqueezeExcite()
        self.project = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.project(self.gate(self.depthwise(self.expand(x))))


class DenseBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 2 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(4 + 2 * i, 2, 3, padding=1, bias=False) for i in range(3))
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(F.relu(norm(torch.cat(features, 1)), inplace=True)))
        return self.pool(torch.cat(features, 1))


class ShuffleBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1, groups=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, worked = x.chunk(2, dim=1)
        y = torch.cat((kept, self.branch(worked)), dim=1)
        batch, channels, height, width = y.shape
        shuffled = y.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        return shuffled.view(batch, -1, height, width)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(12, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = F.relu(self.down(x))
        y = F.relu(self.deep(F.max_pool2d(skip, 2)))
        y = self.out(torch.cat([self.up(y), skip], 1))
        return F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)


class CausalBlock(nn.Module):
    """GPT-2's block: one projection for q, k, v, a triangular buffer, attention by hand, the tanh GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.register_buffer("visible", torch.ones(16, 16).tril().view(1, 1, 16, 16) > 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        q, k, v = (t.view(batch, steps, 2, width // 2).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) / (k.size(-1) ** 0.5)
        scores = scores.masked_fill(~self.visible[:, :, :steps, :steps], float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(batch, steps, width)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 8, 4, stride=4)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.positions
        return self.head(self.encoder(y)[:, 0])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mobilenet": (MobileBlock, (2, 4, 8, 8)), "densenet": (DenseBlock, (2, 4, 8, 8)),
    "shufflenet": (ShuffleBlock, (2, 4, 8, 8)), "convnext": (ConvNextBlock, (2, 4, 8, 8)), "unet": (UNet, (2, 4, 8, 8)),
    "gpt": (CausalBlock, (2, 5, 8)), "vit": (VisionTransformer, (2, 4, 8, 8)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, same_as_pytorch: Same) -> None:
    make, sizes = NETWORKS[name]
    x = torch.randn(sizes)
    imported = same_as_pytorch(make(), x)
    grouped = run_pipeline(imported.mod)
    before, after = (reference.run(m, [x])[0] for m in (imported.mod, grouped))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert {"conv", "depthwise", "matmul"} & {g.kind for g in groups_of(grouped)}
