"""One step of an optimizer: Adagrad, Adam and Momentum of ONNX's training preview, for training graphs on devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from tvm import relax

from ...ir import Expr
from .algebra import Algebra
from .node import OnnxNode, Results, operator

DOMAIN = "ai.onnx.preview.training"
# The new value and the new moments of one tensor, from its rate's operands and its own: value, gradient, moments.
Step: TypeAlias = Callable[[OnnxNode, Algebra, Sequence[Expr]], tuple[Expr, ...]]


def _each(node: OnnxNode, states: int, step: Step) -> Results:
    """``step`` for every tensor; inputs and outputs are listed kind by kind, after the rate and the count of steps."""
    count, kinds = len(node.inputs) - 2, states + 2
    if count < kinds or count % kinds:
        raise node.fault("the tensors do not come in equal numbers", found=count, expected=f"a multiple of {kinds}")
    tensors = count // kinds
    steps = Algebra(node, "step")
    results = [step(node, steps, [node.expr(2 + i + k * tensors) for k in range(kinds)]) for i in range(tensors)]
    return tuple(results[i][k] for k in range(states + 1) for i in range(tensors))


def _regularized(node: OnnxNode, steps: Algebra, x: Expr, gradient: Expr) -> Expr:
    coefficient = float(node.attribute("norm_coefficient", 0.0))
    return gradient if coefficient == 0.0 else steps.add(steps.multiply(x, coefficient), gradient)


def _mixed(steps: Algebra, old: Expr, new: Expr, share: float) -> relax.Var:
    """``share · old + (1 - share) · new``."""
    return steps.add(steps.multiply(old, share), steps.multiply(new, 1 - share))


@operator("Adagrad", domain=DOMAIN)
def adagrad(node: OnnxNode) -> Results:
    """Duchi et al. 2011."""

    def step(node: OnnxNode, steps: Algebra, operands: Sequence[Expr]) -> tuple[Expr, ...]:
        x, gradient, squares = operands
        times = steps.cast(node.expr(1), "float32")
        slower = steps.add(steps.multiply(times, float(node.attribute("decay_factor", 0.0))), 1.0)
        rate = steps.divide(node.expr(0), slower)
        gradient = _regularized(node, steps, x, gradient)
        squares = steps.add(squares, steps.multiply(gradient, gradient))
        size = steps.add(steps(relax.op.sqrt, squares), float(node.attribute("epsilon", 1e-6)))
        return steps.subtract(x, steps.divide(steps.multiply(rate, gradient), size)), squares

    return _each(node, 1, step)


@operator("Adam", domain=DOMAIN)
def adam(node: OnnxNode) -> Results:
    """Kingma and Ba 2015."""
    alpha, beta = float(node.attribute("alpha", 0.9)), float(node.attribute("beta", 0.999))

    def step(node: OnnxNode, steps: Algebra, operands: Sequence[Expr]) -> tuple[Expr, ...]:
        x, gradient, mean, squares = operands
        gradient = _regularized(node, steps, x, gradient)
        mean = _mixed(steps, mean, gradient, alpha)
        squares = _mixed(steps, squares, steps.multiply(gradient, gradient), beta)
        size = steps.add(steps(relax.op.sqrt, squares), float(node.attribute("epsilon", 1e-6)))
        moved = steps.divide(steps.multiply(_adam_rate(node, steps, alpha, beta), mean), size)
        kept = 1 - float(node.attribute("norm_coefficient_post", 0.0))
        value = steps.subtract(x, moved)
        return (value if kept == 1.0 else steps.multiply(value, kept)), mean, squares

    return _each(node, 2, step)


def _adam_rate(node: OnnxNode, steps: Algebra, alpha: float, beta: float) -> Expr:
    """The rate with the bias of the first steps' moments taken out."""
    times, rate = steps.cast(node.expr(1), "float32"), node.expr(0)
    first, second = (steps.subtract(1.0, steps(relax.op.power, b, times)) for b in (alpha, beta))
    started = steps(relax.op.greater, times, 0.0)
    safe = node.emit(relax.op.where(started, first, node.constant(np.float32(1))), "step")
    adjusted = steps.divide(steps.multiply(rate, steps(relax.op.sqrt, second)), safe)
    return node.emit(relax.op.where(started, adjusted, rate), "step")


@operator("Momentum", domain=DOMAIN)
def momentum(node: OnnxNode) -> Results:
    """Polyak 1964; ``nesterov`` looks one step ahead (Sutskever et al. 2013)."""
    mode = node.attribute("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise node.fault("the mode is unknown", found=mode, expected="standard or nesterov")
    alpha, beta = float(node.attribute("alpha", 0.9)), float(node.attribute("beta", 1.0))

    def step(node: OnnxNode, steps: Algebra, operands: Sequence[Expr]) -> tuple[Expr, ...]:
        x, gradient, velocity = operands
        gradient = _regularized(node, steps, x, gradient)
        started = steps(relax.op.greater, steps.cast(node.expr(1), "float32"), 0.0)
        shares = node.constant(np.float32(beta)), node.constant(np.float32(1))
        share = node.emit(relax.op.where(started, *shares), "step")
        velocity = steps.add(steps.multiply(velocity, alpha), steps.multiply(gradient, share))
        ahead = velocity if mode == "standard" else steps.add(gradient, steps.multiply(velocity, alpha))
        return steps.subtract(x, steps.multiply(ahead, node.expr(0))), velocity

    return _each(node, 1, step)
