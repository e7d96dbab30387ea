"""Integers divided by what only running tells: no divisor ends the process, and the evaluator agrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
from narrowcast.frontends import import_model
from narrowcast.operators.reference import run


class Divisions(nn.Module):
    """Every quotient and remainder of two tensors of integers."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a // b, torch.div(a, b, rounding_mode="trunc"), a % b, torch.fmod(a, b)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8])
def test_no_divisor_traps(dtype: type) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    signed = least < 0
    a = np.array([7, -7 if signed else 9, least, most, 5, 0, least], dtype)
    b = np.array([3, 3, 1, most, 0, 0, -1 if signed else 1], dtype)
    program = nc.compile(Divisions().eval(), "cpu", None, num_threads=1,
                         example_inputs=(torch.from_numpy(a), torch.from_numpy(np.ones_like(b))))
    by_one = np.where(b == 0, 1, b).astype(dtype)
    wide, divisor = a.astype(object), by_one.astype(object)
    expected = (wide // divisor, np.array([int(abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)
                                           for x, y in zip(wide, divisor, strict=True)], object), wide % divisor,
                np.array([abs(x) % abs(y) * (-1 if x < 0 else 1) for x, y in zip(wide, divisor, strict=True)], object))
    wrapped = [np.array([(int(v) - least) % (most - least + 1) + least for v in e], dtype) for e in expected]
    found = program(a, b)
    mod = import_model(Divisions().eval(), (torch.from_numpy(a), torch.from_numpy(np.ones_like(b)))).mod
    evaluated = run(mod, [torch.from_numpy(a), torch.from_numpy(b)])
    for own, reference, wanted in zip(found, evaluated, wrapped, strict=True):
        np.testing.assert_array_equal(own, wanted)
        np.testing.assert_array_equal(np.asarray(reference), wanted)
