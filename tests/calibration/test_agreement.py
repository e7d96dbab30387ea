"""The judge of kernels: other orders of summation pass, wrong scales and wrong bits fail."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from narrowcast.calibration.agreement import group_agreement
from narrowcast.calibration.evaluator import Evaluator
from narrowcast.calibration.numerics import GroupProgram, Stored, round_to
from narrowcast.ir import GraphBuilder, Group, dtype_of, shape_of
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

U8 = Storage("uint8", QParams.from_range(-4.0, 4.0))


def programs(*mods: tvm.IRModule) -> dict[str, GroupProgram]:
    return {name: program for mod in mods for name, program in Evaluator(mod).programs.items()}


def inputs_of(program: GroupProgram, precision: Precision) -> list[Stored]:
    """Normal data, in the storage that the group may read."""
    storage = {Precision.FP32: FLOAT32, Precision.BF16: BFLOAT16, Precision.INT8: U8}[precision]
    rng = np.random.default_rng(1)
    stored = []
    for i, param in enumerate(program.params):
        if dtype_of(param) != "float32":
            stored.append(Stored(torch.from_numpy(rng.integers(0, 20, shape_of(param))), Storage(dtype_of(param))))
            continue
        real = torch.from_numpy(rng.standard_normal(shape_of(param)).astype(np.float32))
        exact = i in program.group.exact_inputs or program.group.kind == "movement"
        stored.append(Stored.of(real, storage if exact else FLOAT32))
    return stored


def in_float64(program: GroupProgram, inputs: list[Stored], precision: Precision) -> torch.Tensor:
    """What a perfect kernel computes: the same rounded operands, everything else in float64."""
    if precision is Precision.INT8:  # the accumulator is exact in any case
        values, done = program.start(inputs, precision)
        return program.widened().finish(
            {v: t.double() if t.is_floating_point() else t for v, t in values.items()}, done).float()
    wide = program.widened()
    if program.weight is not None:
        wide.constants[program.weight] = round_to(program.constants[program.weight], precision).double()
    values = {p: s.real.double() if s.data.is_floating_point() else s.data
              for p, s in zip(program.params, inputs, strict=True)}
    return wide.finish(values, 0).float()


COMPUTE = ("stem", "depthwise", "pointwise", "classifier", "query", "output", "up", "scores")
CASES = [(name, precision) for name in COMPUTE
         for precision in (Precision.FP32, Precision.BF16, Precision.INT8)]
CASES += [(name, Precision.FP32) for name in ("embedding", "attention", "norm", "softmax", "pool", "mean", "transpose")]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_rounding_differently_agrees_and_mistakes_do_not(
        convolutional: tvm.IRModule, transformer: tvm.IRModule, name: str, precision: Precision) -> None:
    program = programs(convolutional, transformer)[name]
    inputs = inputs_of(program, precision)
    perfect = in_float64(program, inputs, precision)
    own = QParams.from_range(float(perfect.min()), float(perfect.max()))
    storages = (FLOAT32, BFLOAT16, Storage("uint8", own))
    outputs = [Stored.of(perfect, s) for s in storages]
    found = group_agreement(program.group, precision, inputs, outputs)
    if program.group.kind == "opaque":
        outputs = outputs[:1]
        found = group_agreement(program.group, precision, inputs, outputs)
    assert found.ok, found.detail
    assert found.ulps is not None and found.ulps <= 1
    mistakes = {
        "scale off by a thousandth": Stored.of(perfect * 1.001, FLOAT32),
        "one element wrong": Stored(perfect.clone().index_fill_(0, torch.tensor([0]), 9.0), FLOAT32),
        "two steps": Stored((outputs[-1].data.int() + 2).clamp(0, 255).to(torch.uint8), storages[-1]),
        "not a number": Stored.of(torch.full_like(perfect, float("nan")), FLOAT32),
    }
    for what, wrong in mistakes.items():
        if program.group.kind == "opaque" and what == "two steps":
            continue
        assert not group_agreement(program.group, precision, inputs, [wrong]).ok, what


FUNCTIONS = {
    "asin": (relax.op.asin, torch.asin, 2.0), "acos": (relax.op.acos, torch.acos, -1.0),
    "acosh": (relax.op.acosh, torch.acosh, 0.0), "atanh": (relax.op.atanh, torch.atanh, 1.0),
    "log": (relax.op.log, torch.log, 0.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_edges_of_domains_infinities_and_nan_are_judged(name: str) -> None:
    make, reference, edge = FUNCTIONS[name]
    param = relax.Var("x", relax.TensorType((1, 6), "float32"))
    builder = GraphBuilder([param])
    function = builder.finish([builder.emit(make(param), "layer")], attrs={"Primitive": True, "group": "elementwise"})
    program = GroupProgram(Group(name="layer", kind="elementwise", function=function, inputs=("x",)))
    x = torch.tensor([[1.0, edge, float("nan"), float("inf"), 0.25, 3.0]])
    inputs = [Stored.of(x, FLOAT32)]
    right = reference(x.double()).float()
    assert right.isnan().any() and right.isfinite().any()
    found = group_agreement(program, Precision.FP32, inputs, [Stored.of(right, FLOAT32)])
    assert found.ok, found.detail
    for column in range(6):
        wrong = right.clone()
        wrong[0, column] = 7.0 if right[0, column].isnan() else float("nan")
        assert not group_agreement(program, Precision.FP32, inputs, [Stored.of(wrong, FLOAT32)]).ok, column
    assert not group_agreement(program, Precision.FP32, inputs, [Stored.of(right + 1e-2, FLOAT32)]).ok


def test_movement_must_be_exact(convolutional: tvm.IRModule) -> None:
    program = programs(convolutional)["pool"]
    inputs = inputs_of(program, Precision.INT8)
    right = Stored.of(program.compute(inputs, Precision.FP32), U8)
    assert group_agreement(program, Precision.FP32, inputs, [right]).ok
    levels = right.data.clone()
    levels[0, 0, 0, 0] ^= 1
    found = group_agreement(program, Precision.FP32, inputs, [Stored(levels, U8)])
    assert not found.ok and found.steps == 1 and "pool" in found.detail


def test_bf16_attention_rounds_probabilities(transformer: tvm.IRModule) -> None:
    program = programs(transformer)["attention"]
    inputs = inputs_of(program, Precision.BF16)
    right = program.compute(inputs, Precision.BF16)
    assert group_agreement(program, Precision.BF16, inputs, [Stored.of(right, FLOAT32)]).ok
    assert not group_agreement(program, Precision.BF16, inputs, [Stored.of(right * 1.02, FLOAT32)]).ok
