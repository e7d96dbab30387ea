"""SplitPackedLayers."""

from __future__ import annotations

from tvm import relax

from narrowcast.passes import SplitPackedLayers

from .graphs import Net, apply_checked, assert_equal, assert_unchanged, const, names_of, ops_of, weights

op = relax.op
WEIGHT, BIAS = weights(8, 12), weights(12, seed=1)


def _layer(net: Net) -> relax.Var:
    return net(op.add(net(op.matmul(net.x, const(WEIGHT)), "qkv"), const(BIAS)), "bias")


def test_slices_become_layers() -> None:
    before, expected = Net((2, 5, 8)), Net((2, 5, 8))
    y = _layer(before)
    before = before.module(*(before(op.exp(before(op.strided_slice(y, [2], [i], [i + 4]), n)), f"exp_{n}")
                             for n, i in (("q", 0), ("k", 4), ("v", 8))))
    outputs = []
    for i, (n, layer, bias) in enumerate((("q", "qkv", "bias"), ("k", "qkv.1", "bias.1"), ("v", "qkv.2", "bias.2"))):
        part = slice(4 * i, 4 * i + 4)
        y = expected(op.add(expected(op.matmul(expected.x, const(WEIGHT[:, part])), layer), const(BIAS[part])), bias)
        outputs.append(expected(op.exp(y), f"exp_{n}"))
    after = apply_checked(SplitPackedLayers(), before)
    assert_equal(after, expected.module(*outputs))
    assert_unchanged(SplitPackedLayers(), after)


def test_slices_of_heads_become_layers_and_reshapes() -> None:
    net = Net((2, 5, 8))
    y = net(op.reshape(_layer(net), (2, 5, 3, 2, 2)), "heads")
    parts = [net(op.strided_slice(y, [2], [i], [i + 1]), n) for i, n in enumerate("qkv")]
    after = apply_checked(SplitPackedLayers(), net.module(*parts))
    assert ops_of(after) == ["matmul", "add", "reshape"] * 3
    assert names_of(after)[2::3] == ["q", "k", "v"]


def test_another_reader_keeps_the_layer() -> None:
    net = Net((2, 5, 8))
    y = _layer(net)
    assert_unchanged(SplitPackedLayers(), net.module(net(op.strided_slice(y, [2], [0], [4])), net(op.exp(y))))


def test_slices_of_rows_gaps_and_inner_parts_stay() -> None:
    for axes, begin, end, strides in (([1], [0], [2], None), ([2], [0], [8], [2]), ([1, 2], [0, 0], [2, 2], None)):
        net = Net((2, 5, 8))
        assert_unchanged(SplitPackedLayers(), net.module(net(op.strided_slice(_layer(net), axes, begin, end, strides))))
    net = Net((2, 5, 8))
    y = net(op.reshape(_layer(net), (2, 5, 2, 6)))
    assert_unchanged(SplitPackedLayers(), net.module(net(op.strided_slice(y, [3], [0], [2]))))
