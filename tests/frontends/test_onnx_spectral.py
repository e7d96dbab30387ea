"""Fourier transforms, filters, resizing by matrices, trees, n-grams and optimizers against NumPy and ONNX's
reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from narrowcast.errors import ImportModelError
from narrowcast.frontends.onnx import import_onnx

from .onnx_models import EPS, computed, ints, model, node, noise


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return computed(import_onnx(proto), feeds)


def close(found: np.ndarray, wanted: np.ndarray, terms: int) -> None:
    """Within the rounding of sums of ``terms`` products of numbers of about 1."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * EPS * terms)


def pairs(values: np.ndarray) -> np.ndarray:
    return np.stack([values.real, values.imag], -1)


@settings(max_examples=16, deadline=None)
@given(st.integers(1, 20), st.integers(1, 24), st.sampled_from([1, 2]), st.booleans(), st.booleans(),
       st.sampled_from([1, -3]))
def test_transforms(length: int, size: int, parts: int, inverse: bool, onesided: bool, axis: int) -> None:
    if inverse and onesided and parts == 1:
        parts = 2
    x = noise(2, length, 3, parts)
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    if inverse and onesided:
        wanted = np.fft.irfft(signal, size, axis=1)[..., None]
    elif inverse:
        wanted = pairs(np.fft.ifft(signal, size, axis=1))
    else:
        full = np.fft.fft(signal, size, axis=1)
        wanted = pairs(full[:, :size // 2 + 1] if onesided else full)
    proto = model([node("DFT", "x,size,axis", inverse=int(inverse), onesided=int(onesided))], {"x": x.shape},
                  initializers={"size": np.asarray(size), "axis": np.asarray(axis)})
    close(run(proto, {"x": x})[0], wanted, terms=2 * length * 4)


def test_the_length_is_that_of_the_signal_by_default() -> None:
    x = noise(2, 9, 1)
    proto = model([node("DFT", "x", axis=1)], {"x": x.shape}, opset=17)
    close(run(proto, {"x": x})[0], pairs(np.fft.fft(x[..., 0])), terms=36)
    back = model([node("DFT", "x,,axis", inverse=1, onesided=1)], {"x": [2, 9, 2]}, initializers={"axis": ints(1)[0]})
    y = noise(2, 9, 2)
    close(run(back, {"x": y})[0], np.fft.irfft(y[..., 0] + 1j * y[..., 1], 16)[..., None], terms=36)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames(known: bool, onesided: int) -> None:
    x, window = noise(2, 50), np.hanning(16).astype(np.float32)
    values = {"step": np.asarray(6), "window": window}
    proto = model([node("STFT", "x,step,window", onesided=onesided)],
                  {"x": [2, 50, 1]} | ({} if known else {"window": window.shape}),
                  initializers=values if known else {"step": values["step"]})
    frames = np.stack([x[:, i:i + 16] for i in range(0, 35, 6)], 1) * window
    wanted = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    feeds = {"x": x[..., None]} | ({} if known else {"window": window})
    close(run(proto, feeds)[0], pairs(wanted), terms=64)


def test_frames_longer_than_the_signal_are_refused() -> None:
    proto = model([node("STFT", "x,step,,size")], {"x": [1, 8, 1]},
                  initializers={"step": np.asarray(2), "size": np.asarray(9)})
    with pytest.raises(ImportModelError, match="the frames do not fit"):
        import_onnx(proto)


@pytest.mark.parametrize(("bins", "size", "rate", "low", "high"), [
    (8, 16, 8192, 0.0, 4096.0), (4, 64, 16000, 20.0, 8000.0)])
def test_mel_filters(bins: int, size: int, rate: int, low: float, high: float) -> None:
    given = [np.asarray(v, t) for v, t in ((bins, np.int64), (size, np.int64), (rate, np.int64), (low, np.float32),
                                           (high, np.float32))]
    names = [f"c{i}" for i in range(5)]
    filters = node("MelWeightMatrix", ",".join(names), "m")
    proto = model([filters, node("MatMul", "x,m")], {"x": [2, size // 2 + 1]},
                  initializers=dict(zip(names, given, strict=True)))
    x = noise(2, size // 2 + 1)
    (matrix,) = ReferenceEvaluator(filters).run(None, dict(zip(names, given, strict=True)))
    close(run(proto, {"x": x})[0], x @ matrix, terms=size)


@settings(max_examples=16, deadline=None)
@given(st.sampled_from(["linear", "cubic"]), st.integers(2, 12), st.integers(1, 12))
def test_resizing_with_antialias_is_pytorchs(mode: str, source: int, target: int) -> None:
    x = noise(1, 2, source, 5)
    proto = model([node("Resize", "x,,,sizes", mode=mode, antialias=1, cubic_coeff_a=-0.5, exclude_outside=1)],
                  {"x": x.shape}, initializers={"sizes": ints(1, 2, target, 5)})
    wanted = functional.interpolate(torch.from_numpy(x), (target, 5), mode="bi" + mode, antialias=True)
    if target < source:  # PyTorch's coefficient without antialias is another one.
        close(run(proto, {"x": x})[0], wanted.numpy(), terms=32)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(mode: str) -> None:
    x = noise(1, 1, 6, 7)
    resize = node("Resize", "x,roi,,sizes", mode=mode, coordinate_transformation_mode="tf_crop_and_resize",
                  extrapolation_value=9.0, axes=[2, 3])
    values = {"roi": np.array([0.2, -0.1, 0.9, 1.2], np.float32), "sizes": ints(4, 5)}
    (wanted,) = ReferenceEvaluator(model([resize], {"x": x.shape}, initializers=values)).run(None, {"x": x})
    assert (wanted == 9).any() and (wanted != 9).any()
    close(run(model([resize], {"x": x.shape}, initializers=values), {"x": x})[0], wanted, terms=16)


def test_reversed_sequences_of_lengths_that_only_running_tells() -> None:
    x, lengths = noise(4, 3, 2), ints(1, 4, 0)
    proto = model([node("ReverseSequence", "x,lengths")], {"x": x.shape, "lengths": ("int64", [3])})
    wanted = x.copy()
    for sample, n in enumerate(lengths):
        wanted[:n, sample] = x[:n, sample][::-1]
    np.testing.assert_array_equal(run(proto, {"x": x, "lengths": lengths})[0], wanted)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["TF", "IDF", "TFIDF"]), st.integers(0, 3), st.integers(1, 3))
def test_ngrams(seed: int, mode: str, skips: int, least: int) -> None:
    x = np.random.default_rng(seed).integers(0, 4, (3, 9))
    attributes = {"mode": mode, "min_gram_length": least, "max_gram_length": 3, "max_skip_count": skips,
                  "ngram_counts": [0, 2, 8], "ngram_indexes": [3, 0, 1, 2, 4, 5],
                  "pool_int64s": [1, 2, 0, 1, 1, 1, 2, 3, 1, 2, 1], "weights": [1.0, 2.0, 0.5, 3.0, 1.5, 0.25]}
    count = node("TfIdfVectorizer", "x", **attributes)
    proto = model([count], {"x": ("int64", x.shape)})
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(run(proto, {"x": x})[0], wanted)


def trees(**changes: object) -> onnx.ModelProto:
    """Two trees over two features: one of three leaves, one that tests membership."""
    floats = numpy_helper.from_array
    attributes: dict[str, object] = {
        "n_targets": 2, "tree_roots": [0, 2], "nodes_featureids": [0, 1, 1],
        "nodes_splits": floats(np.array([0.5, -1.0, 0.0], np.float32), "s"),
        "nodes_modes": floats(np.array([0, 3, 6], np.uint8), "m"),
        "membership_values": floats(np.array([1.0, 2.0, np.nan], np.float32), "v"),
        "nodes_truenodeids": [1, 0, 3], "nodes_trueleafs": [0, 1, 1], "nodes_falsenodeids": [2, 1, 4],
        "nodes_falseleafs": [1, 1, 1], "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": floats(np.array([1, 2, 3, 4, 5], np.float32), "w"), **changes}
    tree = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    proto = model([tree], {"x": [4, 2]})
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 5))
    return proto


def test_trees() -> None:
    x = np.array([[0.5, 0.0], [0.4, -2.0], [0.6, 2.0], [0.6, 1.5]], np.float32)
    found = run(trees(), {"x": x})[0]
    # Tree 1: x0 <= 0.5 and x1 > -1 gives leaf 0, else leaf 1 or 2; tree 2: x1 in {1, 2} gives leaf 3, else 4.
    np.testing.assert_array_equal(found, [[6, 0], [5, 2], [3, 4], [8, 0]])
    averaged = run(trees(aggregate_function=0), {"x": x})[0]
    np.testing.assert_array_equal(averaged, found / 2)


def test_trees_with_a_circle_are_refused() -> None:
    with pytest.raises(ImportModelError, match="the trees have a circle"):
        import_onnx(trees(nodes_truenodeids=[0, 0, 3]))
    with pytest.raises(ImportModelError, match="a branch leads nowhere"):
        import_onnx(trees(nodes_falsenodeids=[9, 1, 4]))


@pytest.mark.parametrize("largest", [0, 1])
def test_ranking_of_large_unsigned_numbers(largest: int) -> None:
    x = np.array([[3, 2**63 + 1, 2**64 - 1, 0, 2**63 - 1]], np.uint64)
    top = helper.make_node("TopK", ["x", "k"], ["y", "i"], largest=largest)
    graph = helper.make_graph([top], "g", [helper.make_tensor_value_info("x", onnx.TensorProto.UINT64, [1, 5])],
                              [onnx.ValueInfoProto(name=n) for n in ("y", "i")],
                              [numpy_helper.from_array(ints(3), "k")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    values, places = run(proto, {"x": x})
    order = np.argsort(x[0], kind="stable")[::-1 if largest else 1][:3]
    np.testing.assert_array_equal(places[0], order)
    np.testing.assert_array_equal(values.view(np.uint64)[0], x[0][order])
