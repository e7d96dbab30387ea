"""Kernels of groups with symbolic dims: built once, right at every extent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from narrowcast.backends.target import Target
from narrowcast.calibration.evaluator import Evaluator, fp32_plan
from narrowcast.dims import evaluate_dim
from narrowcast.ir import GraphBuilder, constant, with_main
from narrowcast.passes import run_pipeline
from narrowcast.precision import BFLOAT16, FLOAT32, PrecisionPlan, QParams, Storage
from narrowcast.verification import kernel_agreement

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")
R = relax.op
EXTENTS = ((1, 1), (1, 2), (3, 5), (2, 16), (7, 33), (40, 64))
UINT8 = Storage("uint8", QParams(0.05, 128))
Body = Callable[..., relax.Expr]


def _normalized(x: relax.Var) -> relax.Expr:
    gamma, beta = constant(np.linspace(1, 2, 12, dtype=np.float32)), constant(np.ones(12, np.float32))
    return R.nn.layer_norm(x, gamma, beta, [-1])


# Name: shapes of the inputs, what is computed of them.
FLOATS: dict[str, tuple[list[tuple[object, ...]], Body]] = {
    "elementwise": ([(N, M)], lambda x: R.nn.gelu(x)),
    "scalar operand": ([(N, M, 3)], lambda x: R.add(x, constant(np.float32(2)))),
    "broadcast of rows": ([(N, M, 7), (N, 1, 7)], lambda x, y: R.multiply(x, y)),
    "broadcast of columns": ([(N, M), (N, 1)], lambda x, y: R.subtract(x, y)),
    "broadcast of a vector": ([(N, 3, M), (M,)], lambda x, y: R.maximum(x, y)),
    "softmax over a symbol": ([(N, M)], lambda x: R.nn.softmax(x, -1)),
    "softmax over a number": ([(N, M, 19)], lambda x: R.nn.softmax(x, -1)),
    "mean of rows": ([(N, M)], lambda x: R.mean(x, [-1], True)),
    "mean of columns": ([(N, M)], lambda x: R.mean(x, [0])),
    "sum over the middle": ([(N, M, 20)], lambda x: R.sum(x, [1])),
    "maximum of all": ([(N, M, 3)], lambda x: R.max(x)),
    "reduced axes apart": ([(N, 5, M)], lambda x: R.mean(x, [0, 2])),
    "layer norm": ([(N, M, 12)], _normalized),
    "average pool": ([(N, M, 8, 20)], lambda x: R.nn.avg_pool2d(x, (3, 2), (2, 2), (1, 0, 1, 0), layout="NHWC",
                                                                count_include_pad=False)),
    "average over all": ([(N, M, 9, 20)], lambda x: R.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC")),
    "average pool of symbolic channels": ([(N, 9, M)], lambda x: R.nn.avg_pool1d(x, 3, 2, 1, layout="NWC")),
    "adaptive pool": ([(N, M, 9, 20)], lambda x: R.nn.adaptive_avg_pool2d(x, (1, 3), layout="NHWC")),
}
MOVES: dict[str, tuple[list[tuple[object, ...]], Body]] = {
    "transpose": ([(N, M)], lambda x: R.permute_dims(x, [1, 0])),
    "swap of inner axes": ([(N, M, 3, 5)], lambda x: R.permute_dims(x, [0, 2, 1, 3])),
    "concat": ([(N, M), (N, 3), (N, M)], lambda x, y, z: R.concat([x, y, z], 1)),
    "concat of rows": ([(N, M), (2, M)], lambda x, y: R.concat([x, y], 0)),
    "slice": ([(N, M, 6)], lambda x: R.strided_slice(x, [2], [1], [6], [2])),
    "last row": ([(N, M, 6)], lambda x: R.strided_slice(x, [1], [M - 1], [M])),
    "slice to a symbol": ([(N, 80), (M,)], lambda x, y: R.strided_slice(x, [1], [0], [M])),
    "flip": ([(N, M)], lambda x: R.flip(x, 1)),
    "pad": ([(N, M)], lambda x: R.nn.pad(x, [0, 0, 2, 1])),
    "broadcast": ([(N, 1, 6), (M,)], lambda x, y: R.broadcast_to(x, (N, M, 6))),
    "tile": ([(N, M)], lambda x: R.tile(x, [2, 3])),
    "repeat": ([(N, M)], lambda x: R.repeat(x, 3, 1)),
    "stack": ([(N, M), (N, M)], lambda x, y: R.stack([x, y], 1)),
    "max pool of symbolic channels": ([(N, 9, M)], lambda x: R.nn.max_pool1d(x, 3, 2, 1, layout="NWC")),
    "max pool": ([(N, M, 9, 20)], lambda x: R.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1), layout="NHWC")),
}
OPAQUE: dict[str, tuple[list[tuple[object, ...]], Body]] = {
    "cumulative sum": ([(N, M)], lambda x: R.cumsum(x, axis=1)),
    "log softmax over rows": ([(N, M, 4)], lambda x: R.nn.log_softmax(x, 1)),
    "variance": ([(N, M)], lambda x: R.variance(x, [1])),
    "einsum": ([(N, M)], lambda x: R.einsum((x, x), "nm,nm->n")),
}


def _grouped(shapes: list[tuple[object, ...]], body: Body) -> tvm.IRModule:
    params = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    builder = GraphBuilder(params)
    return run_pipeline(with_main(tvm.IRModule(), builder.finish([builder.emit(body(*params), "layer")])))


def _all_agree(mod: tvm.IRModule, plan: PrecisionPlan, shapes: list[tuple[object, ...]]) -> None:
    rng = np.random.default_rng(0)
    for n, m in EXTENTS:
        arrays = [rng.standard_normal([evaluate_dim(d, {"n": n, "m": m}) for d in s], np.float32) for s in shapes]
        wrong = [a.detail for a in kernel_agreement(mod, plan, Target.parse("cpu", 2), arrays) if not a.ok]
        assert not wrong, (n, m, wrong)


@pytest.mark.parametrize("name", FLOATS)
def test_float_groups_in_float_and_narrow_storages(name: str) -> None:
    shapes, body = FLOATS[name]
    mod = _grouped(shapes, body)
    plan = fp32_plan(Evaluator(mod))
    narrow = replace(plan, decisions=tuple(replace(d, stores=(BFLOAT16, UINT8)) for d in plan.decisions))
    _all_agree(mod, replace(narrow, casts={f"x{i}": (BFLOAT16,) for i in range(len(shapes))}), shapes)
    _all_agree(mod, plan, shapes)


@pytest.mark.parametrize("storage", [FLOAT32, UINT8], ids=lambda s: s.dtype)
@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str, storage: Storage) -> None:
    shapes, body = MOVES[name]
    mod = _grouped(shapes, body)
    plan = fp32_plan(Evaluator(mod))
    assert {d.kind for d in plan.decisions} == {"movement"}
    moved = replace(plan, decisions=tuple(replace(d, stores=(storage,)) for d in plan.decisions))
    casts = {f"x{i}": (storage,) for i in range(len(shapes))} if storage.qparams is not None else {}
    _all_agree(mod, replace(moved, casts=casts), shapes)


@pytest.mark.parametrize("name", OPAQUE)
def test_what_tvm_legalizes(name: str) -> None:
    shapes, body = OPAQUE[name]
    mod = _grouped(shapes, body)
    _all_agree(mod, fp32_plan(Evaluator(mod)), shapes)
