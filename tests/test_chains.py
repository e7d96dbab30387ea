"""Programs in which one kernel computes a pointwise convolution and the depthwise one behind it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
from narrowcast.backends import lower as lowering
from narrowcast.backends.target import Target
from narrowcast.frontends import import_model
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement

X = np.random.default_rng(0).standard_normal((4, 3, 12, 18)).astype(np.float32)
PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "int8"])


class Block(nn.Module):
    """An inverted residual block; ``is_read_twice``: what is expanded is read once more."""

    def __init__(self, *, is_read_twice: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.expand = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 40, 1)
        self.depthwise, self.project = nn.Conv2d(40, 40, 3, stride=2, padding=1, groups=40), nn.Conv2d(40, 8, 1)
        self.is_read_twice = is_read_twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 8]."""
        expanded = nn.functional.relu6(self.expand(nn.functional.relu(self.stem(x))))
        result = self.project(nn.functional.relu6(self.depthwise(expanded))).mean((2, 3))
        return result + expanded.mean((1, 2, 3))[:, None] if self.is_read_twice else result


Chains = Callable[[bool], None]


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> Chains:
    """Says of every chain that it is faster, or that it is not."""
    return lambda are_faster: monkeypatch.setattr(lowering, "gains", lambda *_: are_faster)


def compiled(model: nn.Module, precision: str) -> nc.Program:
    return nc.compile(model.eval(), data=X, precision=precision, num_threads=2)


def code_of(program: nc.Program, layer: str) -> str:
    """The call that computes a layer."""
    return program.source("relax", layer)


@PRECISIONS
def test_results_are_those_of_two_kernels(chains: Chains, precision: str) -> None:
    results = []
    for are_faster in (False, True):
        chains(are_faster)
        program = compiled(Block(), precision)
        assert (code_of(program, "expand") == code_of(program, "depthwise")) is are_faster
        results.append(np.stack([program(x[None]) for x in X]))
    np.testing.assert_array_equal(*results)
    assert np.ptp(results[0]) > 0


def test_multiply_adds_belong_to_their_groups(chains: Chains) -> None:
    macs = []
    for are_faster in (False, True):
        chains(are_faster)
        macs.append({d.op: d.macs for d in compiled(Block(), "int8").plan.decisions})
    assert macs[0] == macs[1] and macs[0]["expand"] == 12 * 18 * 8 * 40


def test_what_others_read_is_written(chains: Chains) -> None:
    chains(True)
    program = compiled(Block(is_read_twice=True), "fp32")
    assert code_of(program, "expand") != code_of(program, "depthwise")
    with torch.no_grad():
        expected = Block(is_read_twice=True)(torch.from_numpy(X[:1])).numpy()
    np.testing.assert_allclose(program(X[:1]), expected, rtol=1e-5, atol=1e-6)


class Branches(nn.Module):
    """A depthwise convolution, to whose result that of a pointwise one is added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.widen = nn.Conv2d(3, 24, 3, padding=1)
        self.side, self.depthwise = nn.Conv2d(24, 24, 1), nn.Conv2d(24, 24, 3, padding=1, groups=24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 24, H, W]."""
        wide = nn.functional.relu(self.widen(x))
        side = self.side(wide)
        return nn.functional.relu(self.depthwise(wide) + side)


def test_a_residual_is_no_data(chains: Chains) -> None:
    chains(True)
    program = compiled(Branches(), "fp32")
    with torch.no_grad():
        expected = Branches()(torch.from_numpy(X[:1])).numpy()
    np.testing.assert_allclose(program(X[:1]), expected, rtol=1e-5, atol=1e-5)


@PRECISIONS
def test_verification_judges_both_groups(chains: Chains, precision: str) -> None:
    chains(True)
    plan = compiled(Block(), precision).plan
    grouped = run_pipeline(import_model(Block().eval(), (torch.from_numpy(X[:1]),)).mod)
    found = kernel_agreement(grouped, plan, Target.parse("cpu", 2), [X[:1]])
    assert {a.name for a in found} >= {"expand", "depthwise"} and [a for a in found if not a.ok] == []


def test_an_open_batch(chains: Chains) -> None:
    chains(True)
    program = nc.compile(Block().eval(), num_threads=2, example_inputs=(torch.from_numpy(X[:2]),),
                         dynamic_shapes=({0: torch.export.Dim("n")},))
    assert code_of(program, "expand") == code_of(program, "depthwise")
    for count in (1, 4):
        with torch.no_grad():
            expected = Block()(torch.from_numpy(X[:count])).numpy()
        np.testing.assert_allclose(program(X[:count]), expected, rtol=1e-5, atol=1e-6)
