"""A residual network for Fashion-MNIST, trained once for this project, with the images to calibrate and judge it.

The weights come from ``python -m narrowcast.models.train_fashion_mnist``. The images are those of Fashion-MNIST
(Xiao, Rasul and Vollgraf, 2017, MIT licence): the whole test split, and 100 images of each class of the training split
for calibration. All three lie beside this file in ``data/`` as safetensors; nothing is unpickled.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .shipped import load_shipped

CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)
MEAN = 0.2860
"""Mean of the training split's pixels, scaled to [0, 1]."""
STD = 0.3530
"""Standard deviation of the training split's pixels, scaled to [0, 1]."""

WEIGHTS = "fashion_mnist.safetensors"
TEST_IMAGES = "fashion_mnist_test.safetensors"
CALIBRATION_IMAGES = "fashion_mnist_calibration.safetensors"


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., 2015, the basic block).

    The shortcut is the identity where the shape stays, else a 1x1 convolution with the same stride.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class FashionNet(nn.Module):
    """Images float32 [N, 1, 28, 28] (see ``normalize``) to logits [N, 10].

    A 3x3 stem, three stages of two residual blocks that halve the sides to 14, 7 and 4, a global average pool and a
    linear layer.
    """

    def __init__(self, stem: int = 16, widths: tuple[int, ...] = (32, 64, 96)) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, stem, 3, 1, 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU())
        stages: list[nn.Module] = []
        channels = stem
        for width in widths:
            stages += [ResidualBlock(channels, width, 2), ResidualBlock(width, width, 1)]
            channels = width
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


def normalize(pixels: Tensor) -> Tensor:
    """Pixels uint8 [N, 28, 28] to what the network takes, float32 [N, 1, 28, 28]."""
    return ((pixels.to(torch.float32) / 255.0 - MEAN) / STD).unsqueeze(1)


def load() -> FashionNet:
    """The trained network, float32, in inference mode.

    Raises DataError where the weights' file is missing.
    """
    model = FashionNet()
    model.load_state_dict(_tensors(WEIGHTS))
    return model.eval()


def test_data() -> tuple[Tensor, Tensor]:
    """The test split: images float32 [10000, 1, 28, 28], normalised, and labels int64 [10000]."""
    return _images(TEST_IMAGES)


def calibration_data() -> tuple[Tensor, Tensor]:
    """1,000 images of the training split, 100 a class, float32 [1000, 1, 28, 28] normalised; labels int64 [1000]."""
    return _images(CALIBRATION_IMAGES)


def _images(name: str) -> tuple[Tensor, Tensor]:
    tensors = _tensors(name)
    return normalize(tensors["images"]), tensors["labels"].to(torch.int64)


def _tensors(name: str) -> dict[str, Tensor]:
    return load_shipped(name, made_by="train_fashion_mnist")
