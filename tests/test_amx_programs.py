"""Programs with AMX code, run whole (see ``emulation.amx``): equal to the evaluator, with Linux's permission."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import narrowcast as nc
from narrowcast.backends import tile_permission
from narrowcast.backends.target import Target
from narrowcast.calibration.evaluator import Evaluator
from narrowcast.frontends import import_model
from narrowcast.models.bert import BertEncoder, BertShape
from narrowcast.passes import run_pipeline
from narrowcast.precision import Precision
from narrowcast.verification import kernel_agreement

from .backends.cpu.test_amx_networks import check_loops
from .emulation import amx

pytestmark = amx.NEEDS_AMX
# Products that stay on vectors need the arithmetic of AVX-512 FP16.
TARGETS = {"int8": amx.NAME, "bf16": amx.NAME, "fp16": "cpu:sapphirerapids+amx_fp16"}
Data = list[tuple[np.ndarray, ...]]
REQUEST = (0x1023, 18)  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
# A step of the levels that the last layer reads, as a share of the largest; bfloat16 has as many.
STEP = 2.0**-8


class SmallNet(nn.Module):
    """Images float32 [N, 3, 32, 32] to logits [N, 10]: a strided first layer, a residual block, a pointwise layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 5, stride=2, padding=2)
        self.inner = nn.Conv2d(32, 64, 3, padding=1)
        self.outer = nn.Conv2d(64, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 96, 1)
        self.head = nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.outer(torch.relu(self.inner(x))))
        return self.head(torch.relu(self.last(x)).mean((2, 3)))


def small_net() -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    return SmallNet().eval(), [(rng.standard_normal((1, 3, 32, 32)).astype(np.float32),) for _ in range(8)]


def encoder() -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    rng, tokens = np.random.default_rng(0), 32
    net = BertEncoder(BertShape(vocabulary=50, positions=tokens, channels=128, layers=2, heads=4, inner=256))
    return net.eval(), [(rng.integers(0, 50, (1, tokens)), (np.arange(tokens) < 20 + i)[None].astype(np.int64))
                        for i in range(8)]


def compiled(network: tuple[nn.Module, Data], precision: str | None) -> nc.Program:
    net, data = network
    return nc.compile(net, TARGETS[precision or "int8"], None, precision=precision, data=data if precision else None,
                      example_inputs=data[0], num_threads=2)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """A machine with AMX whose kernel permits it; what it was asked."""
    amx.install()
    questions: list[tuple[int, int]] = []

    def answer(code: int, argument: int) -> int:
        questions.append((code, argument))
        return 0

    monkeypatch.setattr(Target, "runs_here", lambda self: True)
    monkeypatch.setattr(tile_permission, "_arch_prctl", answer)
    tile_permission.request_tiles.cache_clear()
    yield questions
    tile_permission.request_tiles.cache_clear()


@pytest.mark.parametrize("precision", ["int8", "bf16", pytest.param("fp16", marks=pytest.mark.isa("avx512_fp16"))])
@pytest.mark.parametrize("network", [small_net, encoder])
def test_a_program_equals_the_evaluator(asked: list[tuple[int, int]], network: Callable[[], tuple[nn.Module, Data]],
                                        precision: str) -> None:
    net, data = network()
    program = compiled((net, data), precision)
    with amx.executing(Precision(precision), more_than=400):
        found = program(*data[1])
    mod = run_pipeline(import_model(net, data[0]).mod)
    expected = Evaluator(mod).evaluate(list(data[1]), program.plan).outputs[0].numpy()
    assert np.abs(found - expected).max() <= STEP * np.abs(expected).max()
    agreements = kernel_agreement(mod, program.plan, Target.parse(TARGETS[precision], 2), list(data[1]))
    assert [a.detail for a in agreements if not a.ok] == []
    assert asked == [REQUEST]


def test_an_fp16_program_multiplies_on_tiles() -> None:
    """All layers of the CNN but the head, which has one row."""
    net, data = small_net()
    program = nc.compile(net, "cpu:graniterapids", None, precision="fp16", data=data, example_inputs=data[0],
                         num_threads=2)
    assert program.report.fp16_share == pytest.approx(1.0)
    assert all(program.source("asm", layer).count("tdpfp16ps") >= 2 for layer in ("stem", "inner", "outer", "last"))
    assert program.source("asm", "head").count("tdpfp16ps") == 0
    check_loops(program.source("asm"), "tdpfp16ps")


def test_a_program_without_tiles_asks_for_nothing(asked: list[tuple[int, int]]) -> None:
    network = small_net()
    compiled(network, None)(*network[1][0])
    assert asked == []


def test_where_linux_refuses_the_program_says_so(asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_net()
    program = compiled(network, "int8")
    tile_permission.request_tiles.cache_clear()
    monkeypatch.setattr(tile_permission, "_arch_prctl", lambda code, argument: errno.EOPNOTSUPP)
    with pytest.raises(nc.TargetError, match=r"refuses(.|\n)*not supported(.|\n)*Linux 5\.16"):
        program(*network[1][0])
    assert program.source("asm", "inner").count("tdpbusd") >= 4  # It can be looked into.


def test_tiles_are_found_in_machine_code() -> None:
    assert tile_permission.uses_tiles(bytes.fromhex("00c4e27849c000"), Target.parse("cpu:sapphirerapids"))
    assert not tile_permission.uses_tiles(bytes.fromhex("00c4e27849c000"), Target.parse("cpu:znver4"))


def test_a_saved_program_keeps_its_features(asked: list[tuple[int, int]], tmp_path: Path) -> None:
    network = small_net()
    program = compiled(network, "int8")
    again = nc.load(program.save(tmp_path / "program"))
    np.testing.assert_array_equal(again(*network[1][2]), program(*network[1][2]))
    assert "amx_int8" in str(again._target)
