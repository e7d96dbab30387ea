"""A pointwise convolution and the depthwise one behind it as one kernel: bit for bit what their own kernels give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.arrays import encode_array
from narrowcast.backends.cpu.build import call_kernel, compile_functions
from narrowcast.backends.cpu.emit import emit
from narrowcast.backends.cpu.expansion import gains, links, on_vectors
from narrowcast.backends.cpu.kernel import ChainRequest, KernelRequest
from narrowcast.backends.target import Capabilities, Target
from narrowcast.dims import Dim
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

from .groups import NATIVE, group_of
from .precisions import FEATURES
from .symbolic import symbol, symbolic_group
from .tiers import INT8_TIERS

OPERAND = {Precision.FP32: FLOAT32, Precision.BF16: BFLOAT16, Precision.INT8: Storage("uint8", QParams(0.025, 120))}
BETWEEN = {**OPERAND, Precision.INT8: Storage("uint8", QParams(0.02, 3))}
PAIRS = pytest.mark.parametrize(("first", "second"), [
    pytest.param(a, b, marks=[pytest.mark.isa(FEATURES[a]), pytest.mark.isa(FEATURES[b])], id=f"{a}-{b}")
    for a in FEATURES for b in FEATURES])


@dataclass(frozen=True)
class Block:
    """Data [batch, *size, depth], expanded to ``channels``, then a square depthwise window."""

    batch: Dim
    size: tuple[int, int]
    depth: int
    channels: int
    kernel: int = 3
    stride: int = 1
    dilation: int = 1

    @property
    def padding(self) -> int:
        """Before and after each axis: such that a stride of 1 keeps the size."""
        return self.kernel // 2 * self.dilation

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = ((n - 1) // self.stride + 1 for n in self.size)
        return height, width


def chain_of(block: Block, first: Precision, second: Precision, typical: tuple[tuple[str, int], ...] = ()
             ) -> ChainRequest:
    """clip(pointwise + bias), then relu(depthwise + bias + residual)."""
    rng = np.random.default_rng(3)
    wide, make = rng.standard_normal, symbolic_group if typical else group_of

    def expand(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        weights = wide((block.channels, 1, 1, block.depth)).astype(np.float32) / block.depth
        y = builder.emit(relax.op.nn.conv2d(params[0], ir.constant(weights), data_layout="NHWC", kernel_layout="OHWI"),
                         "layer")
        y = builder.emit(relax.op.add(y, ir.constant(wide(block.channels).astype(np.float32))), "bias")
        return builder.emit(relax.op.clip(y, 0, 6), "relu6")

    def depthwise(builder: ir.GraphBuilder, params: list[relax.Var]) -> relax.Var:
        weights = wide((block.channels, block.kernel, block.kernel, 1)).astype(np.float32)
        y = builder.emit(relax.op.nn.conv2d(
            params[0], ir.constant(weights), data_layout="NHWC", kernel_layout="OHWI", groups=block.channels,
            strides=(block.stride,) * 2, padding=(block.padding,) * 4, dilation=(block.dilation,) * 2), "layer")
        y = builder.emit(relax.op.add(y, ir.constant(wide(block.channels).astype(np.float32))), "bias")
        y = builder.emit(relax.op.add(y, params[1]), "sum")
        return builder.emit(relax.op.nn.relu(y), "relu")

    shapes = [(block.batch, *s, c) for s, c in (
        (block.size, block.depth), (block.size, block.channels), (block.result, block.channels))]
    between = BETWEEN[second]
    groups = make("conv", shapes[:1], expand), make("depthwise", shapes[1:], depthwise)
    requests = (KernelRequest(groups[0], first, (OPERAND[first],), (between,), typical=typical),
                KernelRequest(groups[1], second, (between, FLOAT32), (FLOAT32, BFLOAT16), typical=typical))
    return ChainRequest(*requests, 0)


def check(chain: ChainRequest, batch: int = 0, target: Target = NATIVE, threads: int = 2) -> list[np.ndarray]:
    """The chain's kernel gives, to the bit, what its groups' kernels give on vectors; ``batch`` replaces a symbol.
    Returns its outputs."""
    features = on_vectors(target.capabilities)
    assert links(chain, features)
    requests = {"first": chain.first, "second": chain.second, "chain": chain}
    kernels = {name: emit(r, features, threads) for name, r in requests.items()}
    module = compile_functions({name: k.func for name, k in kernels.items()}, target.tvm_target())
    shapes = [tuple(d if isinstance(d, int) else batch for d in ir.dims_of(p))
              for p in (chain.first.group.parameters[0], chain.second.group.parameters[1])]
    rng = np.random.default_rng(5)
    data, residual = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    data = encode_array(data, chain.first.inputs[0])
    (between,) = call_kernel(module["first"], chain.first, kernels["first"], [data])
    expected = call_kernel(module["second"], chain.second, kernels["second"], [between, residual])
    got = call_kernel(module["chain"], chain, kernels["chain"], [data, residual])
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return got


@PAIRS
def test_every_mixture_of_precisions(first: Precision, second: Precision) -> None:
    exact, _ = check(chain_of(Block(2, (9, 15), 24, 40), first, second))
    assert np.ptp(exact) > 1


@given(st.data())
@settings(max_examples=6, deadline=None)
@pytest.mark.parametrize("precision", [pytest.param(p, marks=pytest.mark.isa(f)) for p, f in FEATURES.items()])
def test_any_block(precision: Precision, data: st.DataObject) -> None:
    draw = data.draw
    size = draw(st.integers(1, 20)), draw(st.integers(1, 33))
    block = Block(draw(st.integers(1, 3)), size, 4 * draw(st.integers(1, 9)), draw(st.integers(1, 50)),
                  draw(st.sampled_from([1, 3, 5])), draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    check(chain_of(block, precision, precision), threads=draw(st.integers(1, 8)))


@INT8_TIERS
def test_other_tiers(target: Target) -> None:
    check(chain_of(Block(1, (11, 28), 16, 33, kernel=5, stride=2), Precision.INT8, Precision.INT8), target=target)


def test_an_open_batch() -> None:
    chain = chain_of(Block(symbol("n"), (7, 10), 8, 20), Precision.FP32, Precision.FP32, typical=(("n", 2),))
    for batch in (1, 2, 5):
        check(chain, batch)


def test_what_one_kernel_cannot_compute() -> None:
    can, chain = NATIVE.capabilities, chain_of(Block(1, (6, 6), 8, 20), Precision.FP32, Precision.FP32)
    first, second = chain.first, chain.second
    assert links(chain, can)
    assert not links(replace(chain, first=second), can)
    assert not links(replace(chain, link=1), can)
    assert not links(replace(chain, first=replace(first, outputs=(FLOAT32, BFLOAT16))), can)
    assert not links(replace(chain, first=replace(first, outputs=(BFLOAT16,))), can)
    cut = chain_of(Block(1, (6, 6), 6, 20), Precision.INT8, Precision.FP32)
    assert not links(cut, replace(can, features=can.features | {"avx512_vnni"}))
    wide = chain_of(Block(1, (symbol("h"), 6), 8, 20), Precision.FP32, Precision.FP32, typical=(("h", 6),))
    assert not links(wide, can)


LARGE_CACHE = Capabilities(frozenset({"avx2", "fma", "avx512"}), 512, 32 << 10, 1 << 20)


@pytest.mark.parametrize(("block", "threads", "pays"), [
    (Block(1, (112, 112), 16, 96, stride=2), 2, True),
    (Block(1, (56, 56), 24, 144), 2, True),
    (Block(1, (8, 8), 8, 16), 1, False),
    (Block(1, (14, 14), 512, 512), 1, False)], ids=str)
def test_one_kernel_where_the_tensor_between_is_large(block: Block, threads: int, pays: bool) -> None:
    assert gains(chain_of(block, Precision.FP32, Precision.FP32), LARGE_CACHE, threads) is pays
