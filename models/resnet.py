"""ResNet-50 (He et al., 2015) in the form known as v1.5: the 3x3 convolution of a bottleneck carries the stride.

The module's names and shapes are torchvision's, so that its ``state_dict`` files load.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .random_weights import image_network

EXPANSION = 4
"""Output channels of a bottleneck over its inner ones."""


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + shortcut)


class ResNet(nn.Module):
    """Images float32 [N, 3, H, W] to logits [N, classes]; ``blocks`` bottlenecks in each of the four stages."""

    def __init__(self, blocks: tuple[int, int, int, int] = (3, 4, 6, 3), classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(64, 64, blocks[0], stride=1)
        self.layer2 = self._stage(256, 128, blocks[1], stride=2)
        self.layer3 = self._stage(512, 256, blocks[2], stride=2)
        self.layer4 = self._stage(1024, 512, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * EXPANSION, classes)

    @staticmethod
    def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        first = Bottleneck(inputs, width, stride)
        return nn.Sequential(first, *(Bottleneck(width * EXPANSION, width, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def build(seed: int = 0) -> nn.Module:
    """ResNet-50 in inference mode with seeded random weights: for its speed, not for its answers."""
    return image_network(ResNet, seed)
