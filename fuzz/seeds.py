"""Models that fuzzing starts from: ONNX's node tests, its small PyTorch tests, exported networks."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

# A seed is no larger: mutations of small models say more a second.
MAX_BYTES = 20_480


_OPSET = '<ir_version: 8, opset_import: ["" : 17]>\n'
# Loops and branches of which only running tells how they go: states that grow, captures, one inside the other.
_RUNNING = ("""
grows (float[2] x, int64 n) => (float[k] y, float[m, 1] all) <bool true = {1}, int64[1] last = {-1}> {
  y, all = Loop (n, true, x) <body = step (int64 i, bool c, float[a] s) => (bool again, float[b] t, float[1] seen) {
    again = Identity (c)
    t = Concat <axis = 0> (s, x)
    seen = Gather (t, last)
  }>
}""", """
until (float[n, 3] x, float limit) => (float[n, 3] y) <bool true = {1}, int64 none = {4}> {
  y = Loop (none, true, x) <body = step (int64 i, bool c, float[n, 3] s) => (bool again, float[n, 3] t) {
    sum = ReduceSum <keepdims = 0> (s)
    again = Less (sum, limit)
    t = If (again) <then_branch = more () => (float[n, 3] u) { u = Add (s, x) },
                    else_branch = kept () => (float[n, 3] v) { v = Identity (s) }>
  }>
}""", """
sums (float[3] first, float[steps, 3] x) => (float[3] y, float[steps, 3] all) {
  y, all = Scan <num_scan_inputs = 1, body = step (float[3] s, float[3] e) => (float[3] t, float[3] o) {
    t = Add (s, e)
    o = Tanh (t)
  }> (first, x)
}""", """
either (float[4] x, bool c) => (float[k] y) <int64[1] two = {2}, int64[1] zero = {0}> {
  y = If (c) <then_branch = part () => (float[2] u) { u = Slice (x, zero, two) },
              else_branch = whole () => (float[4] v) { v = Relu (x) }>
}""")


def write_seeds(folder: Path) -> None:
    """Fill ``folder`` with the seeds, one file each, where it has none yet."""
    if folder.is_dir() and any(folder.iterdir()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    for content in seeds():
        if len(content) <= MAX_BYTES:
            (folder / hashlib.sha1(content).hexdigest()).write_bytes(content)


def seeds() -> Iterator[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from _node_tests()
        yield from _shipped_tests()
        yield from _exported()
        yield from (onnx.parser.parse_model(_OPSET + text).SerializeToString() for text in _RUNNING)


def _node_tests() -> Iterator[bytes]:
    """One node test of each operator twice: as it is, and with its inputs behind the first as constants."""
    from onnx.backend.test.case.node import collect_testcases
    operators: set[tuple[str, ...]] = set()
    for case in collect_testcases():
        model: Any = case.model
        operator = tuple(n.op_type for n in model.graph.node)
        if len(operator) > 1 or operator in operators:
            continue
        operators.add(operator)
        yield model.SerializeToString()
        data_sets: Any = case.data_sets
        inputs = data_sets[0][0]
        if len(inputs) > 1 and all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" for a in inputs):
            yield _bound(model, inputs).SerializeToString()


def _bound(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for value, array in list(zip(model.graph.input, inputs, strict=False))[1:]:
        result.graph.initializer.append(numpy_helper.from_array(array, value.name))
    kept = result.graph.input[0]
    del result.graph.input[1:]
    assert kept.name == model.graph.input[0].name
    return result


def _shipped_tests() -> Iterator[bytes]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(folder.glob("*/*/model.onnx")):
        yield path.read_bytes()


class _Convolutional(nn.Module):
    """[1, 2, 8, 8] -> [1, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU6(),
            nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), nn.Hardswish(), nn.Conv2d(4, 8, 1), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Attention(nn.Module):
    """[1, 4, 8] -> [1, 4, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class _Recurrent(nn.Module):
    """[1, 5, 4] -> [1, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0][:, -1]


def _exported() -> Iterator[bytes]:
    for network, shape in ((_Convolutional(), (1, 2, 8, 8)), (_Attention(), (1, 4, 8)), (_Recurrent(), (1, 5, 4))):
        program: Any = torch.onnx.export(network.eval(), (torch.randn(shape),), dynamo=True, verbose=False)
        yield program.model_proto.SerializeToString()
