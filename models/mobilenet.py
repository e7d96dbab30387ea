"""MobileNetV2 (Sandler et al., 2018) of width 1.0. Names and shapes are torchvision's, so that its files load."""

from __future__ import annotations

from torch import Tensor, nn

from .random_weights import image_network

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, output channels, number of blocks and stride of the first one (table 2 of the paper)."""


def conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the sides (over the stride), batch normalization and ReLU6."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Expansion (none where it is 1), depthwise 3x3 and linear projection; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [conv_bn_relu6(inputs, hidden, 1)]
        layers += [
            conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """Images float32 [N, 3, H, W] to logits [N, classes]."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn_relu6(3, 32, 3, 2)]
        channels = 32
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, outputs, expansion, stride if block == 0 else 1))
                channels = outputs
        layers.append(conv_bn_relu6(channels, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def build(seed: int = 0) -> nn.Module:
    """MobileNetV2 in inference mode with seeded random weights: for its speed, not for its answers."""
    return image_network(MobileNetV2, seed)
