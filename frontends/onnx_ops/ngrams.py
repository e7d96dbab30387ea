"""TfIdfVectorizer: how often the sequences of a pool occur in rows of numbers."""

from __future__ import annotations

import itertools

import numpy as np
from tvm import relax

from ...dims import Dim
from ...ir import Expr
from .algebra import Algebra, check_table
from .node import OnnxNode, Results, operator


@operator("TfIdfVectorizer")
def tf_idf_vectorizer(node: OnnxNode) -> Results:
    """Every sequence is compared at every place; sequences may skip elements between theirs."""
    if node.attribute("pool_strings"):
        raise node.unsupported("of strings")
    shape, steps = node.dims(0), Algebra(node, "counts")
    if len(shape) not in (1, 2):
        raise node.fault("the input is neither a row nor a batch of rows", found=shape)
    (length,) = node.numbers(shape[-1:], "the rows")
    batch: Dim = shape[0] if len(shape) == 2 else 1
    rows = steps.reshape(node.expr(0), [batch, length])
    least, most, skips = (int(node.attribute(n, 0)) for n in ("min_gram_length", "max_gram_length", "max_skip_count"))
    indices = np.asarray(node.attribute("ngram_indexes", ()), np.int64)
    counts, columns, first = [], [], 0
    for size, pool in enumerate(_pools(node), 1):
        own = indices[first:first + len(pool)]
        first += len(pool)
        if not least <= size <= most or not len(pool):
            continue
        for distance in range(1, 2 if size == 1 else skips + 2):
            if (size - 1) * distance < length:
                counts.append(_occurrences(node, steps, rows, pool, length, distance))
                columns.append(own)
    width = int(indices.max(initial=0)) + 1
    check_table(node, width)
    if not counts:
        return np.zeros((*shape[:-1], width), np.float32)
    found = counts[0] if len(counts) == 1 else node.emit(relax.op.concat(counts, 1), "counts")
    check_table(node, sum(len(c) for c in columns), width)
    place = np.concatenate(columns)[:, None] == np.arange(width)
    total = node.emit(relax.op.matmul(found, node.constant(place.astype(np.float32))))
    return node.emit(relax.op.reshape(_weighted(node, steps, total, width), (*shape[:-1], width)))


def _pools(node: OnnxNode) -> list[np.ndarray]:
    """The sequences of one element, of two, …: each [sequences, elements]."""
    pool = np.asarray(node.attribute("pool_int64s", ()), np.int64)
    starts = [*node.attribute("ngram_counts", ()), len(pool)]
    parts = [pool[a:b] for a, b in itertools.pairwise(starts)]
    sizes = [len(p) // n for n, p in enumerate(parts, 1)]
    if any(len(p) % n for n, p in enumerate(parts, 1)) or sum(sizes) != len(node.attribute("ngram_indexes", ())):
        raise node.fault("the pool does not divide into sequences", found=starts)
    return [p.reshape(-1, n) for n, p in enumerate(parts, 1)]


def _occurrences(node: OnnxNode, steps: Algebra, rows: Expr, pool: np.ndarray, length: int, distance: int) -> Expr:
    """[batch, sequences]: how often each is in a row with its elements ``distance`` apart."""
    windows = length - (pool.shape[1] - 1) * distance
    equal: Expr | None = None
    for i in range(pool.shape[1]):
        part = steps.expanded(steps.sliced(rows, 1, i * distance, i * distance + windows), 2)
        same = steps(relax.op.equal, part, pool[:, i])
        equal = same if equal is None else steps(relax.op.logical_and, equal, same)
    return steps.total(steps.cast(equal, "float32"), 1)


def _weighted(node: OnnxNode, steps: Algebra, total: Expr, width: int) -> Expr:
    mode = node.attribute("mode", "TF")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise node.fault("the mode is unknown", found=mode, expected="TF, IDF or TFIDF")
    weights = np.asarray(node.attribute("weights", ()) or np.ones(width), np.float32)
    if weights.shape != (width,):
        raise node.fault("the weights do not fit", found=weights.shape, expected=(width,))
    if mode == "IDF":
        total = steps.cast(steps(relax.op.greater, total, 0.0), "float32")
    return total if mode == "TF" else steps.multiply(total, weights)
