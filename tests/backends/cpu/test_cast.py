"""The stand-alone cast between every pair of storages."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from narrowcast.backends.cpu.arrays import decode_array, encode_array
from narrowcast.backends.cpu.build import compile_functions
from narrowcast.backends.cpu.cast import build_cast
from narrowcast.backends.target import Target, capabilities
from narrowcast.precision import BFLOAT16, FLOAT32, QParams, Storage

from .groups import NATIVE

STORAGES = [FLOAT32, BFLOAT16, Storage("uint8", QParams(0.03, 100)), Storage("uint8", QParams(0.1, 0))]


@pytest.mark.parametrize("target", [NATIVE, pytest.param(Target("haswell", 2), marks=pytest.mark.isa("avx2"))])
@pytest.mark.parametrize("shape", [(3, 41), (2, 20001)])
def test_casts_equal_numpy(target: Target, shape: tuple[int, ...]) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 3).astype(np.float32)
    pairs = [(a, b) for a in STORAGES for b in STORAGES if a != b]
    kernels = {f"cast{i}": build_cast(shape, a, b, capabilities(target), 2).func for i, (a, b) in enumerate(pairs)}
    module = compile_functions(kernels, target.tvm_target())
    for i, (source, result) in enumerate(pairs):
        given = encode_array(x, source)
        expected = encode_array(decode_array(given, source), result)
        actual = tvm.runtime.empty(shape, str(expected.dtype))
        module[f"cast{i}"](tvm.runtime.tensor(given), actual)
        np.testing.assert_array_equal(actual.numpy(), expected, err_msg=f"{source} to {result}")
