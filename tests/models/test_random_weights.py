"""Seeded weights and calibrated batch statistics."""

from __future__ import annotations

import torch
from torch import nn

from narrowcast.models.random_weights import calibrate_batch_norm, initialize, seeded


def test_seeded_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    seeded(lambda: nn.Linear(8, 8), seed=1)
    assert torch.equal(torch.rand(4), expected)


def test_seed_decides_the_weights() -> None:
    first, same, other = (seeded(lambda: nn.Linear(8, 8), seed) for seed in (1, 1, 2))
    assert torch.equal(first.weight, same.weight)
    assert not torch.equal(first.weight, other.weight)


def test_calibrated_statistics_are_those_of_the_inputs() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, momentum=0.3)
    initialize(norm)
    calibrate_batch_norm(norm, (16, 3, 32, 32), batches=4)
    assert norm.momentum == 0.3 and not norm.training
    # Moments of 4 * 16 * 32 * 32 normal values: standard errors 1 / 256 and sqrt(2) / 256; six of them are allowed.
    assert norm.running_mean.abs().max().item() < 6 / 256
    assert (norm.running_var - 1).abs().max().item() < 6 * 2**0.5 / 256
