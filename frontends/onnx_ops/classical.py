"""Operators of ``ai.onnx.ml`` on numbers: features and trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ...ir import Expr, dims_of
from .algebra import Algebra, check_table
from .indexing import positions_in
from .node import OnnxNode, Results, operator

DOMAIN = "ai.onnx.ml"
_MEMBER = 6
_COMPARISONS: dict[int, Callable[[Expr, Expr], Expr]] = {
    0: relax.op.less_equal, 1: relax.op.less, 2: relax.op.greater_equal, 3: relax.op.greater, 4: relax.op.equal,
    5: relax.op.not_equal,
}
_AVERAGE, _SUM, _MIN, _MAX = range(4)


@operator("Binarizer", domain=DOMAIN)
def binarizer(node: OnnxNode) -> Results:
    steps = Algebra(node, "above")
    above = steps(relax.op.greater, node.expr(0), float(node.attribute("threshold", 0.0)))
    return node.emit(relax.op.astype(above, node.dtype(0)))


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(node: OnnxNode) -> Results:
    """The features of the last axis that a list of indices names."""
    x, steps, rank = node.expr(0), Algebra(node, "indices"), node.rank(0)
    if not rank:
        raise node.fault("the data is one value, without an axis of features")
    positions = steps.reshape(positions_in(node, 1, node.dims(0)[rank - 1]), [int(np.prod(node.shape(1)))])
    result = node.emit(relax.op.take(x, positions, rank - 1, mode="clip"))
    return result if rank > 1 else node.emit(relax.op.expand_dims(result, 0))


@dataclass(frozen=True)
class _Trees:
    """All nodes in one numbering, leaves after the ``inner`` nodes; a leaf leads to itself.

    members : [nodes, most members] of inner nodes that test membership, NaN where there are none.
    """

    inner: int
    roots: np.ndarray
    features: np.ndarray
    modes: np.ndarray
    splits: np.ndarray
    members: np.ndarray
    missing: np.ndarray
    true: np.ndarray
    false: np.ndarray
    depth: int


@operator("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(node: OnnxNode) -> Results:
    """All trees go down one level at a time; the last step looks up the leaves' weights."""
    trees, steps, x = _read_trees(node), Algebra(node, "nodes"), node.expr(0)
    batch, features = dims_of(x)
    if int(trees.features.max(initial=0)) >= int(features):
        raise node.fault("a tree reads a feature that the input lacks", found=int(trees.features.max()))
    place: Expr = steps.broadcast(node.constant(trees.roots.reshape(1, -1)), (batch, len(trees.roots)))

    def of_nodes(table: np.ndarray) -> Expr:
        return node.emit(relax.op.take(node.constant(table), place, 0, mode="clip"), "nodes")

    for _ in range(trees.depth):
        value = node.emit(relax.op.gather_elements(x, of_nodes(trees.features), 1), "nodes")
        taken = _decide(node, steps, trees, value, of_nodes)
        place = node.emit(relax.op.where(taken, of_nodes(trees.true), of_nodes(trees.false)), "nodes")
    return _transformed(node, _aggregated(node, steps, place, trees.inner))


def _decide(node: OnnxNode, steps: Algebra, trees: _Trees, value: Expr, of_nodes: Callable[[np.ndarray], Expr]) -> Expr:
    """Where the branch of a node whose test holds is taken."""
    splits = of_nodes(trees.splits)
    taken: Expr | None = None
    for mode in sorted(set(trees.modes.tolist())):
        if mode == _MEMBER:
            known = steps(relax.op.equal, of_nodes(trees.members), steps.expanded(value, 2))
            holds = steps(relax.op.greater, steps.total(steps.cast(known, "float32"), 2), 0.0)
        else:
            holds = steps(_COMPARISONS[mode], value, splits)
        own = of_nodes(trees.modes == mode)
        taken = holds if taken is None else node.emit(relax.op.where(own, holds, taken), "nodes")
    if trees.missing.any():
        absent = steps(relax.op.logical_and, steps(relax.op.isnan, value), of_nodes(trees.missing))
        taken = steps(relax.op.logical_or, taken, absent)
    return taken


