"""ONNX's Attention against its own reference, and the form that it takes here."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from narrowcast.errors import ImportModelError
from narrowcast.frontends.onnx import import_onnx

from .bindings import operations
from .onnx_models import EPS, computed, model, node, noise

PACKED = {"q_num_heads": 4, "kv_num_heads": 2}


def inputs(**extra: np.ndarray) -> dict[str, np.ndarray]:
    """Packed sequences: five queries of four heads, seven keys of two."""
    return {"q": noise(2, 5, 32), "k": noise(2, 7, 16, seed=1), "v": noise(2, 7, 12, seed=2), **extra}


def proto_of(feeds: dict[str, np.ndarray], names: str, outputs: str = "y", **attributes: object) -> onnx.ModelProto:
    return model([node("Attention", names, outputs, **attributes)],
                 {n: (str(a.dtype), a.shape) for n, a in feeds.items()}, outputs, opset=24)


def check(feeds: dict[str, np.ndarray], names: str, outputs: str = "y", **attributes: object) -> list[str]:
    """Compare with ONNX's reference; the operators that the node became."""
    proto = proto_of(feeds, names, outputs, **attributes)
    imported = import_onnx(proto)
    for found, wanted in zip(computed(imported, feeds), ReferenceEvaluator(proto).run(None, feeds), strict=True):
        # Scores are sums of 8 products of about 1; a softmax of 7 keys and a mean of values of at most 4 follow.
        np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * EPS * (8 + 7) * 4)
    return operations(imported)


def test_plain() -> None:
    found = check(inputs(), "q,k,v", **PACKED)
    assert "relax.nn.attention" in found and "relax.nn.softmax" not in found


@pytest.mark.parametrize("causal", [0, 1])
def test_masks(causal: int) -> None:
    """Booleans, floats with infinities, and masks shorter than the keys; queries that see nothing get zeros."""
    visible = np.random.default_rng(3).random((5, 7)) < 0.6
    visible[2] = False
    floats = np.where(visible, noise(5, 7, seed=4), -np.inf).astype(np.float32)
    for mask in (visible, floats, np.broadcast_to(visible, (2, 4, 5, 7)).copy(), visible[:, :4].copy()):
        found = check(inputs(mask=mask), "q,k,v,mask", is_causal=causal, **PACKED)
        assert "relax.nn.attention_bias" in found


def test_caches() -> None:
    feeds = inputs(past_k=noise(2, 2, 3, 8, seed=5), past_v=noise(2, 2, 3, 6, seed=6))
    found = check(feeds, "q,k,v,,past_k,past_v", "y,present_k,present_v", is_causal=1, **PACKED)
    assert "relax.nn.attention_bias" in found


def test_heads_apart() -> None:
    feeds = {"q": noise(2, 3, 5, 8), "k": noise(2, 3, 7, 8, seed=1), "v": noise(2, 3, 7, 4, seed=2)}
    check(feeds, "q,k,v", scale=0.3)


@pytest.mark.parametrize("attributes", [{"softcap": 2.0}, {"qk_matmul_output_mode": 1}])
def test_other_forms_are_those_of_onnx(attributes: dict[str, object]) -> None:
    outputs = ("y,,,scores", "y,scores") if "qk_matmul_output_mode" in attributes else ("y", "y")
    proto = model([node("Attention", "q,k,v", outputs[0], **PACKED, **attributes)],
                  {n: a.shape for n, a in inputs().items()}, outputs[1], opset=24)
    imported = import_onnx(proto)
    assert not any("attention" in name for name in operations(imported))
    for found, wanted in zip(computed(imported, inputs()), ReferenceEvaluator(proto).run(None, inputs()), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * EPS * 60)


def test_symbolic_extents() -> None:
    proto = model([node("Attention", "q,k,v", is_causal=1, q_num_heads=4, kv_num_heads=4)],
                  {n: ["batch", "steps", 32] for n in "qkv"}, opset=24)
    imported = import_onnx(proto)
    for batch, steps in ((1, 1), (2, 6)):
        feeds = {n: noise(batch, steps, 32, seed=i) for i, n in enumerate("qkv")}
        (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
        np.testing.assert_allclose(computed(imported, feeds)[0], wanted, rtol=0, atol=8 * EPS * 60)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ImportModelError, match="the heads do not divide"):
        import_onnx(proto_of(inputs(), "q,k,v", q_num_heads=3, kv_num_heads=2))
