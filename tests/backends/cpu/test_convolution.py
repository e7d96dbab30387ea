"""Convolutions, dense, grouped and depthwise, against PyTorch in float64."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.convolution import Geometry, build_conv
from narrowcast.backends.cpu.depthwise import build_depthwise
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Target
from narrowcast.errors import VerificationError
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, Build, assert_close, execute, group_of, held_weights, storage_for, stored
from .precisions import EVERY_PRECISION

OUTPUTS = (FLOAT32, Storage("uint8", QParams(0.1, 0)), BFLOAT16)


@dataclass(frozen=True)
class Conv:
    """A convolution to test, of [batch, *size, channels] data and [outputs, *kernel, channels / groups] weights.

    padding : of all starts, then of all ends.
    """

    batch: int
    size: tuple[int, ...]
    channels: int
    outputs: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.size)

    @property
    def attributes(self) -> dict[str, tuple[int, ...]]:
        """Strides, padding and dilation, with the values of those that are not given."""
        ones = (1,) * self.rank
        return {"strides": self.strides or ones, "padding": self.padding or (0, 0) * self.rank,
                "dilation": self.dilation or ones}


_TORCH = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
_RELAX = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def reference(conv: Conv, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """PyTorch's convolution in float64 of channels-last data and weights."""
    attributes = conv.attributes
    starts, ends = attributes["padding"][:conv.rank], attributes["padding"][conv.rank:]
    padded = np.pad(data, ((0, 0), *zip(starts, ends, strict=True), (0, 0)))
    x, w = (torch.from_numpy(np.ascontiguousarray(np.moveaxis(a, -1, 1))) for a in (padded, weights))
    result = _TORCH[conv.rank](x, w, stride=attributes["strides"], dilation=attributes["dilation"], groups=conv.groups)
    return np.moveaxis(result.numpy(), 1, -1)


def call(conv: Conv, data: relax.Var, weights: np.ndarray) -> relax.Call:
    spatial = "DHW"[-conv.rank:]
    return _RELAX[conv.rank](data, ir.constant(weights), **conv.attributes, groups=conv.groups,
                             data_layout=f"N{spatial}C", kernel_layout=f"O{spatial}I")


