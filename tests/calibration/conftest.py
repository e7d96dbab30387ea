"""Small networks in grouped form for the tests of calibration."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.operators.recurrent import Recurrence, recurrent_layer
from narrowcast.passes.fuse import FuseGroups

op = relax.op


def weights(seed: int, *shape: int) -> ir.Constant:
    scale = np.sqrt(2.0 / max(int(np.prod(shape[1:])), 1))
    return ir.constant((np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32))


def grouped(func: relax.Function) -> tvm.IRModule:
    return FuseGroups()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))


@pytest.fixture(scope="session")
def convolutional() -> tvm.IRModule:
    """Convolution with bias and ReLU, depthwise, pointwise with a residual, max pool, mean, linear classifier."""
    x = relax.Var("image", relax.TensorType((1, 8, 8, 3), "float32"))
    b = ir.GraphBuilder([x])
    nhwc = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    y = b.emit(op.nn.conv2d(x, weights(0, 8, 3, 3, 3), padding=1, **nhwc), "stem")
    y = b.emit(op.add(y, weights(1, 8)), "stem")
    stem = b.emit(op.nn.relu(y), "stem.act")
    y = b.emit(op.nn.conv2d(stem, weights(2, 8, 3, 3, 1), padding=1, groups=8, **nhwc), "depthwise")
    y = b.emit(op.clip(b.emit(op.add(y, weights(3, 8)), "depthwise"), 0, 6), "depthwise.act")
    y = b.emit(op.nn.conv2d(y, weights(4, 8, 1, 1, 8), **nhwc), "pointwise")
    y = b.emit(op.add(b.emit(op.add(y, weights(5, 8)), "pointwise"), stem), "residual")
    y = b.emit(op.nn.max_pool2d(y, (2, 2), (2, 2), layout="NHWC"), "pool")
    y = b.emit(op.mean(y, [1, 2]), "mean")
    y = b.emit(op.add(b.emit(op.matmul(y, weights(6, 8, 10)), "classifier"), weights(7, 10)), "classifier")
    return grouped(b.finish([y]))


@pytest.fixture(scope="session")
def transformer() -> tvm.IRModule:
    """Embedding, one attention layer by ``nn.attention``, a batched product, layer norm, GELU; two outputs."""
    rows, width, heads = 6, 16, 2
    ids = relax.Var("ids", relax.TensorType((1, rows), "int64"))
    b = ir.GraphBuilder([ids])
    x = b.emit(op.take(weights(0, 20, width), ids, axis=0), "embedding")
    parts = []
    for i, name in enumerate(("query", "key", "value")):
        y = b.emit(op.matmul(x, weights(i + 1, width, width)), name)
        parts.append(b.emit(op.reshape(y, (1, rows, heads, width // heads)), f"{name}.heads"))
    y = b.emit(op.nn.attention(*parts, scale=(width // heads) ** -0.5), "attention")
    y = b.emit(op.reshape(y, (1, rows, width)), "attention.merge")
    y = b.emit(op.matmul(y, weights(5, width, width)), "output")
    y = b.emit(op.add(y, x), "output.residual")
    gamma, beta = weights(6, width), weights(7, width)
    y = b.emit(op.nn.layer_norm(y, gamma, beta, axes=[-1]), "norm")
    z = b.emit(op.nn.gelu(b.emit(op.matmul(y, weights(8, width, 24)), "up")), "up.act")
    scores = b.emit(op.matmul(z, b.emit(op.permute_dims(z, [0, 2, 1]), "transpose")), "scores")
    return grouped(b.finish([b.emit(op.nn.softmax(scores), "softmax"), z]))


@pytest.fixture(scope="session")
def recurrent() -> tvm.IRModule:
    """A long short-term memory layer between two linear ones, and the order of the results: groups of tuples."""
    x = relax.Var("sequence", relax.TensorType((5, 1, 4), "float32"))
    b = ir.GraphBuilder([x])
    y = b.emit(op.matmul(x, weights(0, 4, 3)), "encoder")
    form, own = Recurrence("lstm"), {"w": weights(1, 1, 24, 3), "r": weights(2, 1, 24, 6), "b": weights(3, 1, 48)}
    states = b.emit(recurrent_layer(form, x=y, **own), "lstm")
    last = b.emit(relax.TupleGetItem(states, 1), "lstm.hidden")
    y = b.emit(op.matmul(b.emit(op.squeeze(last, [0]), "squeeze"), weights(4, 6, 7)), "decoder")
    best = b.emit(op.topk(y, 2, 1, "both", True, "int64"), "best")
    return grouped(b.finish([y, b.emit(relax.TupleGetItem(best, 1), "best.indices")]))
