"""The peers on a small network: they run, agree with PyTorch to their precision, and refuse clearly."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch import nn

from narrowcast.benchmarks import peers
from narrowcast.errors import DataError

MISSING = [package for package in ("onnxruntime", "openvino", "nncf") if importlib.util.find_spec(package) is None]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten()).eval()


@pytest.fixture(scope="module")
def samples() -> list[peers.Arrays]:
    generator = np.random.default_rng(0)
    return [(generator.standard_normal((1, 3, 8, 8), dtype=np.float32),) for _ in range(4)]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_peers_agree_with_pytorch(network: nn.Module, samples: list[peers.Arrays]) -> None:
    made = peers.build_peers(network, samples[0], samples, threads=1)
    assert tuple(made) == peers.PEERS
    with torch.inference_mode():
        expected = network(torch.from_numpy(samples[1][0])).numpy()
    scale = np.abs(expected).max()
    # FP32: sums of 144 products. BF16: two layers' operands rounded to 8 bits. INT8: ranges of 256 steps, two layers.
    tolerances = {"fp32": 144 * 2**-23, "bf16": 4 * 2**-8, "int8": 8 / 256}
    for name, call in made.items():
        found = np.array(call(*samples[1])[0])
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < tolerances[name.split()[1]] * scale, name
    differences = {name: np.abs(np.array(call(*samples[1])[0]) - expected).max() for name, call in made.items()}
    assert differences["onnxruntime int8"] > 10 * differences["onnxruntime fp32"]


@pytest.mark.skipif("onnxruntime" in MISSING, reason="not installed: onnxruntime")
def test_export_keeps_the_order_of_inputs() -> None:
    class Difference(nn.Module):
        def forward(self, b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            return b - a

    one, three = np.ones((1, 2), np.float32), np.full((1, 2), 3, np.float32)
    call = peers.onnxruntime_fp32(peers.export_onnx(Difference(), (one, three)), threads=1)
    np.testing.assert_array_equal(call(three, one)[0], [[2, 2]])


def test_unknown_peer_is_refused(network: nn.Module, samples: list[peers.Arrays]) -> None:
    with pytest.raises(DataError, match=r"no such peer(?s:.*)tensorrt"):
        peers.build_peers(network, samples[0], samples, threads=1, wanted=["tensorrt"])


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, network: nn.Module) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    exported = peers.export_onnx(network, (np.zeros((1, 3, 8, 8), np.float32),))
    with pytest.raises(DataError, match=r"onnxruntime is not installed(?s:.*)narrowcast\[bench\]"):
        peers.onnxruntime_fp32(exported, threads=1)
