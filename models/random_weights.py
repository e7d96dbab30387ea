"""Seeded random weights whose activations stay sane: for measuring speed, where no trained weights are at hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module that ``build()`` makes with PyTorch's generator at ``seed``; the generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def image_network(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network of photos float32 [N, 3, H, W] in inference mode, its weights and statistics drawn by ``seed``."""

    def make() -> nn.Module:
        model = build()
        initialize(model)
        calibrate_batch_norm(model, (4, 3, 160, 160))
        return model

    return seeded(make, seed)


def initialize(model: nn.Module) -> None:
    """Draw convolutions and linear layers so that ReLU networks keep their variance (He et al., 2015)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)


def calibrate_batch_norm(model: nn.Module, shape: tuple[int, ...], batches: int = 2) -> None:
    """Set the running statistics of every batch normalization to what normal random inputs of ``shape`` give.

    The statistics are the plain mean over ``batches`` forward passes. The model is left in inference mode.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for _ in range(batches):
            model(torch.randn(shape))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()
