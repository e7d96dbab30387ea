"""Recurrent layers of PyTorch: stacks, directions, projections, unbatched input, cells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from narrowcast.errors import CompileError
from narrowcast.frontends import ImportedModel, import_model
from narrowcast.operators import reference

from ..bindings import operations
from ..conftest import EPS, _compare

Same = Callable[..., ImportedModel]
LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@settings(max_examples=40, deadline=None)
@given(cell=st.sampled_from(list(LAYERS)), layers=st.integers(1, 2), bidirectional=st.booleans(),
       batch_first=st.booleans(), bias=st.booleans(), state=st.booleans(), steps=st.integers(1, 4),
       batch=st.integers(0, 3), projection=st.booleans())
def test_layers(cell: str, layers: int, bidirectional: bool, batch_first: bool, bias: bool, state: bool, steps: int,
                batch: int, projection: bool) -> None:
    """``batch`` 0 stands for input without a batch."""
    torch.manual_seed(0)
    options = {"proj_size": 2} if projection and cell == "lstm" else {}
    model = LAYERS[cell](4, 3, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional, **options)
    order = (batch, steps) if batch_first else (steps, batch)
    x = torch.randn(*(order if batch else (steps,)), 4)
    middle = (batch,) if batch else ()
    h0, c0 = (torch.randn(layers * (1 + bidirectional), *middle, n) for n in (options.get("proj_size", 3), 3))
    inputs = (x, (h0, c0) if cell == "lstm" else h0) if state else (x,)
    imported = _compare(model, *inputs)
    assert operations(imported).count(f"narrowcast.{cell}") == layers


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_the_activation_of_an_rnn(nonlinearity: str, same_as_pytorch: Same) -> None:
    imported = same_as_pytorch(nn.RNN(4, 3, 2, nonlinearity=nonlinearity, bidirectional=True), torch.randn(3, 2, 4))
    assert operations(imported).count("narrowcast.rnn") == 2


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("make", [
    nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda i, h: nn.RNNCell(i, h, nonlinearity="relu", bias=False)])
def test_cells_are_linear_layers(make: Callable[[int, int], nn.Module], batch: tuple[int, ...],
                                 same_as_pytorch: Same) -> None:
    h = torch.randn(*batch, 3)
    model = make(4, 3)
    imported = same_as_pytorch(model, torch.randn(*batch, 4), (h, h * 0.5) if isinstance(model, nn.LSTMCell) else h)
    assert operations(imported).count("relax.matmul") == 2


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cell", LAYERS)
def test_steps_and_batch_may_be_dynamic(cell: str, batch_first: bool) -> None:
    torch.manual_seed(0)
    model = LAYERS[cell](4, 3, 2, batch_first=batch_first, bidirectional=True).eval()
    imported = import_model(model, torch.randn(5, 2, 4), dynamic_shapes=({0: "first", 1: "second"},))
    assert operations(imported).count(f"narrowcast.{cell}") == 2
    assert imported.inputs[0].shape == ("first", "second", 4)
    for first, second in ((5, 2), (1, 1), (3, 7)):
        x = torch.randn(first, second, 4)
        with torch.no_grad():
            expected = pytree.tree_leaves(model(x))
        for ours, theirs in zip(reference.run(imported.mod, [x]), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=64 * EPS)


@pytest.mark.parametrize("cell", LAYERS)
def test_exported_programs(cell: str) -> None:
    """They call PyTorch's own operators."""
    torch.manual_seed(0)
    model, x = LAYERS[cell](4, 3).eval(), torch.randn(5, 2, 4)
    imported = import_model(torch.export.export(model, (x,)))
    assert operations(imported).count(f"narrowcast.{cell}") == 1
    with torch.no_grad():
        expected = pytree.tree_leaves(model(x))
    for ours, theirs in zip(reference.run(imported.mod, [x]), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=64 * EPS)


def test_a_layer_on_constants_is_computed_at_import(same_as_pytorch: Same) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 3)
            self.register_buffer("sequence", torch.randn(5, 1, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.gru(self.sequence)[1]

    imported = same_as_pytorch(Constant(), torch.randn(1, 1, 3))
    assert operations(imported) == ["relax.add"]


@pytest.mark.parametrize("sorted_already", [False, True])
def test_packed_sequences_are_refused(sorted_already: bool) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 3, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=sorted_already)
            return self.gru(packed)[1]

    with pytest.raises(CompileError, match="a packed sequence has no translation"):
        import_model(Packed(), (torch.randn(2, 5, 4), torch.tensor([5, 3])))


def test_dropout_between_layers_is_refused_in_training_form() -> None:
    program = torch.export.export(nn.GRU(4, 3, 2, dropout=0.5).train(), (torch.randn(5, 2, 4),))
    with pytest.raises(CompileError, match="dropout between the layers"):
        import_model(program)
