"""Small relatives of well-known vision networks, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, groups: int = 1,
         activation: type[nn.Module] = nn.ReLU, dilation: int = 1) -> nn.Sequential:
    """Convolution, batch norm, activation; the extents stay for a stride of 1."""
    padding = dilation * (kernel - 1) // 2
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False),
                         nn.BatchNorm2d(outputs), activation())


class Classifier(nn.Module):
    """Features, the mean over the image, a linear layer."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 4), (4, 8)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True),
                   nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(),
                         nn.Linear(8, 5))


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(inputs, outputs, 3, stride),
                                  nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.down(x))


def resnet() -> nn.Module:
    return Classifier(nn.Sequential(conv(3, 4, 7, 2), nn.MaxPool2d(3, 2, 1), ResidualBlock(4, 4, 1),
                                    ResidualBlock(4, 8, 2)), 8)


class DenseBlock(nn.Module):
    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(width + growth * i) for i in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width + growth * i, growth, 3, padding=1, bias=False) for i in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = torch.cat((x, layer(F.relu(norm(x), inplace=True))), 1)
        return x


def densenet() -> nn.Module:
    transition = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1, bias=False), nn.AvgPool2d(2))
    return Classifier(nn.Sequential(conv(3, 4), DenseBlock(4, 2), transition, DenseBlock(4, 2)), 8)


class InceptionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = conv(4, 2, 1), nn.Sequential(conv(4, 2, 1), conv(2, 2, 3))
        self.five, self.pool = nn.Sequential(conv(4, 2, 1), conv(2, 2, 5)), conv(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.pool(F.max_pool2d(x, 3, stride=1, padding=1))
        return torch.cat([self.one(x), self.three(x), self.five(x), pooled], 1)


class Fire(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.squeeze, self.one = nn.Conv2d(inputs, 2, 1), nn.Conv2d(2, 4, 1)
        self.three = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squeezed = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.one(squeezed)), F.relu(self.three(squeezed))], 1)


def squeezenet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(4), Fire(8),
                         nn.Conv2d(8, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class ShuffleBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(conv(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4), conv(4, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, worked = x.chunk(2, dim=1)
        y = torch.cat((kept, self.branch(worked)), dim=1)
        batch, channels, height, width = y.shape
        return y.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1))))
        return x * F.hardsigmoid(gate)


