"""From a grouped module to an assignment problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm import relax

from narrowcast import ir, planning
from narrowcast.assignment import Problem, solve
from narrowcast.backends.cpu.kernel import Kernel, KernelRequest
from narrowcast.backends.target import Target
from narrowcast.calibration.sensitivity import Sensitivities
from narrowcast.passes import run_pipeline
from narrowcast.planning import Costs, Network, build_problem, candidate, measure_costs, nominal_costs, precisions_of
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
VNNI_BF16, VNNI, AVX2 = (Target(name, 1) for name in ("znver4", "cascadelake", "haswell"))
QX, QL = QParams(0.1, 128), QParams(0.2, 0)
QPARAMS = {"x": QX, "skip": QParams(0.3, 7), "layer": QL, "flat": QL, "head": QParams(0.4, 9)}


@pytest.fixture(scope="module")
def network() -> Network:
    """x [2, 8], skip [2, 4], ids [3] -> head = reshape(relu(x @ W + skip)) @ V, rows = take(table, ids)."""
    x, skip = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (2, 8)), ("skip", (2, 4))))
    ids = relax.Var("ids", relax.TensorType((3,), "int64"))
    builder = ir.GraphBuilder([x, skip, ids])

    def weight(*shape: int) -> ir.Expr:
        return ir.constant(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))

    total = builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, weight(8, 4)), "layer"), skip), "layer.add")
    flat = builder.emit(relax.op.reshape(builder.emit(relax.op.nn.relu(total), "act"), (1, 8)), "flat")
    head = builder.emit(relax.op.matmul(flat, weight(8, 3)), "head")
    rows = builder.emit(relax.op.take(weight(5, 2), ids, axis=0), "rows")
    mod = run_pipeline(ir.with_main(tvm.IRModule(), builder.finish([head, rows])))
    return Network.of(mod, ir.groups_of(mod))


def group(network: Network, name: str) -> ir.Group:
    return next(g for g in network.groups if g.name == name)


def test_network_knows_its_float_tensors(network: Network) -> None:
    assert {g.name: g.kind for g in network.groups} == {"layer": "matmul", "flat": "movement", "head": "matmul",
                                                        "rows": "opaque"}
    assert network.shapes == {"x": (2, 8), "skip": (2, 4), "layer": (2, 4), "flat": (1, 8), "head": (1, 3),
                              "rows": (3, 2)}
    assert network.outputs == ("head", "rows")
    assert network.exact_inputs(group(network, "layer")) == ("x",)
    assert sorted(network.without_epilogue()) == ["flat", "rows", "skip", "x"]


@pytest.mark.parametrize(("target", "expected"), [(VNNI_BF16, (FP32, BF16, INT8)), (VNNI, (FP32, INT8)),
                                                    (AVX2, (FP32, INT8))])
def test_precisions_are_the_targets(network: Network, target: Target, expected: tuple[Precision, ...]) -> None:
    assert precisions_of(network, group(network, "layer"), target, QPARAMS) == expected
    assert precisions_of(network, group(network, "flat"), target, QPARAMS) == (FP32,)


def test_int8_needs_parameters_of_the_operands(network: Network) -> None:
    without = {k: q for k, q in QPARAMS.items() if k != "x"}
    assert precisions_of(network, group(network, "layer"), VNNI_BF16, without) == (FP32, BF16)
    assert INT8 in precisions_of(network, group(network, "head"), VNNI_BF16, without)


def test_fp16_is_for_what_float16_holds(network: Network) -> None:
    sapphire, layer = Target("sapphirerapids", 1), group(network, "layer")
    assert precisions_of(network, layer, sapphire, QPARAMS) == (FP32, FP16, BF16, INT8)
    weight = float(np.abs(ir.constant_value(layer.anchor.value.args[1])).max())
    for largest, fits in ((65504 / 2 / 16 / weight * 0.99, True), (65504 / 2 / 16 / weight * 1.01, False)):
        wide = {**QPARAMS, "x": QParams(largest / 255, 0)}
        assert (FP16 in precisions_of(network, layer, sapphire, wide)) == fits
    assert FP16 not in precisions_of(network, layer, sapphire, {}), "nothing is known of the range"


def test_float16_is_stored_where_fp16_is_offered(network: Network) -> None:
    wide = {**QPARAMS, "layer": QParams(65504 / 255, 0)}
    for target, found in ((Target("sapphirerapids", 1), {"x", "skip", "flat", "head"}), (VNNI_BF16, set())):
        costs = nominal_costs(network, target, wide)
        problem = build_problem(network, costs, wide, {}, None, {})
        assert {t for t, dtypes in problem.storages.items() if "float16" in dtypes} == found


def test_candidates_touch_one_storage(network: Network) -> None:
    layer = group(network, "layer")
    narrow = candidate(network, layer, INT8, QPARAMS, per_channel=False)
    assert narrow.inputs == (Storage("uint8", QX), Storage("uint8", QPARAMS["skip"])) and not narrow.per_channel
    assert narrow.outputs == (Storage("uint8", QL),)
    assert candidate(network, layer, BF16, QPARAMS, per_channel=True).inputs == (BFLOAT16, BFLOAT16)
    partly = candidate(network, layer, INT8, {"x": QX}, per_channel=True)
    assert partly.inputs[1] == FLOAT32 == partly.outputs[0], "what has no parameters stays float32"
    rows = candidate(network, group(network, "rows"), FP32, QPARAMS, per_channel=True)
    assert rows.inputs == (Storage("int64"),) and rows.outputs == (FLOAT32,)


def test_everything_is_measured_in_one_go(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[KernelRequest] = []
    calls: list[int] = []
    monkeypatch.setattr(planning, "build_cast", lambda *arguments: arguments)

    def emit(request: KernelRequest) -> Kernel:
        requests.append(request)
        return request  # type: ignore[return-value]

    def measure(kernels: Sequence[object]) -> list[float]:
        calls.append(len(kernels))
        return [float(i) for i in range(len(kernels))]

    costs = measure_costs(network, VNNI_BF16, QPARAMS, emit, measure, per_channel=True)
    wanted = [("layer", FP32), ("layer", BF16), ("layer", INT8), ("head", FP32), ("head", BF16), ("head", INT8),
              ("rows", FP32)]
    assert [(r.group.name, r.precision) for r in requests] == wanted, "views have no kernel"
    assert costs.groups == {("flat", FP32): 0.0, **{key: float(i) for i, key in enumerate(wanted)}}
    casts = [("x", "bfloat16"), ("x", "uint8"), ("skip", "bfloat16"), ("skip", "uint8"), ("flat", "bfloat16"),
             ("flat", "uint8"), ("rows", "bfloat16")]
    assert costs.casts == {key: float(i) for i, key in enumerate(casts, len(wanted))}
    assert calls == [15] and costs.byte_us == pytest.approx(14 / (6 << 18)), "the probe is measured last"


def problem(network: Network, **changes: object) -> Problem:
    costs = Costs({("layer", FP32): 9.0, ("layer", INT8): 4.0, ("flat", FP32): 0.0, ("head", FP32): 9.0,
                   ("head", INT8): 4.0, ("rows", FP32): 1.0}, {("x", "uint8"): 0.5}, 0.01)
    noise = Sensitivities({("layer", INT8): 2.0, ("head", INT8): 3.0},
                          {("layer", "uint8"): 0.25, ("absent", "uint8"): 1.0}, 4)
    arguments = {"costs": costs, "qparams": QPARAMS, "macs": {"layer": 64, "head": 24}, "noise": noise, "forced": {}}
    return build_problem(network, **{**arguments, **changes})  # type: ignore[arg-type]


def test_problem(network: Network) -> None:
    found = problem(network)
    layer, flat, head, rows = found.groups
    assert layer.cost_us == {FP32: 9.0, INT8: 4.0} and layer.noise == {FP32: 0.0, INT8: 2.0} and layer.macs == 64
    assert layer.inputs == ("x", "skip") and layer.exact_inputs == ("x",)
    assert rows.native == ("float32",) and head.macs == 24 and flat.macs == 0
    assert found.outputs == ("head", "rows") and found.floats == set(network.shapes)
    assert found.store_us["layer", "bfloat16"] == pytest.approx(8 * 2 * 0.01)
    assert not any(tensor == "flat" for tensor, _ in found.store_us), "a view writes nothing"
    assert found.storage_noise == {("layer", "uint8"): 0.25}
    assert found.storages["rows"] == ("float32", "bfloat16") and "uint8" in found.storages["layer"]


def test_problem_is_solved_both_ways(network: Network) -> None:
    free = solve(problem(network))
    assert free.precisions == {"layer": INT8, "flat": FP32, "head": INT8, "rows": FP32}
    assert free.stores["layer"] == free.stores["flat"] == ("uint8",) and free.casts == {"x": ("uint8",)}
    assert solve(problem(network, forced={"head": FP32})).precisions["head"] is FP32


def test_without_noise_only_speed_counts(network: Network) -> None:
    found = problem(network, noise=None)
    assert found.storage_noise == {} and all(n == 0 for g in found.groups for n in g.noise.values())


def test_nominal_costs_count_bytes(network: Network) -> None:
    costs = nominal_costs(network, VNNI_BF16, QPARAMS)
    assert set(costs.groups.values()) == {0.0} and ("layer", BF16) in costs.groups
    assert costs.casts["x", "uint8"] == pytest.approx(16 * 5 * costs.byte_us)
    forced = {g.name: FP32 if g.name != "layer" else INT8 for g in network.groups}
    answer = solve(build_problem(network, costs, QPARAMS, {}, None, forced))
    assert answer.precisions == forced and answer.stores["layer"] == ("float32",)