def check(build: Build, precision: Precision, conv: Conv, target: Target = NATIVE) -> None:
    """relu(conv + bias + residual), the residual in the same storage as the data."""
    rng = np.random.default_rng(7)
    data = rng.standard_normal((conv.batch, *conv.size, conv.channels)).astype(np.float32)
    weights = rng.standard_normal((conv.outputs, *conv.kernel, conv.channels // conv.groups)).astype(np.float32)
    bias = rng.standard_normal(conv.outputs).astype(np.float32)
    storage = storage_for(precision, data)
    values = stored(data, storage).astype(np.float64)
    held = np.moveaxis(held_weights(np.moveaxis(weights, 0, -1), precision), -1, 0)
    expected = reference(conv, values, held)
    residual = rng.standard_normal(expected.shape).astype(np.float32)
    added = bias + stored(residual, storage).astype(np.float64)
    shift = abs(float(data.min()))  # the data minus its zero point, padding included
    magnitude = reference(conv, np.abs(values), np.abs(held)) + np.abs(held).sum(tuple(range(1, held.ndim))) * shift
    magnitude = magnitude + np.abs(added) + np.abs(bias)

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(call(conv, params[0], weights), "layer")
        y = builder.emit(relax.op.add(y, ir.constant(bias)), "bias")
        y = builder.emit(relax.op.add(y, params[1]), "sum")
        return builder.emit(relax.op.nn.relu(y), "relu")

    kind = "depthwise" if build is build_depthwise else "conv"
    group = group_of(kind, [data.shape, expected.shape], body)
    request = KernelRequest(group, precision, (storage, storage), OUTPUTS)
    results = execute(build, request, [data, residual], target)
    terms = prod(conv.kernel) * conv.channels // conv.groups
    for got, output in zip(results, OUTPUTS, strict=True):
        assert_close(got, np.maximum(expected + added, 0), magnitude, output, terms, precision)


@EVERY_PRECISION
@pytest.mark.parametrize("conv", [
    Conv(1, (8, 8), 16, 32, (1, 1)),
    Conv(2, (14, 14), 5, 70, (1, 1), strides=(2, 2)),
    Conv(2, (9, 7), 3, 20, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    Conv(1, (14, 14), 64, 64, (3, 3), padding=(1, 1, 1, 1)),
    Conv(2, (23, 31), 32, 72, (3, 3), padding=(1, 1, 1, 1)),
    Conv(2, (9, 7), 6, 20, (3, 2), strides=(1, 2), padding=(1, 0, 2, 1), dilation=(2, 2), groups=2),
    Conv(1, (6, 9), 12, 36, (3, 3), padding=(1, 1, 1, 1), groups=12),
    Conv(1, (5, 40), 8, 3, (5, 7), padding=(2, 3, 2, 3)),
    Conv(1, (5, 9, 11), 16, 40, (3, 3, 3), padding=(1, 1, 1, 1, 1, 1)),
    Conv(2, (6, 7, 8), 3, 20, (3, 2, 3), strides=(2, 1, 2), padding=(1, 0, 2, 0, 1, 1)),
    Conv(2, (5, 6, 9), 10, 18, (2, 3, 2), padding=(0, 1, 0, 1, 1, 2), dilation=(2, 1, 2), groups=2),
    Conv(2, (4, 5, 7), 20, 33, (1, 3, 3), padding=(0, 1, 1, 0, 1, 1)),
    Conv(1, (8, 6, 6), 12, 24, (2, 2, 2), strides=(2, 2, 2)),
    Conv(2, (3, 5, 6), 24, 17, (1, 1, 1)),
    Conv(1, (5, 6, 7), 9, 17, (1, 1, 1), strides=(2, 2, 1)),
    Conv(3, (50,), 7, 19, (5,), strides=(2,), padding=(2, 1), dilation=(2,)),
], ids=str)
def test_convolution(precision: Precision, conv: Conv) -> None:
    check(build_conv, precision, conv)


def any_convolution(data: st.DataObject, rank: int) -> Conv:
    """A small convolution of Hypothesis' choice."""
    def per_axis(low: int, high: int, axes: int = rank) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(axes))

    groups = data.draw(st.sampled_from([1, 1, 2]))
    return Conv(data.draw(st.integers(1, 2)), per_axis(5, 16 if rank < 3 else 8),
                groups * data.draw(st.integers(1, 30)), groups * data.draw(st.integers(1, 40)), per_axis(1, 3),
                per_axis(1, 3), per_axis(0, 2, 2 * rank), per_axis(1, 2), groups)


@EVERY_PRECISION
@pytest.mark.parametrize("rank", [2, 3])
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_any_convolution(precision: Precision, rank: int, data: st.DataObject) -> None:
    check(build_conv, precision, any_convolution(data, rank))


def depthwise(channels: int, **details: object) -> Conv:
    arguments: dict[str, object] = {"batch": 1, "size": (11, 13), "kernel": (3, 3), **details}
    return Conv(channels=channels, outputs=channels, groups=channels, **arguments)  # type: ignore[arg-type]


@EVERY_PRECISION
@pytest.mark.parametrize("conv", [
    depthwise(32, padding=(1, 1, 1, 1)),
    depthwise(21, batch=2, strides=(2, 2), padding=(1, 0, 2, 1)),
    depthwise(40, kernel=(5, 5), strides=(1, 2), padding=(2, 2, 2, 2), dilation=(2, 1)),
    depthwise(5, kernel=(7, 7), padding=(3, 3, 3, 3)),
    depthwise(17, size=(13,), kernel=(9,), padding=(4, 4)),
    depthwise(21, batch=2, size=(5, 7, 8), kernel=(3, 3, 3), strides=(1, 2, 1), padding=(1, 1, 0, 1, 0, 2)),
    depthwise(16, size=(6, 5, 9), kernel=(2, 3, 1), padding=(1, 1, 0, 1, 1, 0), dilation=(2, 1, 1)),
    depthwise(1, size=(40, 40), kernel=(23, 23)),
], ids=str)
def test_depthwise(precision: Precision, conv: Conv) -> None:
    check(build_depthwise, precision, conv)


def test_another_layout_is_refused() -> None:
    data = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    nchw = relax.op.nn.conv2d(data, ir.constant(np.zeros((4, 3, 1, 1), np.float32)))
    with pytest.raises(VerificationError, match=r"conv1: .*channels-last"):
        Geometry.of(relax.BlockBuilder().normalize(nchw), "conv1")