class InvertedResidual(nn.Module):
    """The block of MobileNetV2, V3, MNASNet and EfficientNet."""

    def __init__(self, width: int, activation: type[nn.Module], kernel: int = 3, *, excite: bool = False) -> None:
        super().__init__()
        self.expand = conv(width, 2 * width, 1, activation=activation)
        self.depthwise = conv(2 * width, 2 * width, kernel, groups=2 * width, activation=activation)
        self.excite = SqueezeExcite(2 * width) if excite else nn.Identity()
        self.project = nn.Sequential(nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.project(self.excite(self.depthwise(self.expand(x))))


class GhostModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.primary, self.cheap = conv(4, 4, 1), conv(4, 4, 3, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.primary(x)
        return torch.cat([y, self.cheap(y)], 1)[:, :7]


class ConvNextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.LayerNorm(4, eps=1e-6)
        self.up, self.down, self.scale = nn.Linear(4, 16), nn.Linear(16, 4), nn.Parameter(torch.full((4,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = conv(3, 4), conv(4, 8)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        y = self.up(self.deep(F.max_pool2d(skip, 2)))
        return self.out(torch.cat([F.interpolate(y, size=skip.shape[2:], mode="nearest"), skip], 1))


class FullyConvolutional(nn.Module):
    """FCN: class scores resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(conv(3, 4, 3, 2), conv(4, 8, 3, 2)), nn.Conv2d(8, 5, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.head(self.backbone(x))
        return {"out": F.interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class AtrousPyramid(nn.Module):
    """The pyramid of DeepLabV3."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(conv(4, 2, 3, dilation=d) for d in (1, 2, 3))
        self.pooled, self.project = conv(4, 2, 1), conv(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = F.interpolate(self.pooled(F.adaptive_avg_pool2d(x, 1)), size=x.shape[-2:], mode="bilinear")
        return self.project(torch.cat([*(b(x) for b in self.branches), image], 1))


class PyramidPooling(nn.Module):
    """PSPNet's pools at several sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [F.interpolate(F.adaptive_avg_pool2d(x, s), size=x.shape[2:], mode="bilinear") for s in (1, 2, 3)]
        return torch.cat([x, *parts], 1)


class FeaturePyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([conv(3, 4, 3, 2), conv(4, 8, 3, 2), conv(8, 8, 3, 2)])
        self.lateral = nn.ModuleList(nn.Conv2d(c, 4, 1) for c in (4, 8, 8))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        outputs = [self.lateral[-1](features[-1])]
        for feature, lateral in zip(features[-2::-1], list(self.lateral)[-2::-1], strict=True):
            own = lateral(feature)
            outputs.append(own + F.interpolate(outputs[-1], size=own.shape[-2:], mode="nearest"))
        return outputs


class SingleShotHead(nn.Module):
    """SSD: boxes and scores of two feature maps, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([conv(3, 4, 3, 2), conv(4, 4, 3, 2)])
        self.boxes = nn.ModuleList(nn.Conv2d(4, 2 * 4, 3, padding=1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(4, 2 * 3, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        boxes, scores = [], []
        for stage, box, score in zip(self.stages, self.boxes, self.scores, strict=True):
            x = stage(x)
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            scores.append(score(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 3))
        return torch.cat(boxes, 1), torch.cat(scores, 1).softmax(-1)


class Yolo(nn.Module):
    """A head that decodes boxes against a grid of the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv(3, 4, 3, 2, activation=nn.SiLU), conv(4, 8, 3, 2, activation=nn.SiLU))
        self.pool, self.head = nn.MaxPool2d(5, 1, 2), nn.Conv2d(16, 2 * 7, 1)
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0]]).view(1, 2, 1, 1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.backbone(x)
        y = self.head(torch.cat([y, self.pool(y)], 1))
        batch, _, height, width = y.shape
        y = y.view(batch, 2, 7, height, width).permute(0, 1, 3, 4, 2).sigmoid()
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack((columns, rows), 2).view(1, 1, height, width, 2).float()
        centers, sizes = (y[..., :2] * 2 - 0.5 + grid) * 4, (y[..., 2:4] * 2) ** 2 * self.anchors
        return torch.cat((centers, sizes, y[..., 4:]), -1).view(batch, -1, 7)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.ReLU(),
                                     nn.ConvTranspose2d(4, 3, 3, 2, 1, 1), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


class VariationalDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 8 * 4 * 4), nn.GroupNorm(2, 8)
        self.conv, self.out = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.fc(z).view(-1, 8, 4, 4)))
        return torch.tanh(self.out(self.conv(F.interpolate(y, scale_factor=2.0))))


def dcgan() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
                         nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh())


class ChannelSpatialAttention(nn.Module):
    """CBAM."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 4))
        self.spatial = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3))))
        x = x * gate[:, :, None, None]
        maps = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True).values], 1)
        return x * torch.sigmoid(self.spatial(maps))


class Res2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(conv(2, 2) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = torch.split(x, 2, 1)
        outputs, y = [parts[0]], parts[1]
        for i, layer in enumerate(self.convs):
            y = layer(y if i == 0 else y + parts[i + 1])
            outputs.append(y)
        return torch.cat(outputs, 1) + x


class HighResolution(nn.Module):
    """HRNet: two resolutions that exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.low = conv(3, 4), conv(4, 8, 3, 2)
        self.to_low, self.to_high = nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high = self.stem(x)
        low = self.low(high)
        up = F.interpolate(self.to_high(low), size=high.shape[2:], mode="bilinear", align_corners=True)
        return F.relu(high + up), F.relu(low + self.to_low(high))


class StandardizedConv(nn.Conv2d):
    """NFNet: the weight is standardized in every call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)[::-1]
        return F.conv2d(x, (self.weight - mean) * torch.rsqrt(variance + 1e-4), self.bias, padding=1)


class NormalizerFree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = StandardizedConv(3, 4, 3), nn.Parameter(torch.tensor(0.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.conv(x)) * 1.7 * self.gain + F.pad(x, (0, 0, 0, 0, 0, 1))


class StyleTransfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.ReflectionPad2d(4), nn.Conv2d(3, 4, 9), nn.InstanceNorm2d(4, affine=True),
                                  nn.ReLU())
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(4, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


def espcn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 5, padding=2), nn.Tanh(), nn.Conv2d(4, 9, 3, padding=1), nn.PixelShuffle(3))


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Classifier(conv(3, 4), 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = (F.normalize(self.net(x)) for x in (a, b))
        return F.pairwise_distance(left, right), left @ right.T


class SwinBlock(nn.Module):
    """Shifted windows of 4 with a relative position bias, on an image of any whole number of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(49, 2) * 0.1)
        places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        relative = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + 3
        self.register_buffer("index", relative[..., 0] * 7 + relative[..., 1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        y = torch.roll(self.norm(x), (-2, -2), (1, 2))
        y = y.view(batch, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)
        q, k, v = self.qkv(y).reshape(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        y = ((q * 4**-0.5) @ k.transpose(-2, -1) + bias[None]).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(-1, 16, channels)).view(batch, height // 4, width // 4, 4, 4, channels)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, channels)
        return x + torch.roll(y, (2, 2), (1, 2))


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)
        self.tokens, self.channels = nn.Linear(16, 16), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = y + F.gelu(self.tokens(self.norm(y).transpose(1, 2))).transpose(1, 2)
        return (y + F.gelu(self.channels(y))).mean(1)


class ClassToken(nn.Module):
    """A vision transformer with attention by hand and positions resized to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.qkv, self.out = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 24), nn.Linear(8, 8)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 8, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x)
        y = y + F.interpolate(self.positions, size=y.shape[2:], mode="bicubic", align_corners=False)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y.flatten(2).transpose(1, 2)], 1)
        q, k, v = self.qkv(y).view(y.shape[0], y.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        attended = ((q @ k.transpose(-2, -1)) / 2.0).softmax(-1) @ v
        return self.out(attended.transpose(1, 2).flatten(2))[:, 0]


def segnet() -> nn.Module:
    return nn.Sequential(conv(3, 4), nn.MaxPool2d(2), conv(4, 8), nn.Upsample(scale_factor=2, mode="bilinear"),
                         conv(8, 2), nn.Softmax2d())
