"""Networks of 3-D and of transposed convolutions through ``compile``: in every precision what the evaluator computes,
and one program for every batch and size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import narrowcast
from narrowcast.backends.target import Target
from narrowcast.frontends import import_model
from narrowcast.models.random_weights import seeded
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement

EPS = float(np.finfo(np.float32).eps)


class Volumes(nn.Module):
    """A residual 3-D network: a strided stem, a depthwise and a pointwise layer, pools, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(2, 16, 3, (1, 2, 2), 1, bias=False), nn.BatchNorm3d(16), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv3d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 16, (3, 1, 1),
                                  padding=(1, 0, 0)))
        self.depthwise, self.point = nn.Conv3d(16, 16, 3, padding=1, groups=16), nn.Conv3d(16, 24, 1)
        self.pool, self.mean, self.head = nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(1), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.pool(torch.relu(x + self.deep(x)))
        return self.head(torch.flatten(self.mean(self.point(torch.relu(self.depthwise(x)))), 1))


class Decoder(nn.Module):
    """The upsampling half of a U-Net: transposed convolutions of several kernels, a concatenation with what was there
    before."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU())
        self.wide = nn.Sequential(nn.ConvTranspose2d(32, 12, 4, 2, 1, bias=False), nn.BatchNorm2d(12),
                                  nn.LeakyReLU(0.1))
        self.smooth = nn.ConvTranspose2d(12, 12, 3, 1, 1, groups=12)
        self.last = nn.ConvTranspose2d(12, 4, 3, 2, 1, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        half = self.down(x)
        return self.last(self.smooth(self.wide(torch.cat([half, self.up(self.deep(half))], 1))))


NETWORKS = {"volumes": (Volumes, (2, 5, 12, 12)), "decoder": (Decoder, (3, 16, 20))}
# Layers that multiply; each is one group.
MULTIPLYING = {"volumes": 6, "decoder": 6}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_agree_with_the_evaluator(name: str, precision: str) -> None:
    wanted, target = narrowcast.Precision(precision), Target.parse("cpu")
    if wanted not in target.precisions():
        pytest.skip(f"this CPU has no {precision} multiply-add")
    make, shape = NETWORKS[name]
    model = seeded(make, 0).eval()
    data = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    program = narrowcast.compile(model, "cpu", None, precision=precision, data=data, example_inputs=data[:1])
    multiplying = [d for d in program.plan.decisions if d.macs]
    assert len(multiplying) == MULTIPLYING[name] and {d.precision for d in multiplying} == {wanted}
    mod = run_pipeline(import_model(model, data[:1]).mod)
    agreements = kernel_agreement(mod, program.plan, target, [data[:1].numpy()])
    assert [a.detail for a in agreements if not a.ok] == []


def upsampler() -> nn.Module:
    """Transposed convolutions whose results are cropped, and not; one is depthwise."""
    return nn.Sequential(
        nn.ConvTranspose2d(3, 16, 2, 2), nn.ReLU(), nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.SiLU(),
        nn.ConvTranspose2d(12, 12, 3, 2, 1, output_padding=1, groups=12), nn.ConvTranspose2d(12, 4, 3, 2, 1))


@pytest.mark.parametrize(("make", "shape", "axis"), [(Volumes, (2, 5, 12, 12), 1), (upsampler, (3, 4, 5), 2)])
def test_every_batch_and_size(make: Callable[[], nn.Module], shape: tuple[int, ...], axis: int) -> None:
    model = seeded(make, 0).eval()
    dims = {0: "batch", axis + 1: "extent"}
    program = narrowcast.compile(model, "cpu", None, example_inputs=torch.randn(2, *shape), dynamic_shapes=(dims,))
    for batch, extent in ((2, shape[axis]), (1, 8), (3, 13)):
        x = torch.randn(batch, *shape[:axis], extent, *shape[axis + 1:], generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            expected = model(x)
        # Up to six layers of sums of up to 432 products.
        torch.testing.assert_close(program(x), expected, rtol=0, atol=6 * 432 * EPS * float(expected.abs().max()))
