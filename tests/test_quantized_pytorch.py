"""PT2E-quantized networks compile to the integer program that they describe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import narrowcast
from narrowcast.benchmarks.quantizers import quantize_pt2e
from narrowcast.models import bert
from narrowcast.models.random_weights import initialize

pytest.importorskip("torchao")


class Small(nn.Module):
    """Convolutions with a residual, pools, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = self.pool(torch.relu(self.second(x) + x))
        return self.head(torch.flatten(x, 1))


def largest_difference(module: nn.Module, program: narrowcast.Program,
                       inputs: Sequence[tuple[Tensor, ...]]) -> tuple[float, float]:
    """To PyTorch's own result; and the largest output."""
    found, largest = 0.0, 0.0
    for sample in inputs:
        expected = module(*sample).detach().numpy()
        result = np.asarray(program(*[x.numpy() for x in sample]))
        found = max(found, float(np.abs(result - expected).max()))
        largest = max(largest, float(np.abs(expected).max()))
    return found, largest


@pytest.mark.isa("avx512_vnni")
def test_a_convolutional_network() -> None:
    torch.manual_seed(0)
    network = Small()
    initialize(network)
    inputs = [(torch.randn(1, 3, 16, 16),) for _ in range(6)]
    module, exported = quantize_pt2e(network, inputs)
    program = narrowcast.compile(exported)
    multiplying = [d for d in program.plan.decisions if d.macs]
    assert {d.reason for d in multiplying} == {"INT8: given by the model"} and len(multiplying) == 3
    assert [d.op for d in program.plan.decisions if d.stores[0].dtype != "uint8"] == ["head"]
    found, largest = largest_difference(module, program, inputs)
    assert found <= largest / 255


@pytest.mark.isa("avx512_vnni")
def test_an_encoder_with_every_product_in_integers() -> None:
    shape = bert.BertShape(layers=2, channels=32, heads=2, inner=64, vocabulary=100, positions=32)
    torch.manual_seed(1)
    inputs = [(torch.randint(0, 100, (1, 16)), torch.ones(1, 16, dtype=torch.int64)) for _ in range(6)]
    module, exported = quantize_pt2e(bert.build(0, shape, bert.PlainSelfAttention), inputs)
    program = narrowcast.compile(exported)
    multiplying = [d for d in program.plan.decisions if d.macs]
    assert {d.reason for d in multiplying} == {"INT8: given by the model"} and len(multiplying) == 2 * 8
    found, largest = largest_difference(module, program, inputs)
    assert found <= largest / 255


def test_the_module_itself_compiles_as_well() -> None:
    torch.manual_seed(0)
    inputs = [(torch.randn(1, 3, 16, 16),) for _ in range(2)]
    module, _ = quantize_pt2e(Small(), inputs)
    program = narrowcast.compile(module, example_inputs=inputs[0])
    found, largest = largest_difference(module, program, inputs)
    assert found <= largest / 255


def test_ranges_found_at_run_time_compute_in_floating_point() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    inputs = [(torch.randn(4, 32),) for _ in range(2)]
    module, exported = quantize_pt2e(network, inputs, dynamic=True)
    program = narrowcast.compile(exported)
    found, largest = largest_difference(module, program, inputs)
    assert found <= largest / 255
    assert {d.precision for d in program.plan.decisions} == {narrowcast.Precision.FP32}
