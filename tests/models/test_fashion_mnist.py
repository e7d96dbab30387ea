"""The shipped Fashion-MNIST network and images."""

from __future__ import annotations

import pytest
import torch

from narrowcast.models import fashion_mnist
from narrowcast.models.shipped import data_folder


def test_parameters_fit_three_megabytes() -> None:
    assert sum(p.numel() for p in fashion_mnist.FashionNet().parameters()) < 750_000
    assert (data_folder() / fashion_mnist.WEIGHTS).stat().st_size < 3_000_000


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_shape(batch: int) -> None:
    model = fashion_mnist.load()
    assert not model.training
    assert model(torch.zeros(batch, 1, 28, 28)).shape == (batch, 10)


def test_test_data_is_the_whole_split() -> None:
    images, labels = fashion_mnist.test_data()
    assert images.shape == (10_000, 1, 28, 28) and images.dtype == torch.float32
    assert labels.shape == (10_000,) and labels.dtype == torch.int64
    assert torch.bincount(labels).tolist() == [1000] * 10


def test_calibration_data_is_balanced_and_normalised() -> None:
    images, labels = fashion_mnist.calibration_data()
    assert images.shape == (1000, 1, 28, 28)
    assert torch.bincount(labels).tolist() == [100] * 10
    # 1,000 random images of a split of mean 0 and deviation 1: the sample's own moments stay within a few percent.
    assert abs(images.mean().item()) < 0.05
    assert abs(images.std().item() - 1) < 0.05


def test_normalize_maps_black_and_white() -> None:
    pixels = torch.tensor([[[0, 255]]], dtype=torch.uint8)
    black, white = fashion_mnist.normalize(pixels).flatten().tolist()
    assert black == pytest.approx(-fashion_mnist.MEAN / fashion_mnist.STD, rel=1e-6)
    assert white == pytest.approx((1 - fashion_mnist.MEAN) / fashion_mnist.STD, rel=1e-6)


def test_shipped_weights_reach_the_promised_accuracy() -> None:
    images, labels = (data[:2000] for data in fashion_mnist.test_data())
    with torch.inference_mode():
        found = torch.cat([fashion_mnist.load()(part).argmax(1) for part in images.split(250)])
    assert (found == labels).double().mean().item() >= 0.92
