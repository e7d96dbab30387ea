"""ResNet-50, MobileNetV2 and the BERT encoder: sizes, seeds, sane activations."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from narrowcast.models import bert, mobilenet, resnet

CLASSIFIERS = [(resnet, 25_557_032), (mobilenet, 3_504_872)]
"""With the parameter counts that torchvision documents."""


@pytest.mark.parametrize(("module", "parameters"), CLASSIFIERS)
def test_classifier(module: ModuleType, parameters: int) -> None:
    model = module.build(seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert not any(part.training for part in model.modules())
    generator = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        logits = model(torch.randn(2, 3, 96, 96, generator=generator))
    assert logits.shape == (2, 1000)
    assert 0.1 < logits.std().item() < 10
    assert not torch.allclose(logits[0], logits[1])


def test_resnet_strides_in_the_middle_convolution() -> None:
    block = resnet.Bottleneck(256, 128, stride=2)
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


def test_seed_decides_the_weights() -> None:
    first, same, other = (dict(mobilenet.build(seed).named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(value, same[name]) for name, value in first.items())
    assert not torch.equal(first["features.0.0.weight"], other["features.0.0.weight"])


def test_mobilenet_shortcuts() -> None:
    shortcuts = [m.has_shortcut for m in mobilenet.MobileNetV2().modules() if isinstance(m, mobilenet.InvertedResidual)]
    assert (len(shortcuts), sum(shortcuts)) == (17, 10)


@pytest.fixture(scope="module")
def encoder() -> torch.nn.Module:
    return bert.build(seed=0)


def test_encoder_shape(encoder: torch.nn.Module) -> None:
    # MiniLM-L6-H384 has 22.7 million parameters, 147,840 of them in a pooler that is left out here.
    assert sum(p.numel() for p in encoder.parameters()) == 22_713_216 - 147_840
    with torch.inference_mode():
        hidden = encoder(torch.arange(24).reshape(2, 12), torch.ones(2, 12, dtype=torch.int64))
    assert hidden.shape == (2, 12, 384)
    assert 0.5 < hidden.std().item() < 2


def test_padding_changes_nothing(encoder: torch.nn.Module) -> None:
    ids = torch.arange(100, 107)[None]
    padded = torch.cat([ids, torch.full((1, 5), 42)], 1)
    mask = (torch.arange(12) < 7).long()[None]
    with torch.inference_mode():
        alone = encoder(ids, torch.ones_like(ids))
        together = encoder(padded, mask)
        unmasked = encoder(padded, torch.ones_like(mask))
    # Rounding through 6 layers of unit activations with reductions of up to 1,536 terms.
    tolerance = 6 * 1536**0.5 * torch.finfo(torch.float32).eps
    assert (together[:, :7] - alone).abs().max().item() < tolerance
    assert (unmasked[:, :7] - alone).abs().max().item() > 100 * tolerance
    pooled = bert.mean_pool(together, mask)
    assert (pooled - alone.mean(1)).abs().max().item() < tolerance
