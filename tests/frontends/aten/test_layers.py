"""PyTorch's layers against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from narrowcast.frontends import ImportedModel

Same = Callable[..., ImportedModel]

LAYERS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2)), (2, 4, 12, 12)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 3, padding=1), (1, 2, 5, 6, 7)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6, bias=False), (2, 6, 7, 7)),
    "grouped": (lambda: nn.Conv2d(6, 9, 3, groups=3), (2, 6, 7, 7)),
    "conv_same": (lambda: nn.Conv2d(3, 4, 4, padding="same"), (1, 3, 8, 8)),
    "conv_valid": (lambda: nn.Conv1d(3, 4, 4, padding="valid"), (1, 3, 8)),
    "conv_reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (1, 3, 8, 8)),
    "conv_unbatched": (lambda: nn.Conv2d(3, 4, 3), (3, 8, 8)),
    "transposed1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (2, 3, 6)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
                     (2, 4, 5, 5)),
    "transposed_up": (lambda: nn.ConvTranspose2d(4, 3, 2, stride=2), (1, 4, 5, 5)),
    "linear": (lambda: nn.Linear(7, 5), (2, 3, 7)),
    "linear_vector": (lambda: nn.Linear(7, 5, bias=False), (7,)),
    "batch_norm1d": (lambda: trained_norm(nn.BatchNorm1d(5)), (4, 5)),
    "batch_norm1d_sequence": (lambda: trained_norm(nn.BatchNorm1d(5, affine=False)), (4, 5, 6)),
    "batch_norm2d": (lambda: trained_norm(nn.BatchNorm2d(5)), (2, 5, 4, 4)),
    "batch_norm3d": (lambda: trained_norm(nn.BatchNorm3d(5)), (2, 5, 2, 3, 4)),
    "layer_norm": (lambda: nn.LayerNorm((3, 7)), (2, 3, 7)),
    "layer_norm_bare": (lambda: nn.LayerNorm(7, elementwise_affine=False), (2, 3, 7)),
    "rms_norm": (lambda: nn.RMSNorm(7), (2, 3, 7)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), (2, 6, 4, 4)),
    "instance_norm": (lambda: nn.InstanceNorm2d(6, affine=True), (2, 6, 4, 4)),
    "instance_norm1d": (lambda: nn.InstanceNorm1d(6), (2, 6, 9)),
    "local_response": (lambda: nn.LocalResponseNorm(3), (2, 6, 4, 4)),
    "prelu": (lambda: nn.PReLU(6, init=0.3), (2, 6, 4)),
    "prelu_one": (lambda: nn.PReLU(), (2, 6)),
    "max_pool1d": (lambda: nn.MaxPool1d(3, 2, 1), (2, 3, 9)),
    "max_pool2d": (lambda: nn.MaxPool2d(3, 2, 1), (2, 3, 9, 8)),
    "max_pool_ceil": (lambda: nn.MaxPool2d(3, 2, ceil_mode=True), (2, 3, 8, 10)),
    "max_pool_ceil_pad": (lambda: nn.MaxPool2d(2, 2, 1, ceil_mode=True), (1, 3, 6, 7)),
    "max_pool_dilated": (lambda: nn.MaxPool2d(2, 1, dilation=2), (1, 3, 6, 7)),
    "max_pool3d": (lambda: nn.MaxPool3d(2), (1, 2, 4, 4, 6)),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, 2, 1), (2, 3, 9)),
    "avg_pool2d": (lambda: nn.AvgPool2d(3, 2, 1), (2, 3, 9, 8)),
    "avg_pool_exclude": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 9, 8)),
    "avg_pool_ceil": (lambda: nn.AvgPool2d(3, 2, ceil_mode=True), (2, 3, 8, 10)),
    "avg_pool_ceil_pad": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), (2, 3, 8, 10)),
    "avg_pool_divisor": (lambda: nn.AvgPool2d(3, 2, 1, divisor_override=5), (2, 3, 9, 8)),
    "avg_pool3d": (lambda: nn.AvgPool3d(2), (1, 2, 4, 4, 6)),
    "adaptive_avg": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 5, 6)),
    "adaptive_avg_uneven": (lambda: nn.AdaptiveAvgPool2d((3, 4)), (2, 3, 7, 6)),
    "adaptive_avg1d": (lambda: nn.AdaptiveAvgPool1d(3), (2, 3, 9)),
    "adaptive_max": (lambda: nn.AdaptiveMaxPool2d(2), (2, 3, 6, 8)),
    "upsample_nearest": (lambda: nn.Upsample(scale_factor=2), (1, 3, 4, 5)),
    "upsample_nearest_size": (lambda: nn.Upsample(size=(7, 9)), (1, 3, 4, 5)),
    "upsample_nearest1d": (lambda: nn.Upsample(scale_factor=2), (1, 3, 4)),
    "upsample_exact": (lambda: nn.Upsample(size=(7, 9), mode="nearest-exact"), (1, 3, 4, 5)),
    "upsample_bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 3, 4, 5)),
    "upsample_corners": (lambda: nn.Upsample(size=(7, 9), mode="bilinear", align_corners=True), (1, 3, 4, 5)),
    "downsample_bilinear": (lambda: nn.Upsample(size=(3, 3), mode="bilinear"), (1, 3, 7, 8)),
    "upsample_linear1d": (lambda: nn.Upsample(scale_factor=2, mode="linear"), (1, 3, 4)),
    "upsample_bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (1, 3, 4, 5)),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (1, 8, 3, 4)),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), (1, 2, 6, 4)),
    "dropout": (lambda: nn.Sequential(nn.Dropout(), nn.ReLU()), (2, 3)),
    "softmax": (lambda: nn.Softmax(1), (2, 5, 3)),
    "flatten": (lambda: nn.Flatten(), (2, 5, 3)),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
    "gru": (lambda: nn.GRU(4, 3, batch_first=True, bidirectional=True), (2, 3, 4)),
    "rnn": (lambda: nn.RNN(4, 3), (3, 2, 4)),
    "lstm_cell": (lambda: nn.LSTMCell(4, 3), (2, 4)),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), (2, 5, 8)),
    "unfold": (lambda: nn.Unfold(2), (1, 2, 4, 5)),
}


def trained_norm(norm: nn.Module) -> nn.Module:
    """Statistics and affine parameters that are not those of a new layer."""
    for tensor in [*norm.parameters(), norm.running_mean]:
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, same_as_pytorch: Same) -> None:
    make, sizes = LAYERS[name]
    same_as_pytorch(make(), torch.randn(*sizes))
