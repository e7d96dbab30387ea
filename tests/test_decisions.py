"""Plans out of assignments: storages with parameters, reasons, and the round trip."""

import math

import numpy as np
import pytest
from tvm import relax

from narrowcast.assignment import GroupOptions, Problem, solve
from narrowcast.decisions import build_plan, explain
from narrowcast.errors import PlanError
from narrowcast.ir import GraphBuilder, Group
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, PrecisionPlan, QParams, Storage

FP32, BF16, INT8 = Precision.FP32, Precision.BF16, Precision.INT8
QX, QA = QParams(0.1, 3), QParams(0.2, 0)


def conv(name, reads, fp32=60.0, bf16=35.0, int8=19.0, noise=(0.5, 4.0), residual=()):
    return GroupOptions(name, "conv", {FP32: fp32, BF16: bf16, INT8: int8}, (reads, *residual), (reads,),
                        {BF16: noise[0], INT8: noise[1]}, macs=1000)


def other(name, kind, *inputs, **options):
    return GroupOptions(name, kind, {FP32: 5.0}, inputs, **options)


def assign(*groups, **options):
    names = frozenset(n for g in groups for n in (g.name, *g.inputs))
    return solve(Problem(groups, (groups[-1].name,), names, **options))


def test_plan_has_storages_parameters_and_round_trips():
    answer = assign(conv("a", "x"), other("pool", "movement", "a"), conv("b", "pool", residual=("x",)),
                    noise_limit=100.0)
    plan = build_plan(answer, {"x": QX, "a": QA, "pool": QX}, module_hash="hash", seed=7)
    assert [d.op for d in plan.decisions] == ["a", "pool", "b"]
    assert plan.stored("x") == (Storage("uint8", QX),)
    assert plan["a"].stores == (Storage("uint8", QA),) == plan["pool"].stores, "movement keeps the parameters it reads"
    assert plan["b"].stores == (FLOAT32,)
    assert plan["a"].precision is INT8 and plan["a"].cost_us == 19 and plan["a"].macs == 1000
    assert plan["a"].error == pytest.approx(0.5) and plan["pool"].error == 0
    assert (plan.module_hash, plan.seed) == ("hash", 7)
    assert PrecisionPlan.from_json(plan.to_json()) == plan


def test_bfloat16_needs_no_parameters():
    plan = build_plan(assign(conv("a", "x"), conv("b", "a"), forced={"a": BF16, "b": BF16}), {})
    assert plan["a"].stores == (BFLOAT16,) and plan.casts == {"x": (BFLOAT16,)}


def test_uint8_without_parameters_is_refused():
    with pytest.raises(PlanError, match="x: it is to be stored as uint8"):
        build_plan(assign(conv("a", "x")), {"a": QA})


def test_concat_of_different_parameters_is_refused():
    answer = assign(conv("a", "x"), conv("b", "x"), other("concat", "movement", "a", "b", shared_qparams=True),
                    conv("c", "concat"))
    with pytest.raises(PlanError, match="concat: the tensors it joins are quantized differently"):
        build_plan(answer, {"x": QX, "a": QA, "b": QX})
    assert build_plan(answer, {"x": QX, "a": QA, "b": QA})["concat"].stores == (Storage("uint8", QA),)


def test_tuples_and_integers_keep_their_own_types():
    groups = (other("ids", "opaque", "tokens", native=("int64",)),
              other("lstm", "opaque", "ids", native=("float32", "float32", "float32")))
    plan = build_plan(solve(Problem(groups, ("h",), frozenset({"h"}))), {})
    assert plan["ids"].stores == (Storage("int64"),)
    assert plan["lstm"].stores == (FLOAT32,) * 3


def test_reasons_can_be_given():
    plan = build_plan(assign(conv("a", "x"), forced={"a": FP32}), {}, {"a": "FP32: the target has no VNNI"},
                      per_channel={"a": False})
    assert plan["a"].reason == "FP32: the target has no VNNI" and not plan["a"].per_channel


@pytest.mark.parametrize(("group", "options", "reason"), [
    (conv("a", "x"), {"noise_limit": 500.0}, "INT8 saves 41 us of 60 us for 0.8 % of the noise allowance"),
    (conv("a", "x"), {}, "INT8 saves 41 us of 60 us"),
    (conv("a", "x"), {"noise_limit": 2.0},
     "BF16 saves 25 us of 60 us for 25 % of the noise allowance; INT8 would take 200 %"),
    (conv("a", "x"), {"noise_limit": 0.1},
     "FP32: INT8 would save 41 us of 60 us, but takes 4000 % of the noise allowance"),
    (conv("a", "x"), {"noise_limit": 0.0}, "FP32: INT8 would save 41 us of 60 us, but the noise allowance is 0"),
    (conv("a", "x", bf16=60, int8=70), {}, "FP32: BF16 and INT8 would save nothing"),
    (conv("a", "x"), {"cast_us": {("x", "uint8"): 90.0, ("x", "bfloat16"): 90.0}},
     "FP32: INT8 would save 41 us of 60 us, less than storing its input as uint8 costs"),
    (conv("a", "x"), {"forced": {"a": BF16}}, "BF16: forced by the caller"),
    (GroupOptions("a", "conv", {FP32: 5.0}, ("x",), ("x",)), {}, "FP32: the target has no other precision for it"),
    (GroupOptions("a", "conv", {BF16: 5.0, INT8: 3.0}, ("x",), ("x",), {BF16: 1.0, INT8: 2.0}), {},
     "INT8: the fastest of the precisions that the target has for it"),
    (other("a", "softmax", "x"), {}, "computes in FP32 whatever it reads"),
    (other("a", "movement", "x"), {}, "moves elements, float32 as what it reads"),
    (other("a", "opaque", "x"), {}, "computes in its own types: there is no kernel of lower precision for it"),
])
def test_reasons(group, options, reason):
    assert explain(assign(group, **options)) == {"a": reason}


def test_reason_of_a_group_that_gives_way_to_another():
    answer = assign(conv("a", "x"), conv("b", "a", fp32=90.0, bf16=80.0), noise_limit=4.2)
    assert explain(answer)["a"] == ("FP32: INT8 would save 41 us of 60 us for 95 % of the noise allowance, which saves "
                                    "more elsewhere")


def test_reason_of_a_slower_kernel_that_spares_a_storage():
    answer = assign(conv("a", "x"), GroupOptions("b", "conv", {FP32: 10.0, INT8: 12.0}, ("a",), ("a",), {INT8: 0.0}),
                    store_us={("a", "float32"): 4.0, ("a", "uint8"): 1.0})
    assert answer.precisions["b"] is INT8
    assert explain(answer)["b"] == "INT8: takes 2.0 us more than FP32, but spares storing its input as float32"


def test_options_of_a_group_of_the_graph():
    x, residual = (relax.Var(n, relax.TensorType((2, 8), "float32")) for n in ("x", "residual"))
    builder = GraphBuilder([x, residual])
    product = builder.emit(relax.op.matmul(x, relax.const(np.ones((8, 8), np.float32))), "layer")
    result = builder.emit(relax.op.add(product, residual), "layer.add")
    group = Group("layer", "matmul", builder.finish([result]), ("input", "skip"))
    options = GroupOptions.of(group, {FP32: 2.0, INT8: 1.0}, {INT8: 0.1}, macs=128)
    assert options == GroupOptions("layer", "matmul", {FP32: 2.0, INT8: 1.0}, ("input", "skip"), ("input",),
                                   {INT8: 0.1}, 128, native=("float32",))
    assert math.isinf(Problem((options,), ("layer",), frozenset({"input", "skip", "layer"})).noise_limit)
