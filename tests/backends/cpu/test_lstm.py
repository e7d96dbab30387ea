"""The LSTM kernel against the recurrence in float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.lstm import build_lstm
from narrowcast.backends.target import Target, capabilities
from narrowcast.errors import UnsupportedOperatorError
from narrowcast.operators.custom import lstm
from narrowcast.precision import FLOAT32, Precision

from .groups import NATIVE, group_of, run_kernel

EPS = float(np.finfo(np.float32).eps)


def random(*shape: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def reference(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, h0: np.ndarray,
              c0: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    steps, directions = x.shape[0], w.shape[0]
    y = np.zeros((steps, directions, *h0.shape[1:]))
    h, c = h0.astype(np.float64), c0.astype(np.float64)
    for d in range(directions):
        for t in range(steps) if d == 0 else reversed(range(steps)):
            gates = x[t] @ w[d].T.astype(np.float64) + h[d] @ r[d].T.astype(np.float64) + b[d]
            i, o, f, g = np.split(gates, 4, axis=1)
            c[d] = expit(f) * c[d] + expit(i) * np.tanh(g)
            h[d] = expit(o) * np.tanh(c[d])
            y[t, d] = h[d]
    return y, h, c


def request(x: np.ndarray, weights: list[np.ndarray], h0: np.ndarray, c0: np.ndarray) -> KernelRequest:
    """A group whose input and first hidden state are parameters; the first cell state is a constant."""
    group = group_of("opaque", [x.shape, h0.shape], lambda builder, p: builder.emit(
        lstm(p[0], *[relax.const(a) for a in weights], p[1], relax.const(c0)), "layer"))
    return KernelRequest(group, Precision.FP32, (FLOAT32, FLOAT32), (FLOAT32,))


@pytest.mark.parametrize("target", [NATIVE, pytest.param(Target("haswell", 2), marks=pytest.mark.isa("avx2"))])
@pytest.mark.parametrize(("steps", "batch", "inputs", "hidden", "directions"), [
    (5, 2, 7, 9, 2), (1, 1, 4, 16, 1), (3, 1, 5, 33, 1), (40, 3, 24, 64, 2)])
def test_lstm(steps: int, batch: int, inputs: int, hidden: int, directions: int, target: Target) -> None:
    x = random(steps, batch, inputs, seed=0)
    shapes = [(directions, 4 * hidden, inputs), (directions, 4 * hidden, hidden), (directions, 4 * hidden)]
    weights = [random(*s, seed=i + 1) for i, s in enumerate(shapes)]
    h0, c0 = random(directions, batch, hidden, seed=4), random(directions, batch, hidden, seed=5)
    asked = request(x, weights, h0, c0)
    kernel = build_lstm(asked, capabilities(target), 2)
    assert kernel.macs == steps * batch * directions * 4 * hidden * (inputs + hidden)
    actual = run_kernel(asked, kernel, [x, h0], target.tvm_target())
    # a step's sums of inputs + hidden products of about 0.3 each; steps damp what came before
    bound = EPS * (inputs + hidden + 8) * 4
    for got, expected in zip(actual, reference(x, *weights, h0, c0), strict=True):
        assert got.shape == expected.shape
        assert np.max(np.abs(got - expected)) <= bound


def test_weights_have_to_be_constants() -> None:
    shapes = [(2, 1, 3), (1, 16, 3), (1, 16, 4), (1, 16), (1, 1, 4), (1, 1, 4)]
    group: ir.Group = group_of("opaque", shapes, lambda builder, p: builder.emit(lstm(*p), "layer"))
    asked = KernelRequest(group, Precision.FP32, (FLOAT32,) * 6, (FLOAT32,))
    with pytest.raises(UnsupportedOperatorError, match="layer: the weights of an LSTM must be constants"):
        build_lstm(asked, capabilities(NATIVE), 1)
