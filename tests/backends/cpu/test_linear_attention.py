"""The kernel of linear attention against the reference in float64, and ONNX's operator against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.build import run_kernel
from narrowcast.backends.cpu.emit import emit
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.target import Target, capabilities
from narrowcast.errors import VerificationError
from narrowcast.operators import reference
from narrowcast.operators.linear_attention import linear_attention
from narrowcast.precision import FLOAT32, Precision

from .groups import NATIVE

EPS = float(np.finfo(np.float32).eps)
NAMES = ("q", "k", "v", "state", "decay", "rate")


def arrays_of(batch: int, steps: int, heads: int, group: int, key: int, value: int) -> dict[str, np.ndarray]:
    """Random operands; keys of about unit length keep the state of the delta rule bounded."""
    generator = np.random.default_rng(0)
    shapes = [(batch, steps, heads * group, key), (batch, steps, heads, key), (batch, steps, heads, value),
              (batch, heads, key, value)]
    found = {n: generator.standard_normal(s) / np.sqrt(s[-1]) for n, s in zip(NAMES, shapes, strict=False)}
    found |= {"decay": generator.uniform(0.5, 1, shapes[1]), "rate": generator.uniform(0, 1, shapes[1][:3])}
    return {n: a.astype(np.float32) for n, a in found.items()}


def check(sizes: tuple[int, int, int, int, int, int], delta: bool, constants: tuple[str, ...] = (),
          target: Target = NATIVE) -> None:
    arrays = arrays_of(*sizes)
    params = {n: relax.Var(n, relax.TensorType(a.shape, "float32")) for n, a in arrays.items() if n not in constants}
    call = linear_attention(*(params.get(n, ir.constant(a)) for n, a in arrays.items()), delta=delta)
    builder = ir.GraphBuilder(list(params.values()))
    function = builder.finish([builder.emit(call, "layer")], attrs={"Primitive": True, "group": "opaque"})
    request = KernelRequest(ir.Group("layer", "opaque", function, tuple(params)), Precision.FP32,
                            (FLOAT32,) * len(params), (FLOAT32,))
    kernel = emit(request, capabilities(target), 2)
    found = run_kernel(request, kernel, [arrays[n] for n in params], target.tvm_target())
    exact = reference.evaluate_call(request.group.bindings[0].value,
                                    [torch.from_numpy(arrays[n].astype(np.float64)) for n in NAMES])
    steps, key = sizes[1], sizes[4]
    for got, wanted in zip(found, exact, strict=True):
        # A step rounds sums of ``key`` products; the states it passes on are up to ``steps`` values of about 1.
        assert np.max(np.abs(got - wanted.numpy())) <= EPS * (key + 8) * steps * 2


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 20),
       st.integers(1, 40), st.booleans())
def test_sizes(batch: int, steps: int, heads: int, group: int, key: int, value: int, delta: bool) -> None:
    check((batch, steps, heads, group, key, value), delta)


def test_operands_may_be_constants_and_threads_share_the_heads() -> None:
    check((2, 8, 4, 1, 32, 64), True, ("state", "decay"))


@pytest.mark.isa("avx2")
def test_vectors_of_eight() -> None:
    check((1, 5, 2, 2, 8, 24), True, target=Target("haswell", 2))


def test_the_delta_rule_replaces_what_a_key_held() -> None:
    """With a rate of 1 and keys of unit length a key that comes again leaves only its last value in the state."""
    k = torch.tensor([1.0, 0.0]).expand(1, 2, 1, 2)
    v = torch.tensor([[[[1.0, 2.0, 3.0]], [[7.0, 8.0, 9.0]]]])
    ones = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in zip(
        NAMES, [(1, 2, 1, 2), (1, 2, 1, 2), (1, 2, 1, 3), (1, 1, 2, 3), (1, 2, 1, 2), (1, 2, 1)], strict=True)]
    values = [k, k, v, torch.zeros(1, 1, 2, 3), torch.ones(1, 2, 1, 2), torch.ones(1, 2, 1)]
    held = {delta: reference.evaluate_call(linear_attention(*ones, delta=delta), values)[1][0, 0, 0]
            for delta in (True, False)}
    assert held[True].tolist() == [7, 8, 9] and held[False].tolist() == [8, 10, 12]


def test_operands_that_do_not_fit_are_refused() -> None:
    shapes = [(1, 2, 1, 2), (1, 2, 1, 2), (1, 2, 1, 3), (1, 1, 2, 4), (1, 2, 1, 2), (1, 2, 1)]
    operands = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in zip(NAMES, shapes, strict=True)]
    with pytest.raises((VerificationError, RuntimeError), match="does not fit the others"):
        relax.BlockBuilder().normalize(linear_attention(*operands, delta=True))