def _aggregated(node: OnnxNode, steps: Algebra, place: Expr, first_leaf: int) -> Expr:
    """[batch, targets] from the leaves [batch, trees]."""
    how, targets = int(node.attribute("aggregate_function", _SUM)), int(node.attribute("n_targets", 1))
    weights, own = (np.asarray(node.attribute(n, ())) for n in ("leaf_weights", "leaf_targetids"))
    nothing = {_MIN: np.inf, _MAX: -np.inf}.get(how, 0.0)
    if targets < 1 or len(weights) != len(own) or ((own < 0) | (own >= targets)).any():
        raise node.fault("the leaves do not fit the targets", found=(len(weights), own.tolist()), expected=targets)
    check_table(node, first_leaf + len(weights), targets)
    table = np.full((first_leaf + len(weights), targets), nothing, np.float32)
    table[first_leaf + np.arange(len(weights)), own] = weights
    values = node.emit(relax.op.take(node.constant(table), place, 0, mode="clip"), "leaves")
    reduce = {_AVERAGE: relax.op.mean, _SUM: relax.op.sum, _MIN: relax.op.min, _MAX: relax.op.max}.get(how)
    if reduce is None:
        raise node.fault("the aggregation is unknown", found=how)
    return node.emit(reduce(values, [1]))


def _transformed(node: OnnxNode, scores: Expr) -> Results:
    kind = int(node.attribute("post_transform", 0))
    if kind not in (0, 1, 2):
        raise node.unsupported(f"with the post transform {kind}")
    if kind == 0:
        return scores
    return node.emit(relax.op.nn.softmax(scores, 1) if kind == 1 else relax.op.sigmoid(scores))


def _read_trees(node: OnnxNode) -> _Trees:
    def read(name: str, default: float = 0) -> np.ndarray:
        given = node.attribute(name)
        return np.full(count, default) if given is None or not len(given) else np.asarray(given)

    count = len(node.attribute("nodes_featureids", ()))
    leaves = len(node.attribute("leaf_targetids", ()))
    modes = read("nodes_modes").astype(np.int64)
    children = []
    for side in ("true", "false"):
        ids, leaf = read(f"nodes_{side}nodeids").astype(np.int64), read(f"nodes_{side}leafs").astype(bool)
        if len(ids) != count or len(leaf) != count or (ids < 0).any() or (ids >= np.where(leaf, leaves, count)).any():
            raise node.fault("a branch leads nowhere", found=f"{side} branches of {count} nodes, {leaves} leaves")
        children.append(np.concatenate([np.where(leaf, ids + count, ids), count + np.arange(leaves)]))
    roots = np.asarray(node.attribute("tree_roots", ()), np.int64)
    known = set(modes.tolist()) <= {*_COMPARISONS, _MEMBER}
    if not len(roots) or (roots < 0).any() or (roots >= count).any() or not known:
        raise node.fault("the trees are unusable", found=(roots.tolist(), modes.tolist()))
    padding = np.zeros(leaves, np.int64)
    check_table(node, count + leaves, _widest(node))
    members = np.concatenate([_members(node, modes), np.full((leaves, _widest(node)), np.nan, np.float32)])
    return _Trees(
        count, roots, np.concatenate([read("nodes_featureids").astype(np.int64), padding]),
        np.concatenate([modes, padding]), np.concatenate([read("nodes_splits"), padding]).astype(np.float32), members,
        np.concatenate([read("nodes_missing_value_tracks_true"), padding]).astype(bool), children[0], children[1],
        _depth(node, roots, count, children))


def _member_lists(node: OnnxNode) -> list[np.ndarray]:
    values = np.asarray(node.attribute("membership_values", ()), np.float32)
    return [p[~np.isnan(p)] for p in np.split(values, np.flatnonzero(np.isnan(values)))] if values.size else []


def _widest(node: OnnxNode) -> int:
    return max((len(m) for m in _member_lists(node)), default=1) or 1


def _members(node: OnnxNode, modes: np.ndarray) -> np.ndarray:
    result = np.full((len(modes), _widest(node)), np.nan, np.float32)
    for place, own in zip(np.flatnonzero(modes == _MEMBER), _member_lists(node), strict=False):
        result[place, :len(own)] = own
    return result


def _depth(node: OnnxNode, roots: np.ndarray, inner: int, children: list[np.ndarray]) -> int:
    """How many levels it takes until every path is at a leaf."""
    reached, depth = np.unique(roots), 0
    while (reached < inner).any():
        depth += 1
        if depth > inner:
            raise node.fault("the trees have a circle")
        reached = np.unique(np.concatenate([c[reached] for c in children]))
    return depth
