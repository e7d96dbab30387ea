"""Symbolic dims from the model to the saved program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import narrowcast
from narrowcast import ProgramError
from narrowcast.frontends import import_model
from narrowcast.ir import TensorSpec, bind_dims, groups_of, shape_of
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement

BATCH, STEPS, HEIGHT, WIDTH = Dim("batch"), Dim("steps", max=64), Dim("height", min=8), Dim("width", min=8)
EPS = float(np.finfo(np.float32).eps)


class Tagger(nn.Module):
    """Labels for the tokens of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.labels = nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.labels(self.layer(self.tokens(ids)))


class Picture(nn.Module):
    """A small classifier for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point = nn.Conv2d(16, 24, 1)
        self.pool = nn.MaxPool2d(2)
        self.labels = nn.Linear(24, 7)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(image))
        x = self.pool(torch.relu(self.point(torch.relu(self.depthwise(x)) + x)))
        return self.labels(x.mean((2, 3)))


def _tokens(batch: int, steps: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 30, (batch, steps), generator=torch.Generator().manual_seed(seed))


def _image(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def tagger() -> nn.Module:
    torch.manual_seed(0)
    return Tagger().eval()


@pytest.fixture(scope="module")
def picture() -> nn.Module:
    torch.manual_seed(0)
    return Picture().eval()


@pytest.fixture(scope="module")
def program(tagger: nn.Module) -> narrowcast.Program:
    return narrowcast.compile(tagger, example_inputs=_tokens(2, 16), dynamic_shapes=({0: BATCH, 1: STEPS},))


def _close(found: torch.Tensor, model: nn.Module, x: torch.Tensor, length: int = 64) -> None:
    """Equal to the rounding of sums of ``length`` float32 terms in each of a few layers."""
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(found, expected, rtol=16 * EPS, atol=16 * EPS * length)


@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (1, 7), (2, 16), (3, 33), (5, 64)])
def test_one_program_for_all_lengths(
    program: narrowcast.Program, tagger: nn.Module, batch: int, steps: int
) -> None:
    x = _tokens(batch, steps)
    _close(program(x), tagger, x)


def test_the_signature_names_the_dims(program: narrowcast.Program) -> None:
    assert program.inputs == (TensorSpec("ids", ("batch", "steps"), "int64"),)
    assert [s.shape for s in program.outputs] == [("batch", "steps", 5)]
    assert program.typical == {"batch": 2, "steps": 16}
    assert program.benchmark(runs=3, warmup=1).runs == 3


def test_save_and_load(program: narrowcast.Program, tmp_path: Path) -> None:
    loaded = narrowcast.load(program.save(tmp_path / "tagger.nc"))
    assert (loaded.inputs, loaded.outputs, loaded.typical) == (program.inputs, program.outputs, program.typical)
    assert (loaded.ranges, [str(r) for r in loaded.requirements]) == (
        program.ranges, [str(r) for r in program.requirements])
    for batch, steps in ((1, 5), (4, 40)):
        assert torch.equal(loaded(_tokens(batch, steps)), program(_tokens(batch, steps)))
    with pytest.raises(ProgramError, match="'steps'"):
        loaded(_tokens(1, 65))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 65, dtype=torch.int64), "dim 'steps' is out of the range"),
        (torch.zeros(3, dtype=torch.int64), "input 'ids' has the wrong shape: the rank differs"),
        (torch.zeros(0, 3, dtype=torch.int64), r"input 'ids' has the wrong shape: dim 0 \('batch'\) is empty"),
        (torch.zeros(2, 3), "input 'ids' has the wrong element type"),
    ],
)
def test_a_call_that_does_not_fit_names_input_and_dim(
    program: narrowcast.Program, x: torch.Tensor, message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        program(x)


def test_inputs_that_share_a_dim_have_to_agree() -> None:
    class Sum(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left * right

    rows = Dim("rows")
    program = narrowcast.compile(Sum(), example_inputs=(torch.ones(4, 3), torch.ones(4, 3)),
                                 dynamic_shapes=({0: rows}, {0: rows}))
    with pytest.raises(ProgramError, match=r"input 'right' .*: dim 0 \('rows'\) is 6, and dim 0 of 'left' makes it 5"):
        program(torch.ones(5, 3), torch.ones(6, 3))
    assert torch.equal(program(torch.full((5, 3), 2.0), torch.full((5, 3), 3.0)), torch.full((5, 3), 6.0))


def test_dims_fixes_symbols(tagger: nn.Module) -> None:
    program = narrowcast.compile(tagger, example_inputs=_tokens(2, 16), dynamic_shapes=({0: BATCH, 1: STEPS},),
                                 dims={"batch": 1})
    assert [s.shape for s in program.inputs] == [(1, "steps")]
    _close(program(_tokens(1, 9)), tagger, _tokens(1, 9))


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 8, 8), (1, 33, 18), (3, 17, 64)])
def test_one_program_for_all_image_sizes(picture: nn.Module, batch: int, height: int, width: int) -> None:
    program = _picture_program(picture)
    x = _image(batch, height, width)
    _close(program(x), picture, x, length=256)


_programs: dict[int, narrowcast.Program] = {}


def _picture_program(picture: nn.Module) -> narrowcast.Program:
    if id(picture) not in _programs:
        _programs[id(picture)] = narrowcast.compile(
            picture, example_inputs=_image(2, 32, 32), dynamic_shapes=({0: BATCH, 2: HEIGHT, 3: WIDTH},))
    return _programs[id(picture)]


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_narrow_precisions_agree_with_the_evaluator_at_every_extent(
    tagger: nn.Module, picture: nn.Module, precision: str
) -> None:
    """Calibrated on samples of different shapes; every kernel is compared on exactly what the evaluator stored."""
    cases = (
        (tagger, ({0: BATCH, 1: STEPS},), [_tokens(2, 3 + i, seed=i) for i in range(8)],
         [_tokens(1, 1), _tokens(3, 37)]),
        (picture, ({0: BATCH, 2: HEIGHT, 3: WIDTH},), [_image(2, 8 + i, 30 - i, seed=i) for i in range(8)],
         [_image(1, 9, 8), _image(3, 21, 40)]),
    )
    for model, dynamic, data, tests in cases:
        program = narrowcast.compile(model, example_inputs=data[3], dynamic_shapes=dynamic, precision=precision,
                                     data=data)
        narrow = [d for d in program.plan.decisions if d.precision.value == precision]
        assert len(narrow) >= 4
        grouped = run_pipeline(import_model(model, data[3], dynamic).mod)
        assert [g.name for g in groups_of(grouped)] == [d.op for d in program.plan.decisions]
        for x in tests:
            found = kernel_agreement(grouped, program.plan, program._target, [x.numpy()])
            assert [a.detail for a in found if not a.ok] == []


def test_bound_dims_give_the_static_network(tagger: nn.Module) -> None:
    dynamic = run_pipeline(import_model(tagger, _tokens(2, 16), ({0: BATCH, 1: STEPS},)).mod)
    fixed = bind_dims(dynamic, {"batch": 3, "steps": 5})
    assert [shape_of(p) for p in fixed["main"].params] == [(3, 5)]
    assert all(not g.symbols for g in groups_of(fixed))
    partly = bind_dims(dynamic, {"batch": 3})
    assert {s.name for g in groups_of(partly) for s in g.symbols} == {"steps"}
