"""Average pools against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional
from tvm import relax

from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.pooling import build_pool
from narrowcast.backends.target import Target
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, assert_close, execute, group_of, stored

nn = relax.op.nn
U8 = Storage("uint8", QParams(0.05, 120))
AVX2 = pytest.param(Target("haswell", 2), marks=pytest.mark.isa("avx2"))


Pool = Callable[[torch.Tensor], torch.Tensor]


def check(shape: tuple[int, ...], op: Callable[[relax.Var], relax.Expr], reference: Pool,
          storage: Storage = FLOAT32, target: Target = NATIVE, output: Storage = FLOAT32) -> None:
    """Compare ``relu(op(x) + 0.25)``; ``reference`` gets and returns channels-last tensors."""
    group = group_of("pool", [shape], lambda b, p: b.emit(nn.relu(b.emit(relax.op.add(
        b.emit(op(p[0]), "layer"), relax.const(np.float32(0.25))), "add")), "relu"))
    x = stored((np.random.default_rng(0).standard_normal(shape) * 2).astype(np.float32), storage)
    actual, = execute(build_pool, KernelRequest(group, Precision.FP32, (storage,), (output,)), [x], target)
    wide = torch.tensor(x.astype(np.float64))
    expected = functional.relu(reference(wide) + 0.25).numpy()
    assert_close(actual, expected, reference(wide.abs()).abs().numpy() + 0.25, output, terms=49)


def last(function: Pool) -> Pool:
    return lambda x: function(x.movedim(-1, 1)).movedim(1, -1)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("ceil", [True, False])
@pytest.mark.parametrize("target", [NATIVE, AVX2])
def test_average_pool(target: Target, ceil: bool, include: bool) -> None:
    check((2, 13, 12, 21), lambda x: nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1), ceil, include, "NHWC"),
          last(lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil, include)), target=target)


@pytest.mark.parametrize("storage", [FLOAT32, BFLOAT16, U8], ids=lambda s: s.dtype)
@pytest.mark.parametrize("output", [FLOAT32, BFLOAT16, U8], ids=lambda s: s.dtype)
def test_storages(storage: Storage, output: Storage) -> None:
    check((2, 7, 7, 40), lambda x: nn.adaptive_avg_pool2d(x, (1, 1), "NHWC"), lambda x: x.mean((1, 2), keepdim=True),
          storage, output=output)


def test_adaptive_windows_of_different_sizes() -> None:
    check((2, 8, 7, 21), lambda x: nn.adaptive_avg_pool2d(x, (4, 3), "NHWC"),
          last(lambda x: functional.adaptive_avg_pool2d(x, (4, 3))))


def test_one_spatial_dimension() -> None:
    check((2, 30, 8), lambda x: nn.avg_pool1d(x, 2, 2, 0, layout="NWC"), last(lambda x: functional.avg_pool1d(x, 2)))


def test_three_spatial_dimensions() -> None:
    check((2, 5, 6, 7, 9),
          lambda x: nn.avg_pool3d(x, (3, 2, 2), (2, 1, 2), (1, 0, 1, 1, 0, 1), (1, 1, 1), False, False, "NDHWC"),
          last(lambda x: functional.avg_pool3d(x, (3, 2, 2), (2, 1, 2), (1, 0, 1), count_include_pad=False)))


def test_channels_first() -> None:
    check((2, 3, 8, 8), lambda x: nn.avg_pool2d(x, (2, 2), (2, 2)), lambda x: functional.avg_pool2d(x, 2))


def test_many_elements_on_all_threads() -> None:
    check((1, 40, 40, 64), lambda x: nn.avg_pool2d(x, (2, 2), (2, 2), layout="NHWC"),
          last(lambda x: functional.avg_pool2d(x, 2)))
