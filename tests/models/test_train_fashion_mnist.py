"""The pieces of the training script, and the script on a handful of synthetic images."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from narrowcast.errors import DataError
from narrowcast.models import fashion_mnist, shipped, train_fashion_mnist
from narrowcast.models.train_fashion_mnist import (
    SHIFT,
    augment,
    balanced_subset,
    make_optimizer,
    read_idx,
    train_step,
)


def write_idx(path: Path, tensor: Tensor) -> None:
    header = bytes([0, 0, 8, tensor.ndim]) + struct.pack(f">{tensor.ndim}I", *tensor.shape)
    path.write_bytes(gzip.compress(header + tensor.numpy().tobytes()))


def random_images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8)
    return pixels, torch.arange(count, dtype=torch.uint8) % 10


def test_read_idx_round_trip(tmp_path: Path) -> None:
    pixels, _ = random_images(3)
    write_idx(tmp_path / "images.gz", pixels)
    assert torch.equal(read_idx(tmp_path / "images.gz"), pixels)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", "not an IDX file"), (b"", "not an IDX file"),
     (b"\x00\x00\x08\x01\x00\x00\x00\x05\x00", "truncated")],
)
def test_read_idx_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "broken.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "broken.gz")


def test_read_idx_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.gz(?s:.*)apt-get install dataset-fashion-mnist"):
        read_idx(tmp_path / "absent.gz")


def test_augment_moves_a_pixel_by_at_most_the_shift() -> None:
    pixels = torch.zeros(200, 28, 28, dtype=torch.uint8)
    pixels[:, 10, 5] = 9
    moved = augment(pixels, torch.Generator().manual_seed(0))
    index, rows, columns = moved.nonzero().unbind(1)
    assert index.tolist() == list(range(200))
    assert (moved[index, rows, columns] == 9).all()
    assert set(rows.tolist()) == set(range(10 - SHIFT, 10 + SHIFT + 1))
    plain, mirrored = range(5 - SHIFT, 5 + SHIFT + 1), range(22 - SHIFT, 22 + SHIFT + 1)
    assert set(columns.tolist()) == {*plain, *mirrored}


def test_balanced_subset_has_each_class_alike() -> None:
    labels = torch.randint(0, 10, (1000,), generator=torch.Generator().manual_seed(1))
    chosen = balanced_subset(labels, per_class=20, seed=0)
    assert torch.bincount(labels[chosen]).tolist() == [20] * 10
    assert len(chosen.unique()) == 200
    assert torch.equal(chosen, balanced_subset(labels, per_class=20, seed=0))
    assert not torch.equal(chosen, balanced_subset(labels, per_class=20, seed=1))


def test_one_step_lowers_the_loss() -> None:
    torch.manual_seed(0)
    pixels, labels = random_images(20)
    images = fashion_mnist.normalize(pixels)
    model = fashion_mnist.FashionNet()
    optimizer = make_optimizer(model)
    before = train_step(model, optimizer, images, labels.long())
    after = train_step(model, optimizer, images, labels.long())
    assert after < before


def test_weight_decay_spares_biases_and_norms() -> None:
    model = fashion_mnist.FashionNet()
    decayed, others = make_optimizer(model).param_groups
    assert decayed["weight_decay"] > 0 and all(p.ndim > 1 for p in decayed["params"])
    assert others["weight_decay"] == 0 and all(p.ndim == 1 for p in others["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_script_writes_files_that_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for prefix, count in (("train", 1300), ("t10k", 500)):
        pixels, labels = random_images(count)
        write_idx(data / f"{prefix}-images-idx3-ubyte.gz", pixels)
        write_idx(data / f"{prefix}-labels-idx1-ubyte.gz", labels)
    threads = torch.get_num_threads()
    try:
        result = CliRunner().invoke(
            train_fashion_mnist.main, ["--data", str(data), "--out", str(out), "--epochs", "1"], catch_exceptions=False
        )
    finally:
        torch.set_num_threads(threads)
    assert result.exit_code == 0 and "epoch 1/1" in result.output
    monkeypatch.setattr(shipped, "data_folder", lambda: out)
    assert fashion_mnist.load()(fashion_mnist.test_data()[0][:2]).shape == (2, 10)
    assert torch.bincount(fashion_mnist.calibration_data()[1]).tolist() == [100] * 10
