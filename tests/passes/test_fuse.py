"""FuseGroups and VerifyGroupedForm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.errors import CompileError
from narrowcast.operators.recurrent import Recurrence, recurrent_layer
from narrowcast.passes import FuseGroups, VerifyGroupedForm

from .graphs import Net, apply_checked, const, weights

op = relax.op
CHANNELS = 4


def _conv(net: Net, x: ir.Expr, name: str, outputs: int = CHANNELS, groups: int = 1) -> relax.Var:
    weight = const(weights(outputs, 3, 3, ir.shape_of(x)[-1] // groups))
    return net(op.nn.conv2d(x, weight, padding=1, groups=groups, data_layout="NHWC", kernel_layout="OHWI"), name)


def _image_net(*more: tuple[int, ...]) -> Net:
    return Net((1, 6, 6, CHANNELS), *more)


def _fuse(mod: tvm.IRModule, max_operands: int = 4) -> dict[str, tuple[str, list[str], tuple[str, ...]]]:
    """Kind, ops and inputs of every group by name; the grouped form is verified, and every op is in one group."""
    after = apply_checked(FuseGroups(max_operands), mod, terms=2048)
    VerifyGroupedForm()(after)
    groups = ir.groups_of(after)
    inside = [b.var.name for g in groups for b in g.bindings if not isinstance(b.value, relax.TupleGetItem)]
    before = [b.var.name for b in ir.op_bindings(mod["main"]) if not isinstance(b.value, relax.TupleGetItem)]
    assert sorted(inside) == sorted(before)
    assert len({gv.name_hint for gv in after.functions}) == len(groups) + 1
    return {g.name: (g.kind, [b.var.name for b in g.bindings], g.inputs) for g in groups}


def test_residual_block() -> None:
    """Every convolution is one group with bias, residual and activation; the addition belongs to the later producer."""
    net = _image_net()
    a = net(op.nn.relu(net(op.add(_conv(net, net.x, "a"), const(weights(4))), "a.bias")), "a.relu")
    b = net(op.add(_conv(net, a, "b"), const(weights(4))), "b.bias")
    down = _conv(net, net.x, "down")
    y = net(op.nn.relu(net(op.add(b, down), "sum")), "relu")
    assert _fuse(net.module(y)) == {
        "a": ("conv", ["a", "a.bias", "a.relu"], ("in0",)),
        "b": ("conv", ["b", "b.bias"], ("a",)),
        "down": ("conv", ["down", "sum", "relu"], ("in0", "b")),
    }


@pytest.mark.parametrize("function", [op.tan, op.sinh, op.cosh, op.tanh, op.asin, op.acos, op.atan, op.asinh, op.acosh,
                                      op.atanh, op.erf], ids=lambda f: f.__name__)
def test_elementary_functions_are_epilogues(function: Callable[[ir.Expr], ir.Expr]) -> None:
    net = _image_net()
    low = 1.1 if function is op.acosh else 0.1  # inside of the domain
    y = net(function(net(op.clip(_conv(net, net.x, "a"), low, low + 0.8), "clip")), "function")
    kind, ops, _ = _fuse(net.module(y))["a"]
    assert (kind, ops) == ("conv", ["a", "clip", "function"])


def test_residual_of_the_block_input() -> None:
    net = _image_net()
    a = net(op.nn.relu(_conv(net, net.x, "a")), "a.relu")
    y = net(op.add(a, _conv(net, net(op.nn.relu(_conv(net, a, "b")), "b.relu"), "c")), "sum")
    groups = _fuse(net.module(y))
    assert groups["a"][1] == ["a", "a.relu"]
    assert groups["c"] == ("conv", ["c", "sum"], ("b", "a"))


def test_small_trees_of_one_value_fuse() -> None:
    """x · tanh(softplus(x)), and a cross product of two branches."""
    net = _image_net()
    x = _conv(net, net.x, "conv")
    y = net(op.multiply(x, net(op.tanh(net(op.nn.softplus(x), "softplus")), "tanh")), "mish")
    assert _fuse(net.module(y)) == {"conv": ("conv", ["conv", "softplus", "tanh", "mish"], ("in0",))}


def test_value_with_another_reader_ends_the_group() -> None:
    net = _image_net()
    x = _conv(net, net.x, "a")
    act = net(op.nn.relu(x), "act")
    y = net(op.add(_conv(net, x, "b"), act), "sum")
    groups = _fuse(net.module(y))
    assert groups["a"] == ("conv", ["a"], ("in0",))
    assert groups["act"][0] == "elementwise"
    assert groups["b"] == ("conv", ["b", "sum"], ("a", "act"))
    refusals = dict(FuseGroups().refusals(net.module(y)))
    assert "another reader" in refusals["act"]


def test_output_ends_the_group() -> None:
    net = _image_net()
    x = _conv(net, net.x, "conv")
    groups = _fuse(net.module(x, net(op.nn.relu(x), "relu")))
    assert groups == {"conv": ("conv", ["conv"], ("in0",)), "relu": ("elementwise", ["relu"], ("conv",))}


def test_operation_that_changes_the_shape_stays_out() -> None:
    net = _image_net((3, 1, 1, 1, 1))
    mod = net.module(net(op.add(_conv(net, net.x, "conv"), net.inputs[1]), "wide"))
    assert set(_fuse(mod)) == {"conv", "wide"}
    assert ("wide", "changes the shape of conv") in FuseGroups().refusals(mod)


def test_operand_limit() -> None:
    net = _image_net(*[(1, 6, 6, CHANNELS)] * 3)
    y = _conv(net, net.x, "conv")
    for i, operand in enumerate(net.inputs[1:]):
        y = net(op.add(y, operand), f"add{i}")
    assert set(_fuse(net.module(y))) == {"conv"}
    limited = _fuse(net.module(y), max_operands=2)
    assert limited["conv"][1] == ["conv", "add0", "add1"]
    assert limited["add2"] == ("elementwise", ["add2"], ("conv", "in3"))


def test_kinds_of_anchors() -> None:
    net = Net((2, 6, 6, 8))
    x = _conv(net, net.x, "conv", 8)
    x = _conv(net, x, "depthwise", 8, groups=8)
    x = net(op.nn.max_pool2d(x, [2, 2], [2, 2], layout="NHWC"), "max_pool")
    x = net(op.nn.avg_pool2d(x, [2, 2], [1, 1], layout="NHWC"), "avg_pool")
    x = net(op.reshape(x, (2, 4, 8)), "reshape")
    x = net(op.matmul(x, const(weights(8, 8))), "matmul")
    x = net(op.nn.layer_norm(x, const(weights(8)), const(weights(8)), axes=[-1]), "layer_norm")
    x = net(op.nn.rms_norm(x, const(weights(8)), axes=[-1]), "rms_norm")
    t = net(op.permute_dims(x, [0, 2, 1]), "permute")
    x = net(op.matmul(x, t), "batched")
    x = net(op.nn.softmax(x), "softmax")
    x = net(op.mean(x, [1], keepdims=True), "mean")
    x = net(op.cumsum(x, 2), "cumsum")
    kinds = {name: kind for name, (kind, _, _) in _fuse(net.module(x)).items()}
    assert kinds == {
        "conv": "conv", "depthwise": "depthwise", "max_pool": "movement", "avg_pool": "pool", "reshape": "movement",
        "matmul": "matmul", "layer_norm": "layer_norm", "rms_norm": "rms_norm", "permute": "movement",
        "batched": "batched_matmul", "softmax": "softmax", "mean": "reduce", "cumsum": "opaque"}
    assert ("cumsum", "relax.cumsum belongs to no kind of group") in FuseGroups().refusals(net.module(x))


def test_attention_and_its_epilogue() -> None:
    net = Net(*[(2, 5, 3, 8)] * 3, (2, 1, 1, 5))
    y = net(op.nn.attention_bias(*net.inputs, scale=0.5), "attention")
    assert _fuse(net.module(net(op.multiply(y, const(2.0)), "double"))) == {
        "attention": ("attention", ["attention", "double"], ("in0", "in1", "in2", "in3"))}


def test_recurrent_layers_with_constant_weights_multiply() -> None:
    form = Recurrence("gru")
    net = Net((1, 1, 4), (1, 12, 4))
    w, r = const(weights(1, 12, 4)), const(weights(1, 12, 4))
    given = {"known": {"x": net.x, "r": r}, "open": {"x": net.x, "r": net.inputs[1]},
             "constant": {"x": const(weights(1, 1, 4)), "r": r, "h0": net.x}, "same": {"x": net.x, "r": r, "h0": net.x}}
    layers = {name: net(recurrent_layer(form, w=w, **operands), name) for name, operands in given.items()}
    last = [net(relax.TupleGetItem(layer, 1), f"{name}.last") for name, layer in layers.items()]
    mod = net.module(*last)
    assert {name: kind for name, (kind, _, _) in _fuse(mod).items()} == {
        "known": "recurrent", "open": "opaque", "constant": "opaque", "same": "opaque"}
    assert [reason for _, reason in FuseGroups().refusals(mod)] == [
        "a weight is computed at run time", "the sequence is constant", "the sequence is another operand as well"]


def test_movements_in_a_row_are_one_group() -> None:
    net = Net((2, 3, 4))
    x = net(op.permute_dims(net.x, [0, 2, 1]), "permute")
    x = net(op.strided_slice(net(op.reshape(x, (8, 3)), "reshape"), [0], [1], [5]), "slice")
    x = net(op.concat([x, x], 1), "concat")
    assert _fuse(net.module(x)) == {
        "permute": ("movement", ["permute", "reshape", "slice", "concat"], ("in0",))}


def test_pad_with_another_value_is_opaque() -> None:
    net = Net((2, 3))
    assert _fuse(net.module(net(op.nn.pad(net.x, [0, 0, 1, 1], pad_value=1.0), "pad")))["pad"][0] == "opaque"


def test_concatenation_with_a_constant_is_opaque() -> None:
    net = Net((2, 3))
    assert _fuse(net.module(net(op.concat([net.x, const(weights(2, 1))], 1), "concat")))["concat"][0] == "opaque"


def test_tuples_and_integers_are_opaque_and_items_stay_in_main() -> None:
    net = Net((2, 8))
    best = net(op.topk(net.x, 3, axis=1), "topk")
    values, places = (net(relax.TupleGetItem(best, i), n) for i, n in enumerate(("values", "places")))
    y = net(op.multiply(values, const(2.0)), "double")
    groups = _fuse(net.module(y, net(op.add(places, places), "sum")))
    assert {name: (kind, inputs) for name, (kind, _, inputs) in groups.items()} == {
        "topk": ("opaque", ("in0",)), "double": ("elementwise", ("values",)), "sum": ("opaque", ("places",))}


def test_a_group_that_computes_a_tuple_returns_its_elements() -> None:
    net = Net((2, 8))
    best = net(op.topk(net.x, 3, axis=1), "topk")
    after = FuseGroups()(net.module(net(relax.TupleGetItem(best, 0), "values")))
    topk, = ir.groups_of(after)
    assert [(ir.shape_of(v), ir.dtype_of(v)) for v in ir.outputs_of(topk.function)] == [
        ((2, 3), "float32"), ((2, 3), "int32")]


def test_symbols_are_valid_and_distinct() -> None:
    net = Net((2, 8))
    y = net(op.mean(net(op.mean(net.x, [1], True), "block/0.fc"), [0], True), "block.0.fc")
    symbols = {gv.name_hint for gv in FuseGroups()(net.module(y)).functions}
    assert symbols == {"main", "group_block_0_fc", "group_block_0_fc_1"}


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_random_graphs_keep_their_meaning(data: st.DataObject) -> None:
    """Any graph of convolutions, elementwise ops and pools is partitioned without cycles."""
    net = _image_net()
    values = [net.x]
    for i in range(data.draw(st.integers(1, 9), "ops")):
        a, b = (data.draw(st.sampled_from(values)) for _ in range(2))
        kind = data.draw(st.sampled_from(["conv", "add", "relu", "multiply", "pool"]))
        make = {"add": lambda a, b: op.add(a, b), "relu": lambda a, b: op.nn.relu(a),
                "multiply": lambda a, b: op.multiply(a, const(np.full(CHANNELS, 0.5))),
                "pool": lambda a, b: op.nn.avg_pool2d(a, [3, 3], [1, 1], [1, 1, 1, 1], layout="NHWC")}.get(kind)
        values.append(_conv(net, a, f"conv{i}") if make is None else net(make(a, b), f"{kind}{i}"))
    _fuse(net.module(*data.draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=2, unique=True))))


def _group(kind: str, *steps: str, name: str = "act") -> tvm.IRModule:
    """A module of one group of unary ops, called under ``name``."""
    param = relax.Var("x", relax.TensorType((2, 3), "float32"))
    inner = ir.GraphBuilder([param])
    value = param
    for i, step in enumerate(steps):
        value = inner.emit(getattr(op, step)(value), "act" if i == 0 else step)
    function = inner.finish([value], attrs={"Primitive": True, "group": kind})
    symbol = tvm.ir.GlobalVar("group")
    relax.expr._update_type(symbol, function.ty)
    net = Net((2, 3))
    call = net(relax.Call(symbol, [net.x]), name)
    return tvm.IRModule({**dict(net.module(call).functions.items()), symbol: function})


def test_verifier_accepts_a_group() -> None:
    VerifyGroupedForm()(_group("elementwise", "exp", "tanh"))


@pytest.mark.parametrize(("mod", "problem"), [
    (_group("elementwise", "exp", name="other"), "no op of the group has the group's name"),
    (_group("conv", "exp"), "the anchor belongs to the kind elementwise"),
    (_group("convolution", "exp"), "the kind convolution does not exist"),
    (_group("elementwise", "exp", "cumsum"), "cumsum is not elementwise"),
    (_group("reduce", "mean", "exp", "mean"), "mean is not elementwise"),
    (_group("opaque", "cumsum", "exp"), "opaque groups have one op"),
])
def test_verifier_names_what_is_wrong(mod: tvm.IRModule, problem: str) -> None:
    with pytest.raises(CompileError, match=problem):
        VerifyGroupedForm()(mod)


def test_verifier_refuses_ops_outside_groups() -> None:
    net = Net((2, 3))
    with pytest.raises(CompileError, match="exp: main computes something outside the groups"):
        VerifyGroupedForm()(net.module(net(op.exp(net.x), "exp")))


def test_moves_that_only_a_concatenation_reads_join_it() -> None:
    """Slices of a cache before what is appended to it: one copy, from where the elements are."""
    net = Net((2, 3, 4), (1, 3))
    kept = net(relax.op.squeeze(net(relax.op.strided_slice(net.inputs[0], axes=[0], begin=[1], end=[2]), "kept"),
                                axis=0), "flat")
    moved = net(relax.op.permute_dims(net.inputs[1]), "moved")
    joined = net(relax.op.concat([kept, net(relax.op.broadcast_to(moved, (3, 3)), "wide")], axis=1), "joined")
    assert _fuse(net.module(joined)) == {
        "kept": ("movement", ["kept", "flat", "moved", "wide", "joined"], ("in0", "in1"))}


def test_a_move_with_another_reader_stays_out() -> None:
    net = Net((2, 3), (2, 3))
    moved = net(relax.op.permute_dims(net.inputs[1]), "moved")
    joined = net(relax.op.concat([net(relax.op.permute_dims(net.inputs[0]), "own"), moved], axis=1), "joined")
    assert _fuse(net.module(joined, moved)) == {
        "moved": ("movement", ["moved"], ("in1",)), "own": ("movement", ["own", "joined"], ("in0", "moved"))}
