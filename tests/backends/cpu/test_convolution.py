"""Convolutions, dense, grouped and depthwise, against PyTorch in float64."""

from __future__ import annotations

from dataclasses import dataclass

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
    """A convolution to test: NHWC data and OHWI weights; 1-D where the height is None."""

    batch: int
    height: int | None
    width: int
    channels: int
    outputs: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


def reference(conv: Conv, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """PyTorch's convolution in float64 of [n, h, w, c] data with [o, h, w, i] weights."""
    top, left, bottom, right = conv.padding
    padded = torch.nn.functional.pad(torch.tensor(data.transpose(0, 3, 1, 2).copy()), (left, right, top, bottom))
    result = torch.nn.functional.conv2d(padded, torch.tensor(weights.transpose(0, 3, 1, 2).copy()),
                                        stride=conv.strides, dilation=conv.dilation, groups=conv.groups)
    return result.numpy().transpose(0, 2, 3, 1)


def call(conv: Conv, data: relax.Var, weights: np.ndarray) -> relax.Call:
    if conv.height is None:
        return relax.op.nn.conv1d(data, ir.constant(weights[:, 0]), strides=conv.strides[1],
                                  padding=(conv.padding[1], conv.padding[3]), dilation=conv.dilation[1],
                                  groups=conv.groups, data_layout="NWC", kernel_layout="OWI")
    return relax.op.nn.conv2d(data, ir.constant(weights), strides=conv.strides, padding=conv.padding,
                              dilation=conv.dilation, groups=conv.groups, data_layout="NHWC", kernel_layout="OHWI")


def check(build: Build, precision: Precision, conv: Conv, target: Target = NATIVE) -> None:
    """relu(conv + bias + residual), the residual in the same storage as the data."""
    rng = np.random.default_rng(7)
    data = rng.standard_normal((conv.batch, conv.height or 1, conv.width, conv.channels)).astype(np.float32)
    weights = rng.standard_normal((conv.outputs, *conv.kernel, conv.channels // conv.groups)).astype(np.float32)
    bias = rng.standard_normal(conv.outputs).astype(np.float32)
    storage = storage_for(precision, data)
    values = stored(data, storage).astype(np.float64)
    held = np.moveaxis(held_weights(np.moveaxis(weights, 0, -1), precision), -1, 0)
    expected = reference(conv, values, held)
    residual = rng.standard_normal(expected.shape).astype(np.float32)
    added = bias + stored(residual, storage).astype(np.float64)
    shift = abs(float(data.min()))  # the data minus its zero point, padding included
    magnitude = reference(conv, np.abs(values), np.abs(held)) + np.abs(held).sum((1, 2, 3)) * shift
    magnitude = magnitude + np.abs(added) + np.abs(bias)

    def squeezed(array: np.ndarray) -> np.ndarray:
        return array[:, 0] if conv.height is None else array

    def body(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        y = builder.emit(call(conv, params[0], weights), "layer")
        y = builder.emit(relax.op.add(y, ir.constant(bias)), "bias")
        y = builder.emit(relax.op.add(y, params[1]), "sum")
        return builder.emit(relax.op.nn.relu(y), "relu")

    kind = "depthwise" if build is build_depthwise else "conv"
    group = group_of(kind, [squeezed(data).shape, squeezed(expected).shape], body)
    request = KernelRequest(group, precision, (storage, storage), OUTPUTS)
    results = execute(build, request, [squeezed(data), squeezed(residual)], target)
    terms = conv.kernel[0] * conv.kernel[1] * conv.channels // conv.groups
    for got, output in zip(results, OUTPUTS, strict=True):
        assert_close(got, squeezed(np.maximum(expected + added, 0)), squeezed(magnitude), output, terms, precision)


@EVERY_PRECISION
@pytest.mark.parametrize("conv", [
    Conv(1, 8, 8, 16, 32, (1, 1)),
    Conv(2, 14, 14, 5, 70, (1, 1), strides=(2, 2)),
    Conv(2, 9, 7, 3, 20, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    Conv(1, 14, 14, 64, 64, (3, 3), padding=(1, 1, 1, 1)),
    Conv(2, 23, 31, 32, 72, (3, 3), padding=(1, 1, 1, 1)),
    Conv(2, 9, 7, 6, 20, (3, 2), strides=(1, 2), padding=(1, 0, 2, 1), dilation=(2, 2), groups=2),
    Conv(1, 6, 9, 12, 36, (3, 3), padding=(1, 1, 1, 1), groups=12),
    Conv(1, 5, 40, 8, 3, (5, 7), padding=(2, 3, 2, 3)),
    Conv(3, None, 50, 7, 19, (1, 5), strides=(1, 2), padding=(0, 2, 0, 1), dilation=(1, 2)),
], ids=str)
def test_convolution(precision: Precision, conv: Conv) -> None:
    check(build_conv, precision, conv)


@EVERY_PRECISION
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_any_convolution(precision: Precision, data: st.DataObject) -> None:
    size, pad = st.integers(5, 14), st.integers(0, 2)
    groups = data.draw(st.sampled_from([1, 1, 2]))
    check(build_conv, precision, Conv(
        data.draw(st.integers(1, 2)), data.draw(size), data.draw(size), groups * data.draw(st.integers(1, 20)),
        groups * data.draw(st.integers(1, 40)), (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))),
        (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))), (data.draw(pad), data.draw(pad), data.draw(pad),
        data.draw(pad)), (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))), groups))


def depthwise(channels: int, **details: object) -> Conv:
    arguments: dict[str, object] = {"batch": 1, "height": 11, "width": 13, "kernel": (3, 3), **details}
    return Conv(channels=channels, outputs=channels, groups=channels, **arguments)  # type: ignore[arg-type]


@EVERY_PRECISION
@pytest.mark.parametrize("conv", [
    depthwise(32, padding=(1, 1, 1, 1)),
    depthwise(21, batch=2, strides=(2, 2), padding=(1, 0, 2, 1)),
    depthwise(40, kernel=(5, 5), strides=(1, 2), padding=(2, 2, 2, 2), dilation=(2, 1)),
    depthwise(5, kernel=(7, 7), padding=(3, 3, 3, 3)),
    depthwise(17, height=None, kernel=(1, 9), padding=(0, 4, 0, 4)),
    depthwise(1, height=40, width=40, kernel=(23, 23)),
], ids=str)
def test_depthwise(precision: Precision, conv: Conv) -> None:
    check(build_depthwise, precision, conv)


def test_another_layout_is_refused() -> None:
    data = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    nchw = relax.op.nn.conv2d(data, ir.constant(np.zeros((4, 3, 1, 1), np.float32)))
    with pytest.raises(VerificationError, match=r"conv1: .*channels-last"):
        Geometry.of(relax.BlockBuilder().normalize(nchw), "conv1")
