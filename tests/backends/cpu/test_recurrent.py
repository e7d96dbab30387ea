"""The kernel of the recurrent layers: in FP32 against the reference in float64, below against the evaluator."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx

from narrowcast import ir
from narrowcast.backends.cpu.build import call_kernel, compile_functions, run_kernel
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.recurrent import build_recurrent
from narrowcast.backends.target import Target, capabilities
from narrowcast.calibration.agreement import Agreement, group_agreement
from narrowcast.calibration.numerics import Stored
from narrowcast.operators import reference
from narrowcast.operators.recurrent import OPERANDS, Activation, Recurrence, operands_of, recurrent_layer
from narrowcast.precision import FLOAT32, Precision, Storage

from .groups import NATIVE, storage_for
from .tiers import INT8_TIERS

EPS = float(np.finfo(np.float32).eps)
WEIGHTS = ("w", "r", "b", "peepholes", "projection")
LSTM, GRU, RNN = (Recurrence(cell) for cell in ("lstm", "gru", "rnn"))
FORMS = [
    LSTM, Recurrence("lstm", 2), Recurrence("lstm", reverse=True, clip=0.2, input_forget=True),
    GRU, Recurrence("gru", 2), Recurrence("gru", 2, linear_before_reset=True),
    Recurrence("gru", reverse=True, clip=0.2, linear_before_reset=True),
    RNN, Recurrence("rnn", 2, (Activation("relu"), Activation("tanh"))), Recurrence("rnn", clip=0.1, reverse=True),
]
ROUNDED = [p for p in (Precision.BF16, Precision.INT8) if p in NATIVE.precisions()]
ACTIVATIONS = ("affine", "elu", "hardsigmoid", "leakyrelu", "relu", "scaledtanh", "sigmoid", "softplus", "softsign",
               "tanh", "thresholdedrelu")


def name_of(form: Recurrence) -> str:
    return f"{form.cell}{form.directions}"


def arrays_of(form: Recurrence, sizes: tuple[int, int, int, int], has: Collection[str],
              lengths: Sequence[int] | None = None, state: int | None = None) -> dict[str, np.ndarray]:
    """Random operands for (steps, batch, inputs, hidden): x, w, r and those named in ``has``. The weights of a state's
    products add up to about 1, so that steps do not multiply rounding errors."""
    steps, batch, inputs, hidden = sizes
    rows, d, state = form.gates * hidden, form.directions, state or hidden
    shapes = {"x": (steps, batch, inputs), "w": (d, rows, inputs), "r": (d, rows, state), "b": (d, 2 * rows),
              "h0": (d, batch, state), "c0": (d, batch, hidden), "peepholes": (d, 3 * hidden),
              "projection": (d, state, hidden)}
    generator = np.random.default_rng(0)
    scale = dict.fromkeys(shapes, 0.5) | {"r": 0.5 / np.sqrt(state), "projection": 1 / np.sqrt(hidden)}
    kept = [n for n in OPERANDS if n in shapes and (n in ("x", "w", "r") or n in has)]
    found = {n: (generator.standard_normal(shapes[n]) * scale[n]).astype(np.float32) for n in kept}
    return found if lengths is None else {**found, "lengths": np.asarray(lengths, np.int32)}


def request_for(form: Recurrence, arrays: dict[str, np.ndarray], constants: Collection[str],
                symbols: dict[int, tirx.Var] | None = None, typical: tuple[tuple[str, int], ...] = (),
                precision: Precision = Precision.FP32, *, per_channel: bool = True) -> KernelRequest:
    """A group of one layer; ``symbols`` replaces the extents of steps (0) and batch (1) by symbols."""
    replaced = symbols or {}
    steps, batch = (replaced.get(axis, arrays["x"].shape[axis]) for axis in (0, 1))
    dims = {"x": (steps, batch), "lengths": (batch,), "h0": (form.directions, batch), "c0": (form.directions, batch)}
    params = {n: relax.Var(n, relax.TensorType((*dims.get(n, ()), *a.shape[len(dims.get(n, ())):]), str(a.dtype)))
              for n, a in arrays.items() if n not in constants}
    call = recurrent_layer(form, **{n: params.get(n, ir.constant(a)) for n, a in arrays.items()})
    extents = [relax.Var("extents", relax.ShapeType(list(replaced.values())))] if replaced else []
    builder = ir.GraphBuilder([*params.values(), *extents])
    result = builder.emit(call, "layer")
    fields = [builder.emit(relax.TupleGetItem(result, i), "layer") for i in range(len(result.ty.fields))]
    function = builder.finish(fields, as_tuple=True, attrs={"Primitive": True, "group": "recurrent"})
    group = ir.Group("layer", "recurrent", function, tuple(params))
    storages = tuple(storage_for(precision, arrays[n]) if n == "x" else Storage(str(arrays[n].dtype)) for n in params)
    return KernelRequest(group, precision, storages, (FLOAT32,) * len(fields), per_channel, typical=typical)


def check(form: Recurrence, sizes: tuple[int, int, int, int], has: Collection[str] = ("b", "h0", "c0"), *,
          constants: Collection[str] = WEIGHTS, lengths: Sequence[int] | None = None, state: int | None = None,
          target: Target = NATIVE, threads: int = 2) -> None:
    has = [n for n in has if form.cell == "lstm" or n not in ("c0", "peepholes")] + (["projection"] if state else [])
    arrays = arrays_of(form, sizes, has, lengths, state)
    request = request_for(form, arrays, constants)
    kernel = build_recurrent(request, capabilities(target), threads)
    steps, batch, inputs, hidden = sizes
    each = form.gates * hidden * (inputs + (state or hidden)) + (hidden * state if state else 0)
    assert kernel.macs == steps * batch * form.directions * each
    names = [p.name for p in request.group.parameters]
    compare(request, run_kernel(request, kernel, [arrays[n] for n in names], target.tvm_target()), arrays)


def check_rounded(form: Recurrence, sizes: tuple[int, int, int, int], precision: Precision,
                  has: Collection[str] = ("b", "h0", "c0"), *, lengths: Sequence[int] | None = None,
                  state: int | None = None, target: Target = NATIVE, threads: int = 2,
                  per_channel: bool = True) -> None:
    """A layer with constant weights in a precision below FP32 against the evaluator."""
    has = [n for n in has if form.cell == "lstm" or n not in ("c0", "peepholes")] + (["projection"] if state else [])
    arrays = arrays_of(form, sizes, has, lengths, state)
    request = request_for(form, arrays, WEIGHTS, precision=precision, per_channel=per_channel)
    kernel = build_recurrent(request, target.capabilities, threads)
    read = stored_inputs(request, arrays)
    found = run_kernel(request, kernel, list(map(memory, read)), target.tvm_target())
    agreement = agreement_of(request, read, found)
    assert agreement.ok, agreement.detail
    assert not agreement_of(request, read, [a + np.float32(0.02) for a in found]).ok or 0 in sizes


def stored_inputs(request: KernelRequest, arrays: dict[str, np.ndarray]) -> list[Stored]:
    return [Stored.of(torch.from_numpy(arrays[name]), storage)
            for name, storage in zip(request.group.inputs, request.inputs, strict=True)]


def memory(stored: Stored) -> np.ndarray:
    return (stored.data.view(torch.uint16) if stored.data.dtype is torch.bfloat16 else stored.data).numpy()


def agreement_of(request: KernelRequest, read: list[Stored], found: list[np.ndarray]) -> Agreement:
    written = [Stored(torch.from_numpy(a), FLOAT32) for a in found]
    return group_agreement(request.group, request.precision, read, written, per_channel=request.per_channel)


def compare(request: KernelRequest, found: list[np.ndarray], arrays: dict[str, np.ndarray]) -> None:
    call = request.group.bindings[0].value
    exact = [torch.from_numpy(a if n == "lengths" else a.astype(np.float64))
             for n, a in ((n, arrays[n]) for n in operands_of(call))]
    # a step's sums of inputs + state products of about 0.25 each; clamps and gates damp what came before, an identity
    # of slope 1 adds it up
    bound = EPS * (arrays["w"].shape[2] + arrays["r"].shape[2] + 8) * 4
    for got, expected in zip(found, reference.evaluate_call(call, exact), strict=True):
        assert got.shape == tuple(expected.shape)
        assert np.max(np.abs(got - expected.numpy()), initial=0) <= bound


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_forms(form: Recurrence) -> None:
    check(form, (18, 5, 7, 20))
    check(form, (5, 3, 7, 9), (), constants=(), lengths=(5, 0, 3))


@settings(max_examples=8, deadline=None)
@given(form=st.sampled_from(FORMS), steps=st.integers(1, 35), batch=st.integers(1, 9), inputs=st.integers(1, 40),
       hidden=st.integers(1, 70), threads=st.integers(1, 3), known=st.booleans())
def test_sizes(form: Recurrence, steps: int, batch: int, inputs: int, hidden: int, threads: int, known: bool) -> None:
    check(form, (steps, batch, inputs, hidden), constants=WEIGHTS if known else (), threads=threads)


def test_threads_share_the_products_of_a_single_task() -> None:
    arrays = arrays_of(LSTM, (3, 1, 5, 512), ("b",))
    kernel = build_recurrent(request_for(LSTM, arrays, WEIGHTS), capabilities(NATIVE), 2)
    assert kernel.func.script().count("T.parallel") == 1
    check(LSTM, (3, 1, 5, 512), ("b",))
    check(LSTM, (18, 1, 200, 130), ("b",))


@pytest.mark.isa("avx2")
@pytest.mark.parametrize("form", [LSTM, Recurrence("gru", 2, linear_before_reset=True), RNN], ids=name_of)
def test_vectors_of_eight(form: Recurrence) -> None:
    check(form, (6, 5, 7, 20), target=Target("haswell", 2))


@pytest.mark.parametrize("state", [None, 17])
def test_peepholes_and_projection(state: int | None) -> None:
    check(LSTM, (6, 5, 7, 20), ("b", "h0", "c0", "peepholes"), state=state)
    check(Recurrence("lstm", 2), (6, 2, 7, 20), ("peepholes",), state=state, constants=("w",))


@pytest.mark.parametrize("names", [ACTIVATIONS[:6], ACTIVATIONS[5:]])
def test_activations(names: tuple[str, ...]) -> None:
    """Six at once: those of two directions."""
    check(Recurrence("lstm", 2, tuple(Activation(name, 0.4, 0.3) for name in names)), (3, 2, 7, 9))


def test_states_and_input_may_be_constants() -> None:
    check(LSTM, (4, 2, 7, 20), constants=("x", "h0", "w"))


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (3, 2, 0, 5)])
def test_sequences_samples_or_features_may_be_missing(sizes: tuple[int, int, int, int]) -> None:
    for form in (LSTM, Recurrence("gru", 2)):
        check(form, sizes)


@pytest.mark.parametrize("typical", [1, 8])
@pytest.mark.parametrize("form", [Recurrence("lstm", 2), Recurrence("gru", linear_before_reset=True), RNN], ids=name_of)
def test_symbolic_steps_and_batch(form: Recurrence, typical: int) -> None:
    """One kernel for every number of steps and samples, whatever it was made for."""
    symbols = {0: tirx.Var("steps", "int64"), 1: tirx.Var("batch", "int64")}
    arrays = arrays_of(form, (3, 2, 7, 20), ("b", "h0"))
    request = request_for(form, arrays, WEIGHTS, symbols, (("steps", 20), ("batch", typical)))
    kernel = build_recurrent(request, capabilities(NATIVE), 2)
    assert kernel.macs == 20 * typical * form.directions * form.gates * 20 * (7 + 20)
    module = compile_functions({"layer": kernel.func}, NATIVE.tvm_target())
    for steps, batch in ((1, 1), (3, 2), (16, 8), (37, 11)):
        given = arrays_of(form, (steps, batch, 7, 20), ("b", "h0")) | {n: arrays[n] for n in ("w", "r", "b")}
        inputs = [given[p.name] for p in request.group.parameters]
        compare(request, call_kernel(module["layer"], request, kernel, inputs), given)


@pytest.mark.isa("avx512_bf16")
@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_bfloat16(form: Recurrence) -> None:
    check_rounded(form, (18, 5, 7, 20), Precision.BF16)


@pytest.mark.isa("avx512_bf16")
@pytest.mark.parametrize("form", FORMS[::3], ids=name_of)
def test_bfloat16_of_different_lengths(form: Recurrence) -> None:
    check_rounded(form, (5, 3, 8, 9), Precision.BF16, (), lengths=(5, 0, 3))


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_int8(form: Recurrence) -> None:
    check_rounded(form, (18, 5, 7, 20), Precision.INT8)


@pytest.mark.parametrize("form", FORMS[1::3], ids=name_of)
def test_int8_of_different_lengths(form: Recurrence) -> None:
    check_rounded(form, (5, 3, 8, 9), Precision.INT8, (), lengths=(5, 0, 3), per_channel=False)


@settings(max_examples=8, deadline=None)
@given(form=st.sampled_from(FORMS), steps=st.integers(1, 35), batch=st.integers(1, 9), inputs=st.integers(1, 40),
       hidden=st.integers(1, 70), threads=st.integers(1, 3), precision=st.sampled_from(ROUNDED))
def test_sizes_below_fp32(form: Recurrence, steps: int, batch: int, inputs: int, hidden: int, threads: int,
                          precision: Precision) -> None:
    check_rounded(form, (steps, batch, inputs, hidden), precision, threads=threads)


@INT8_TIERS
def test_tiers_of_int8(target: Target) -> None:
    check_rounded(LSTM, (6, 5, 7, 21), Precision.INT8, target=target)
    check_rounded(Recurrence("gru", 2, linear_before_reset=True), (4, 1, 9, 34), Precision.INT8, target=target)


@pytest.mark.parametrize("precision", ROUNDED)
def test_rounded_states_of_threads_peepholes_and_projections(precision: Precision) -> None:
    check_rounded(LSTM, (3, 1, 5, 512), precision, ("b",))
    check_rounded(LSTM, (6, 5, 7, 20), precision, ("b", "h0", "peepholes"), state=17)
    several = tuple(Activation(name, 0.4, 0.3) for name in ACTIVATIONS[:6])
    check_rounded(Recurrence("lstm", 2, several), (3, 2, 7, 9), precision)


def test_a_long_sum_of_levels_is_exact() -> None:
    check_rounded(GRU, (2, 1, 1300, 3), Precision.INT8)


def test_rounded_layers_of_any_steps_and_batch() -> None:
    symbols = {0: tirx.Var("steps", "int64"), 1: tirx.Var("batch", "int64")}
    form = Recurrence("gru", 2)
    arrays = arrays_of(form, (37, 11, 7, 20), ("b",))
    request = request_for(form, arrays, WEIGHTS, symbols, (("steps", 20), ("batch", 3)), Precision.INT8)
    kernel = build_recurrent(request, capabilities(NATIVE), 2)
    module = compile_functions({"layer": kernel.func}, NATIVE.tvm_target())
    for steps, batch in ((1, 1), (3, 2), (37, 11)):
        read = stored_inputs(request, arrays | {"x": arrays["x"][:steps, :batch].copy()})
        found = call_kernel(module["layer"], request, kernel, list(map(memory, read)))
        agreement = agreement_of(request, read, found)
        assert agreement.ok, agreement.detail


def test_the_padding_of_a_state_takes_no_part_in_its_scale() -> None:
    """Units that fill the last vector run away to infinity."""
    growing = Recurrence("rnn", activations=(Activation("affine", 4.0, 1e3),))
    arrays = arrays_of(growing, (6, 2, 3, 5), ("b",))
    arrays["b"] -= np.float32(250.0)
    arrays["r"] *= np.float32(0.1)
    request = request_for(growing, arrays, WEIGHTS, precision=Precision.INT8)
    read = stored_inputs(request, arrays)
    kernel = build_recurrent(request, capabilities(NATIVE), 2)
    found = run_kernel(request, kernel, list(map(memory, read)), NATIVE.tvm_target())
    assert agreement_of(request, read, found).ok
