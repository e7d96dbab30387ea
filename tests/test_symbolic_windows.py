"""Windows and strided slices over symbolic extents that nothing proves to be positive, compiled once for any extent."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import onnx
import pytest

import narrowcast
from narrowcast.errors import ProgramError

from .frontends.onnx_models import expected, ints, model, node, noise


def agrees_at(proto: onnx.ModelProto, *shapes: tuple[int, ...]) -> narrowcast.Program:
    """The program of a model with one input ``x``; it gives what ONNX Runtime gives, to the last bit."""
    program = narrowcast.compile(proto, num_threads=1)
    for shape in shapes:
        x = noise(*shape)
        results = program(x)
        for mine, other in zip(results if isinstance(results, tuple) else (results,), expected(proto, {"x": x}),
                               strict=True):
            np.testing.assert_array_equal(mine, other)
    return program


def pools(*sizes: tuple[int, int, int], axes: int = 1) -> list[onnx.NodeProto]:
    """Maximum pools one after another, each of a kernel, a stride and a dilation, from ``x`` to ``y``."""
    names = ["x", *(f"p{i}" for i in range(1, len(sizes))), "y"]
    return [node("MaxPool", names[i], names[i + 1], kernel_shape=[k] * axes, strides=[s] * axes, dilations=[d] * axes)
            for i, (k, s, d) in enumerate(sizes)]


def test_a_window_wider_than_most_inputs() -> None:
    nodes = [node("MaxPool", "x", kernel_shape=[200], dilations=[10], pads=[100, 100], strides=[10]),
             node("Abs", "x", "z")]
    program = agrees_at(model(nodes, {"x": [1, 1, "w"]}, "y,z"), (1, 1, 1791), (1, 1, 1805), (1, 1, 3000))
    for extent in (1, 1790):
        with pytest.raises(ProgramError, match=r"(?s)found: w = .*expected: w >= 1791"):
            program(noise(1, 1, extent))


def test_a_chain_of_pools() -> None:
    sizes = ((5, 2, 3), (3, 1, 2), (5, 3, 1), (2, 2, 1), (3, 1, 1), (2, 1, 2))
    program = agrees_at(model(pools(*sizes), {"x": [1, 2, "w"]}), (1, 2, 101), (1, 2, 102), (1, 2, 400))
    with pytest.raises(ProgramError, match=r"expected: w >= \d+"):
        program(noise(1, 2, 40))


def test_pools_over_two_symbolic_axes_and_a_batch() -> None:
    nodes = pools((3, 2, 2), (5, 1, 1), (2, 2, 3), axes=2)
    program = agrees_at(model(nodes, {"x": ["n", 3, "h", "w"]}), (1, 3, 19, 31), (2, 3, 40, 23))
    with pytest.raises(ProgramError, match="do not fit this layer"):
        program(noise(1, 3, 18, 4))


def test_pools_count_what_is_inside_the_tensor() -> None:
    nodes = [node("MaxPool", "x", "p", kernel_shape=[9], dilations=[4], strides=[3], pads=[4, 4]),
             node("AveragePool", "p", kernel_shape=[2], strides=[1], pads=[1, 1])]
    proto = model(nodes, {"x": [1, 1, "w"]})
    agrees_at(proto, (1, 1, 25), (1, 1, 26), (1, 1, 90))


@pytest.mark.parametrize("bounds", [(1, 2 ** 62, 2), (3, -1, 2), (-40, 2 ** 62, 1), (0, 60, 1), (-1, -2 ** 62, -2)])
def test_a_chain_of_slices_stays_small(bounds: tuple[int, int, int]) -> None:
    """What six slices leave of an axis is an expression that names the symbol a few times, not a few to the sixth."""
    names = ["x", *(f"s{i}" for i in range(1, 6)), "y"]
    nodes = [node("Slice", f"{a},start,stop,axis,step", b) for a, b in pairwise(names)]
    start, stop, step = bounds
    proto = model(nodes, {"x": [2, "w"]}, "y", {
        "start": ints(start), "stop": ints(stop), "axis": ints(1), "step": ints(step)})
    program = agrees_at(proto, (2, 400), (2, 401), (2, 512))
    assert len(re.findall(r"\bw\b", str(program.outputs[0].shape[1]))) <= 12
