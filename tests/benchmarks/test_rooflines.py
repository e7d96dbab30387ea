"""Which layers reach their bound, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

import torch
from rich.console import Console
from torch import nn

from narrowcast.backends.target import Target
from narrowcast.benchmarks import rooflines
from narrowcast.benchmarks.network_list import Network, draw_image
from narrowcast.benchmarks.rooflines import Layer, layers_of, show

LAYER = Layer("net", "int8", "conv", 2, 10**7, 3136, 64, 256, 100.0, compute=0.5, memory=0.1)


def test_a_layer_is_bound_by_its_multiply_adds_or_by_memory() -> None:
    assert not LAYER.reaches
    assert replace(LAYER, compute=0.88).reaches and replace(LAYER, memory=0.85).reaches


def test_the_reason_follows_from_the_shape() -> None:
    assert LAYER.reason == "sums of 64: finishing the results takes as long"
    assert replace(LAYER, depth=512, rows=1).reason == "1 rows for every weight"
    assert replace(LAYER, depth=512).reason == "operands from the second-level cache and beyond"


def test_only_layers_below_their_bound_are_listed() -> None:
    console = Console(width=200, record=True)
    show([LAYER, replace(LAYER, layer="fast", compute=0.9)], console)
    text = console.export_text()
    assert "conv" in text and "fast" not in text
    assert "int8: 2 of 4 layers reach their bound; all together 70% of it" in text


def test_layers_of_one_code_are_measured_once(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Two convolutions of one shape, and one that is too small to count."""
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(),
                                        *(m for _ in range(2) for m in (nn.Conv2d(48, 48, 3, padding=1), nn.ReLU())))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rooflines, "bandwidth", lambda target: 1e10)
    network = Network(lambda: Net().eval(), {"": lambda g: draw_image(g, (1, 3, 16, 16))})
    (layer,) = layers_of("net", network, "fp32", Target.parse("cpu", 1))
    assert (layer.count, layer.macs, layer.rows, layer.depth, layer.columns) == (2, 16 * 16 * 9 * 48 * 48, 256, 432, 48)
    assert layer.microseconds > 0 and layer.compute > 0 and layer.memory > 0
