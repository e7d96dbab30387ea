"""The recurrent operators: types, the form in the attributes, and their reference semantics against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.dims import equal_dims
from narrowcast.errors import VerificationError
from narrowcast.operators import reference
from narrowcast.operators.recurrent import (
    GATES,
    Activation,
    Recurrence,
    is_recurrent,
    misfit,
    operands_of,
    recurrence_of,
    recurrent_layer,
)

EPS = float(np.finfo(np.float32).eps)
# PyTorch's gates in ONNX's order.
ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def var(name: str, *shape: object, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def operands(form: Recurrence, steps: object = 5, batch: object = 2, state: int = 4) -> dict[str, relax.Var]:
    rows, directions = 4 * form.gates, form.directions
    found = {"x": var("x", steps, batch, 3), "w": var("w", directions, rows, 3), "r": var("r", directions, rows, state),
             "b": var("b", directions, 2 * rows), "h0": var("h0", directions, batch, state)}
    if form.cell == "lstm":
        found["c0"] = var("c0", directions, batch, 4)
    return found


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", GATES)
def test_a_layer_gives_all_states_and_the_last_ones(cell: str, directions: int) -> None:
    symbols = [tvm.tirx.Var(n, "int64") for n in ("steps", "batch")]
    form = Recurrence(cell, directions)
    for steps, batch in ((5, 2), symbols):
        given = operands(form, steps, batch)
        builder = ir.GraphBuilder(list(given.values()))
        result = builder.emit(recurrent_layer(form, **given), "layer")
        fields = [builder.emit(relax.TupleGetItem(result, i), f"layer.{i}") for i in range(len(result.ty.fields))]
        last = (directions, batch, 4)
        expected = [(steps, directions, batch, 4), last, last][:3 if cell == "lstm" else 2]
        assert all(equal_dims(ir.dims_of(f), e) for f, e in zip(fields, expected, strict=True))
        mod = ir.with_main(tvm.IRModule(), builder.finish(fields))
        relax.analysis.well_formed(mod)
        assert f"narrowcast.{cell}" in mod.script()
        tvm.ir.assert_structural_equal(mod, tvm.ir.load_json(tvm.ir.save_json(mod)))


@pytest.mark.parametrize("form", [
    Recurrence("lstm", 2, tuple(Activation(n, 0.5, 2.0) for n in ("elu", "tanh", "affine")) * 2, clip=0.25),
    Recurrence("lstm", reverse=True, input_forget=True),
    Recurrence("gru", 2, linear_before_reset=True),
    Recurrence("rnn", 1, (Activation("relu"),)),
])
def test_the_form_and_the_operands_can_be_read_from_a_call(form: Recurrence) -> None:
    given = operands(form)
    del given["b"]
    call = recurrent_layer(form, **given, lengths=None)
    assert recurrence_of(call) == form
    found = operands_of(call)
    assert found.keys() == given.keys() and all(found[n].same_as(given[n]) for n in given)
    assert is_recurrent(ir.op_name(call)) and not is_recurrent("relax.add") and not is_recurrent(None)


@pytest.mark.parametrize(("name", "wrong"), [
    ("x", var("x", 5, 2, 7)), ("r", var("r", 1, 16, 5)), ("b", var("b", 1, 16)), ("h0", var("h0", 1, 3, 4)),
    ("lengths", var("lengths", 2)), ("peepholes", var("peepholes", 1, 16)), ("projection", var("p", 1, 2, 4)),
])
def test_operands_that_do_not_fit_are_found(name: str, wrong: relax.Var) -> None:
    form = Recurrence("lstm")
    given = {**operands(form), name: wrong}
    assert misfit(form, operands(form)) is None
    found = misfit(form, given)
    assert found is not None and found[0] in (name, "r" if name == "projection" else name)
    with pytest.raises((VerificationError, RuntimeError), match="does not fit the others"):
        ir.GraphBuilder([]).emit(recurrent_layer(form, **given), "layer")


def test_states_of_another_batch_do_not_fit() -> None:
    batch, other = (tvm.tirx.Var(n, "int64") for n in ("batch", "other"))
    given = {**operands(Recurrence("gru"), 5, batch), "h0": var("h0", 1, other, 4)}
    assert (misfit(Recurrence("gru"), given) or ("",))[0] == "h0"


def parameters_of(layer: torch.nn.RNNBase, cell: str) -> dict[str, torch.Tensor]:
    """The layer's weights in ONNX's layout."""
    suffixes = ("", "_reverse")[:2 if layer.bidirectional else 1]

    def stacked(kind: str) -> torch.Tensor:
        own = [getattr(layer, f"{kind}_l0{suffix}").detach().chunk(GATES[cell]) for suffix in suffixes]
        return torch.stack([torch.cat([w[g] for g in ORDERS[cell]]) for w in own])

    found = {"w": stacked("weight_ih"), "r": stacked("weight_hh"),
             "b": torch.cat([stacked("bias_ih"), stacked("bias_hh")], dim=1)}
    if layer.proj_size:
        found["projection"] = torch.stack([getattr(layer, f"weight_hr_l0{s}").detach() for s in suffixes])
    return found


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cell", "options"), [
    ("lstm", {}), ("lstm", {"proj_size": 2}), ("gru", {}), ("rnn", {}), ("rnn", {"nonlinearity": "relu"})])
def test_the_reference_agrees_with_pytorch(cell: str, options: dict[str, object], bidirectional: bool) -> None:
    torch.manual_seed(0)
    layer = getattr(torch.nn, cell.upper())(3, 4, bidirectional=bidirectional, **options)
    directions, state = 1 + bidirectional, layer.proj_size or 4
    activations = (Activation("relu"),) * directions if options.get("nonlinearity") else ()
    form = Recurrence(cell, directions, activations, linear_before_reset=True)
    x, h0, c0 = torch.randn(5, 2, 3), torch.randn(directions, 2, state), torch.randn(directions, 2, 4)
    values = {"x": x, **parameters_of(layer, cell), "h0": h0, **({"c0": c0} if cell == "lstm" else {})}
    call = recurrent_layer(form, **{n: var(n, *v.shape) for n, v in values.items()})
    with torch.no_grad():
        states, last = layer(x, (h0, c0) if cell == "lstm" else h0)
    expected = [states.unflatten(-1, (directions, state)).transpose(1, 2), *(last if cell == "lstm" else (last,))]
    found = reference.evaluate_call(call, [values[n] for n in operands_of(call)])
    for ours, theirs in zip(found, expected, strict=True):
        # five steps of sums of 7 products, each of at most about 1, through functions of slope 1
        torch.testing.assert_close(ours, theirs, rtol=0, atol=5 * 7 * EPS)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_every_sample_has_its_own_length(cell: str, reverse: bool) -> None:
    """A batch of sequences gives each the results that it has alone, 0 beyond its end and 0 without any step."""
    generator, form = torch.Generator().manual_seed(0), Recurrence(cell, reverse=reverse)
    lengths = torch.tensor([5, 0, 2, 9])  # the last one is cut to the 5 steps that there are
    values = {n: torch.randn(*ir.shape_of(v), generator=generator) for n, v in operands(form, 5, 4).items()}
    call = recurrent_layer(form, **operands(form, 5, 4), lengths=var("lengths", 4, dtype="int64"))
    found = reference.evaluate_call(call, [{**values, "lengths": lengths}[n] for n in operands_of(call)])
    for sample, length in enumerate(lengths.clamp(max=5).tolist()):
        one = slice(sample, sample + 1)
        alone = {**values, "x": values["x"][:length, one], "h0": values["h0"][:, one]}
        alone |= {"c0": values["c0"][:, one]} if cell == "lstm" else {}
        short = recurrent_layer(form, **{n: var(n, *v.shape) for n, v in alone.items()})
        sequence, *last = reference.evaluate_call(short, [alone[n] for n in operands_of(short)])
        torch.testing.assert_close(found[0][:length, :, one], sequence)
        assert not found[0][length:, :, one].any()
        for ours, theirs in zip(found[1:], last, strict=True):
            torch.testing.assert_close(ours[:, one], theirs if length else torch.zeros_like(theirs))
