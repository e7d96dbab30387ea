"""Attention and normalizations of ONNX Runtime's own domain give its results."""

from __future__ import annotations

import numpy as np
import pytest

from narrowcast.errors import UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx

from .bindings import operations
from .contributed import Array, check, model

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_skip_layer_normalization() -> None:
    check("SkipLayerNormalization", [normal(2, 3, 9), normal(3, 9), normal(9), normal(9), normal(9)], (2, 3, 4))
    check("SkipSimplifiedLayerNormalization", [normal(2, 3, 9), normal(2, 3, 9), normal(9), normal(9)], (2, 3))


@pytest.mark.parametrize("masked, placed, segmented", [(True, False, True), (False, True, True), (True, True, False)])
def test_embed_layer_normalization(masked: bool, placed: bool, segmented: bool) -> None:
    ids = [RNG.integers(0, n, (2, 5)).astype(np.int32) for n in (11, 3, 2, 7)]
    inputs: list[Array] = [ids[0], ids[1] if segmented else None, normal(11, 6), normal(7, 6),
                           normal(3, 6) if segmented else None, normal(6), normal(6), ids[2] if masked else None]
    inputs += [ids[3]] if placed else []
    check("EmbedLayerNormalization", inputs, tuple(i for i in (2, 3, 4, 5, 6) if inputs[i] is not None), outputs=2)


MASKS = {
    "none": None, "keys": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], np.int32),
    "queries": (RNG.random((2, 5, 5)) < 0.7).astype(np.int32) | np.eye(5, dtype=np.int32),
    "lengths": np.array([3, 5], np.int32), "ends and starts": np.array([5, 4, 1, 0], np.int32),
}


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask: str, unidirectional: int) -> None:
    inputs: list[Array] = [normal(2, 5, 6), normal(6, 36), normal(36), MASKS[mask]]
    check("Attention", inputs[:3] if MASKS[mask] is None else inputs, (1, 2), num_heads=3,
          unidirectional=unidirectional)


def test_attention_with_a_cache_or_a_bias() -> None:
    check("Attention", [normal(2, 3, 6), normal(6, 36), normal(36), None, normal(2, 2, 3, 4, 4)], (1, 2), outputs=2,
          num_heads=3, unidirectional=1)
    check("Attention", [normal(2, 3, 6), normal(6, 36), normal(36), None, None, normal(1, 3, 3, 3)], (1, 2),
          num_heads=3)


def test_attention_with_other_values() -> None:
    check("Attention", [normal(2, 5, 6), normal(6, 12 + 12 + 21), normal(45)], (1, 2), num_heads=3,
          qkv_hidden_sizes=[12, 12, 21], scale=0.3)


def test_quantized_attention() -> None:
    x = RNG.integers(0, 256, (2, 5, 6)).astype(np.uint8)
    w = RNG.integers(-127, 128, (6, 36)).astype(np.int8)
    inputs: list[Array] = [x, w, normal(36), np.array(0.02, np.float32), np.array(0.01, np.float32), MASKS["lengths"],
                           np.array(120, np.uint8), np.array(0, np.int8)]
    check("QAttention", inputs, (1, 2, 3, 4, 6, 7), num_heads=3, tolerance=1e-4)


@pytest.mark.parametrize("mask", ["none", "keys", "lengths"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_multi_head_attention(mask: str, with_bias: bool) -> None:
    inputs: list[Array] = [normal(2, 4, 12), normal(2, 5, 12), normal(2, 5, 12), normal(36) if with_bias else None,
                           MASKS[mask], normal(2, 1, 4, 5)]
    check("MultiHeadAttention", inputs, (3,) if with_bias else (), num_heads=3)


def test_multi_head_attention_with_a_cache() -> None:
    check("MultiHeadAttention", [normal(2, 4, 12), normal(2, 4, 12), normal(2, 4, 12), None, None, None,
                                 normal(2, 3, 5, 4), normal(2, 3, 5, 4)], outputs=3, num_heads=3, unidirectional=1)


def test_multi_head_attention_on_split_keys() -> None:
    check("MultiHeadAttention", [normal(2, 4, 12), normal(2, 3, 5, 4), normal(2, 3, 5, 4)], num_heads=3)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["start", "stated", "split", "partial"])
def test_rotary_embedding(form: str, interleaved: int) -> None:
    places = np.array([2]) if form == "start" else np.array([[0, 3, 1, 2], [4, 5, 6, 0]])
    x = normal(2, 3, 4, 8) if form == "split" else normal(2, 4, 24)
    half = 2 if form == "partial" else 4
    extra = {"num_heads": 3, "rotary_embedding_dim": 4} if form == "partial" else {}
    check("RotaryEmbedding", [x, places, normal(9, half), normal(9, half)], (2, 3), interleaved=interleaved, **extra)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [-1, 2])
def test_group_query_attention_of_a_prompt(rotary: int, packed: bool, window: int) -> None:
    q, k, v = normal(2, 5, 64), normal(2, 5, 32), normal(2, 5, 32)
    data: list[Array] = [np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]
    inputs = [*data, None, None, np.array([4, 4], np.int32), np.array(5, np.int32),
              *([normal(9, 8), normal(9, 8)] if rotary else [])]
    check("GroupQueryAttention", inputs, (6, *((7, 8) if rotary else ())), outputs=3, num_heads=4, kv_num_heads=2,
          do_rotary=rotary, local_window_size=window)


@pytest.mark.parametrize("steps", [1, 3])
def test_group_query_attention_with_a_cache(steps: int) -> None:
    past, total = 4, 4 + steps
    inputs = [normal(1, steps, 64), normal(1, steps, 32), normal(1, steps, 32), normal(1, 2, past, 16),
              normal(1, 2, past, 16), np.array([total - 1], np.int32), np.array(total, np.int32), normal(9, 8),
              normal(9, 8)]
    check("GroupQueryAttention", inputs, (6, 7, 8), outputs=3, num_heads=4, kv_num_heads=2, do_rotary=1)


def test_attention_becomes_the_preferred_form() -> None:
    inputs = [normal(2, 5, 6), normal(6, 36), normal(36)]
    imported = import_onnx(model("Attention", inputs, (1, 2), num_heads=3), inputs[:1])
    assert "relax.nn.attention" in operations(imported)


def test_caches_of_several_sequences_are_refused() -> None:
    inputs = [normal(2, 1, 32), normal(2, 1, 16), normal(2, 1, 16), normal(2, 2, 4, 8), normal(2, 2, 4, 8),
              np.array([4, 4], np.int32), np.array(5, np.int32)]
    with pytest.raises(UnsupportedOperatorError, match="lengths may differ"):
        import_onnx(model("GroupQueryAttention", inputs, num_heads=4, kv_num_heads=2), inputs)
