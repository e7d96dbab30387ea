"""The verifier of the normal form: what it accepts, and what it says about everything it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from narrowcast.errors import VerificationError
from narrowcast.ir import GraphBuilder, constant, with_main
from narrowcast.passes.verify import VerifyNormalForm

SHAPE = (2, 3)


def var(name: str, shape: tuple[object, ...] = SHAPE, dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def module(inputs: list[relax.Var], build: Callable[[GraphBuilder], list[relax.Var]]) -> tvm.IRModule:
    builder = GraphBuilder(inputs)
    return with_main(tvm.IRModule({}), builder.finish(build(builder)))


def renamed(name: str) -> tvm.IRModule:
    """``main`` with two bindings of which the second is called ``name``."""
    x = var("x")
    first = relax.DataflowVar("first", x.ty)
    second = relax.DataflowVar(name, x.ty)
    out = relax.Var("output", x.ty)
    normalize = relax.BlockBuilder().normalize
    block = relax.DataflowBlock([relax.VarBinding(first, normalize(relax.op.nn.relu(x))),
                                 relax.VarBinding(second, normalize(relax.op.exp(first))),
                                 relax.VarBinding(out, second)])
    return with_main(tvm.IRModule({}), relax.Function([x], relax.SeqExpr([block], out), ret_ty=x.ty))


def test_a_module_in_normal_form_is_returned() -> None:
    x, ids = var("x"), var("ids", (4,), "int64")

    def build(b: GraphBuilder) -> list[relax.Var]:
        pair = b.emit(relax.op.split(x, 3, axis=1), "split")
        y = b.emit(relax.TupleGetItem(pair, 1), "part")
        z = b.emit(relax.op.strided_slice(y, axes=[0], begin=[0], end=[1]), "slice")
        taken = b.emit(relax.op.take(x, ids, axis=1, mode="clip"), "take")
        return [b.emit(relax.op.concat([z, z], axis=0), "join"), taken, b.emit(constant(np.ones(2, np.float32)), "c")]

    mod = module([x, ids], build)
    assert VerifyNormalForm()(mod) is mod


def two_functions() -> tvm.IRModule:
    mod = renamed("second")
    mod[tvm.ir.GlobalVar("other")] = mod["main"].with_attr("global_symbol", "other")
    return mod


x = var("x")
BAD: dict[str, tuple[Callable[[], tvm.IRModule], str]] = {
    "no main": (lambda: tvm.IRModule({}), "one Relax function"),
    "two functions": (two_functions, "one Relax function"),
    "name used twice": (lambda: renamed("first"), "first: the name is not unique"),
    "name of an input": (lambda: renamed("x"), "x: the name is not unique"),
    "empty name": (lambda: renamed(""), "a name is empty"),
    "float16 input": (lambda: module([v := var("x", dtype="float16")], lambda b: [b.emit(relax.op.exp(v), "e")]),
                      "have to be float32"),
    "float16 inside": (lambda: module([x], lambda b: [b.emit(relax.op.astype(x, "float16"), "half")]),
                       "half: floating point tensors have to be float32"),
    "symbol of no input": (lambda: module([v := var("x", (tvm.tirx.Var("n", "int64") * 2, 3))],
                                          lambda b: [b.emit(relax.op.exp(v), "e")]), "x: a symbolic dim is not"),
    "alias": (lambda: module([x], lambda b: [b.emit(relax.op.exp(b.emit(x, "alias")), "e")]), "operator's call"),
    "constant inside": (lambda: module([x], lambda b: [b.emit(relax.op.add(
        x, b.emit(constant(np.ones(3, np.float32)), "c")), "sum")]), "c: a binding has to be"),
    "training operator": (lambda: module([x], lambda b: [b.emit(relax.TupleGetItem(
        b.emit(relax.op.nn.dropout(x), "drop"), 0), "y")]), "drop: the call is not of an operator"),
    "float16 constant": (lambda: module([v := var("x", dtype="int64")], lambda b: [b.emit(relax.op.take(
        constant(np.ones(4, np.float16)), v, axis=0), "take")]), "take: floating point tensors have to be float32"),
    "output is a tuple value": (lambda: module([x], lambda b: [b.emit(relax.op.split(x, 3, axis=1), "split")]),
                                "not a tensor variable"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_breaks_the_normal_form_is_named(name: str) -> None:
    make, text = BAD[name]
    with pytest.raises(VerificationError, match=text):
        VerifyNormalForm()(make())


def test_all_problems_are_reported_together() -> None:
    mod = module([x], lambda b: [b.emit(relax.op.astype(x, "float16"), "a"),
                                 b.emit(relax.op.astype(x, "bfloat16"), "b")])
    with pytest.raises(VerificationError, match=r"(?s)a: .*b: ") as caught:
        VerifyNormalForm()(mod)
    assert len(caught.value.problems) == 2
