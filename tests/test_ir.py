"""Building, walking and rewriting modules: names stay, the caller's module too."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.errors import VerificationError
from narrowcast.passes import FuseGroups, run_pipeline

F32 = "float32"


def var(name: str, *shape: int) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, F32))


def names(func: relax.Function) -> list[str]:
    return [b.var.name for b in ir.op_bindings(func)]


def example() -> relax.Function:
    """x, y -> relu(x) + y, and abs(x) that nobody reads."""
    x, y = var("x", 2, 3), var("y", 2, 3)
    builder = ir.GraphBuilder([x, y])
    act = builder.emit(relax.op.nn.relu(x), "features.0.act")
    builder.emit(relax.op.abs(x), "unused")
    return builder.finish([builder.emit(relax.op.add(act, y), "features.0.add")])


def test_builder_keeps_names_and_makes_them_unique() -> None:
    x = var("x", 4)
    builder = ir.GraphBuilder([x])
    emitted = [builder.emit(relax.op.abs(x), name) for name in ("a.b", "a.b", "x", "a.b", "a.b.1")]
    assert [v.name for v in emitted] == ["a.b", "a.b.1", "x.1", "a.b.2", "a.b.1.1"]
    assert ir.shape_of(emitted[0]) == (4,) and ir.dtype_of(emitted[0]) == F32
    func = builder.finish([emitted[-1]])
    assert names(func) == [v.name for v in emitted]
    assert [p.name for p in func.params] == ["x"] and ir.outputs_of(func) == [emitted[-1]]
    relax.analysis.well_formed(ir.with_main(tvm.IRModule(), func))


@pytest.mark.parametrize(("count", "as_tuple"), [(1, False), (1, True), (2, False)])
def test_builder_returns_tuples(count: int, as_tuple: bool) -> None:
    x = var("x", 4)
    builder = ir.GraphBuilder([x])
    outputs = [builder.emit(relax.op.abs(x), "a") for _ in range(count)]
    func = builder.finish(outputs, as_tuple=as_tuple)
    assert isinstance(func.ret_ty, relax.TupleType) == (as_tuple or count != 1)
    assert ir.outputs_of(func) == outputs and len(ir.op_bindings(func)) == count


def test_constants_own_their_values() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    value = ir.constant(array)
    array[:] = 0
    np.testing.assert_array_equal(ir.constant_value(value), np.arange(6).reshape(2, 3).T)
    with pytest.raises(VerificationError, match="a constant was required"):
        ir.constant_value(var("x", 1))


def test_shapes_have_to_be_static() -> None:
    dynamic = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 3), F32))
    with pytest.raises(VerificationError, match="a static shape was required"):
        ir.shape_of(dynamic)


def test_what_was_only_an_attempt_is_forgotten() -> None:
    x = var("x", 4)
    builder = ir.GraphBuilder([x])
    kept = builder.emit(relax.op.abs(x), "a")
    with builder.attempt() as forget:
        builder.emit(relax.op.exp(x), "b")
        builder.found("b.count")
        forget()
    with builder.attempt():
        last = builder.emit(relax.op.exp(kept), "b")
    func = builder.finish([last])
    assert names(func) == ["a", "b"] and len(func.params) == 1


def test_parameters_come_when_they_are_needed() -> None:
    n, m = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")
    builder = ir.GraphBuilder([])
    x = builder.parameter("x", relax.TensorType([n, 2], F32))
    again = builder.parameter("x", relax.TensorType([m], F32))
    assert (x.name, again.name) == ("x", "x.1")
    assert builder.tensor_with(m).same_as(again) and builder.tensor_with(n).same_as(x)
    with pytest.raises(VerificationError, match="not the dim of a tensor"):
        builder.tensor_with(tvm.tirx.Var("k", "int64"))
    assert list(builder.finish([builder.emit(relax.op.abs(x), "y")]).params) == [x, again]


def test_op_names() -> None:
    x = var("x", 4)
    assert ir.op_name(relax.op.nn.relu(x)) == "relax.nn.relu"
    assert ir.op_name(x) is None and ir.op_name(relax.Tuple([x])) is None


def test_rewrite_keeps_names_and_leaves_the_function_alone() -> None:
    func = example()
    before = func.script(show_meta=True)
    assert ir.rewrite(func, lambda builder, binding, value: value).same_as(func), "nothing changed"

    def negate_relu(builder: ir.GraphBuilder, binding: relax.VarBinding, value: ir.Expr) -> ir.Expr:
        if ir.op_name(value) != "relax.nn.relu":
            return value
        return relax.op.negative(builder.emit(value, binding.var.name + ".inner"))

    changed = ir.rewrite(func, negate_relu)
    assert names(changed) == ["features.0.act.inner", "features.0.act", "unused", "features.0.add"]
    total = ir.op_bindings(changed)[-1]
    assert [v.name for v in ir.variables_of(total.value)] == ["features.0.act", "y"], "readers read the new value"
    assert func.script(show_meta=True) == before


def test_rewrite_keeps_the_variables_of_what_stays() -> None:
    func = example()
    act, unused, total = ir.op_bindings(func)

    def negating(old: relax.VarBinding) -> relax.Function:
        x = func.params[0]
        return ir.rewrite(func, lambda _, b, value: relax.op.negative(x) if b.var.same_as(old.var) else value)

    changed = negating(unused)
    assert [b.same_as(a) for b, a in zip(ir.op_bindings(changed), (act, unused, total), strict=True)] == [
        True, False, True]
    changed = negating(act)
    assert not ir.op_bindings(changed)[-1].same_as(total), "what reads a changed value changes"
    relax.analysis.well_formed(ir.with_main(tvm.IRModule(), changed))


def test_what_replaces_nothing_is_the_same() -> None:
    x, y = var("x", 4), var("y", 4)
    for expr in (relax.op.concat([x, y]), relax.Tuple([x, y]), relax.TupleGetItem(relax.Tuple([x, y]), 1)):
        assert ir.substitute(expr, {}).same_as(expr)
        assert list(ir.variables_of(ir.substitute(expr, {x: y}))) == [y, y]


def test_a_name_that_is_taken_is_changed() -> None:
    func = example()
    builder = ir.GraphBuilder(func.params)
    builder.emit(relax.op.abs(func.params[0]), "unused")
    bindings = ir.op_bindings(func)
    kept = [builder.rebind(b, b.value) for b in bindings]
    assert [v.name for v in kept] == ["features.0.act", "unused.1", "features.0.add"]
    assert kept[0].same_as(bindings[0].var) and not kept[1].same_as(bindings[1].var)


def test_rewrite_by_a_variable_or_a_constant() -> None:
    func = example()
    x = func.params[0]
    forwarded = ir.rewrite(func, lambda _, b, value: x if b.var.name == "features.0.act" else value)
    assert names(forwarded) == ["unused", "features.0.add"]
    constant = ir.constant(np.ones((2, 3), np.float32))
    folded = ir.rewrite(func, lambda _, b, value: constant if b.var.name == "features.0.add" else value)
    assert [v.name for v in ir.outputs_of(folded)] == ["features.0.add"], "an output stays a variable of its name"


def test_rewrite_keeps_tuples_and_attributes() -> None:
    x = var("x", 4)
    builder = ir.GraphBuilder([x])
    func = builder.finish([builder.emit(relax.op.abs(x), "a")], as_tuple=True, attrs={"num_input": 1})
    again = ir.rewrite(func, lambda builder, binding, value: relax.op.negative(x))
    assert isinstance(again.ret_ty, relax.TupleType) and int(again.attrs["num_input"]) == 1


def test_uses() -> None:
    func = example()
    uses = {v.name: [b.var.name for b in readers] for v, readers in ir.uses_of(func).items()}
    assert uses == {"x": ["features.0.act", "unused"], "features.0.act": ["features.0.add"], "y": ["features.0.add"]}
    x = var("x", 4)
    builder = ir.GraphBuilder([x])
    square = builder.finish([builder.emit(relax.op.multiply(x, x), "square")])
    assert [b.var.name for b in ir.uses_of(square)[x]] == ["square"], "a binding that reads twice is listed once"


def test_dead_code_goes_and_inputs_stay() -> None:
    func = ir.without_dead_code(example())
    assert names(func) == ["features.0.act", "features.0.add"] and [p.name for p in func.params] == ["x", "y"]


def test_with_main_leaves_the_module_alone() -> None:
    mod = ir.with_main(tvm.IRModule(), example())
    text = mod.script(show_meta=True)
    assert ir.with_main(mod, mod["main"]).same_as(mod)
    other = ir.with_main(mod, ir.without_dead_code(mod["main"]))
    assert mod.script(show_meta=True) == text and len(ir.op_bindings(other["main"])) == 2
    assert str(other["main"].attrs["global_symbol"]) == "main"


def encoder_piece() -> tvm.IRModule:
    """x [2, 8], skip [2, 4] -> softmax(relu(x @ W + skip)), W constant."""
    x, skip = var("x", 2, 8), var("skip", 2, 4)
    builder = ir.GraphBuilder([x, skip])
    weight = ir.constant(np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32))
    product = builder.emit(relax.op.matmul(x, weight), "layer")
    total = builder.emit(relax.op.add(product, skip), "layer.add")
    act = builder.emit(relax.op.nn.relu(total), "act")
    return ir.with_main(tvm.IRModule(), builder.finish([builder.emit(relax.op.nn.softmax(act, axis=-1), "scores")]))


def test_groups_have_the_names_of_their_anchors() -> None:
    mod = encoder_piece()
    text = mod.script(show_meta=True)
    grouped = run_pipeline(mod)
    assert mod.script(show_meta=True) == text, "the pipeline leaves the module alone"
    layer, scores = ir.groups_of(grouped)
    assert (layer.name, layer.kind, layer.inputs) == ("layer", "matmul", ("x", "skip"))
    assert (scores.name, scores.kind, scores.inputs) == ("scores", "softmax", ("layer",))
    assert [b.var.name for b in layer.bindings] == ["layer", "layer.add", "act"]
    assert layer.anchor.var.name == "layer" and ir.op_name(layer.anchor.value) == "relax.matmul"
    assert layer.exact_inputs == (0,) and scores.exact_inputs == ()


def test_both_sides_of_a_product_are_exact() -> None:
    a, b = var("a", 1, 2, 8), var("b", 1, 8, 4)
    builder = ir.GraphBuilder([a, b])
    func = builder.finish([builder.emit(relax.op.matmul(a, b), "product")])
    (group,) = ir.groups_of(FuseGroups()(ir.with_main(tvm.IRModule(), func)))
    assert group.kind == "batched_matmul" and group.exact_inputs == (0, 1)
