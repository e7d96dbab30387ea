"""Train the Fashion-MNIST network and write the files that ``fashion_mnist`` loads.

    apt-get install dataset-fashion-mnist
    python -m narrowcast.models.train_fashion_mnist --data /usr/share/datasets/fashion-mnist

SGD with Nesterov momentum under a one-cycle schedule (Smith and Topin, 2017), random shifts by up to two pixels and
random mirror images. Seeded: the same machine and number of threads give the same weights. About 80 seconds an epoch on
one core.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from ..errors import DataError
from .fashion_mnist import CALIBRATION_IMAGES, CLASSES, TEST_IMAGES, WEIGHTS, FashionNet, normalize
from .shipped import data_folder, write_atomically

SHIFT = 2
"""Largest random shift of a training image, in pixels."""


def read_idx(path: Path) -> Tensor:
    """The tensor uint8 of a gzipped IDX file (LeCun's format: magic 0, 0, 8 for uint8, rank, sizes, data)."""
    if not path.is_file():
        raise DataError(
            "a file of Fashion-MNIST is missing", found=f"no {path}",
            hint="apt-get install dataset-fashion-mnist, and pass the folder of its idx.gz files",
        )
    raw = gzip.decompress(path.read_bytes())
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError("not an IDX file of bytes", found=f"{path} starts with {raw[:4]!r}", expected="00 00 08")
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", rank, 4).astype(int)
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * rank)
    if data.size != shape.prod():
        raise DataError("a truncated IDX file", found=f"{data.size} bytes in {path}", expected=f"{shape.prod()}")
    return torch.from_numpy(data.reshape(shape).copy())


def read_split(folder: Path, prefix: str) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 28, 28] and labels uint8 [N] of the split named ``train`` or ``t10k``."""
    return read_idx(folder / f"{prefix}-images-idx3-ubyte.gz"), read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Each image uint8 [N, 28, 28] shifted by up to ``SHIFT`` pixels a side, zeros moving in; half of them mirrored."""
    count, height, width = pixels.shape
    shifts = torch.randint(0, 2 * SHIFT + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored, columns.flip(1), columns) + shifts[1]
    rows = torch.arange(height).expand(count, height) + shifts[0]
    padded = functional.pad(pixels, (SHIFT, SHIFT, SHIFT, SHIFT))
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def balanced_subset(labels: Tensor, per_class: int, seed: int) -> Tensor:
    """Indices int64, in ascending order, of ``per_class`` random samples of each class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen = [order[labels[order] == label][:per_class] for label in range(len(CLASSES))]
    return torch.cat(chosen).sort().values


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """One step on images float32 [N, 1, 28, 28] and labels int64 [N]; the cross-entropy before the step."""
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def make_optimizer(model: nn.Module) -> torch.optim.SGD:
    """SGD with Nesterov momentum; weight decay on matrices and kernels only."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)


def train(
    pixels: Tensor, labels: Tensor, epochs: int, seed: int, batch: int = 128
) -> Iterator[tuple[nn.Module, float]]:
    """Train on pixels uint8 [N, 28, 28] and labels [N]; yields the model and the mean loss after every epoch."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = FashionNet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = make_optimizer(model)
    steps = len(pixels) // batch
    schedule = OneCycleLR(optimizer, max_lr=0.15, epochs=epochs, steps_per_epoch=steps, pct_start=0.25)
    for _ in range(epochs):
        model.train()
        order = torch.randperm(len(pixels), generator=generator)
        losses = []
        for chosen in order[: steps * batch].split(batch):
            images = normalize(augment(pixels[chosen], generator)).contiguous(memory_format=torch.channels_last)
            losses.append(train_step(model, optimizer, images, labels[chosen].long()))
            schedule.step()
        yield model, float(np.mean(losses))


def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor, batch: int = 500) -> float:
    """Share of the images uint8 [N, 28, 28] whose largest logit is the label's."""
    model.eval()
    with torch.inference_mode():
        hits = [
            (model(normalize(images)).argmax(1) == truth).sum().item()
            for images, truth in zip(pixels.split(batch), labels.split(batch), strict=True)
        ]
    return sum(hits) / len(pixels)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True,
              help="Folder of the four idx.gz files of Fashion-MNIST.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=data_folder(), show_default=True,
              help="Folder to write to.")
@click.option("--epochs", default=10, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", default=1, show_default=True, help="PyTorch's threads.")
def main(data: Path, out: Path, epochs: int, seed: int, threads: int) -> None:
    """Train the Fashion-MNIST network; write its weights, the test split and a calibration set."""
    torch.set_num_threads(threads)
    pixels, labels = read_split(data, "train")
    test_pixels, test_labels = read_split(data, "t10k")
    chosen = balanced_subset(labels, per_class=100, seed=seed)
    write_atomically({"images": test_pixels, "labels": test_labels}, out / TEST_IMAGES)
    write_atomically({"images": pixels[chosen], "labels": labels[chosen]}, out / CALIBRATION_IMAGES)
    start = time.monotonic()
    for epoch, (model, loss) in enumerate(train(pixels, labels, epochs, seed), start=1):
        click.echo(f"epoch {epoch}/{epochs}  loss {loss:.4f}  test {accuracy(model, test_pixels, test_labels):.4f}  "
                   f"{time.monotonic() - start:.0f} s", color=False)
        write_atomically(model.state_dict(), out / WEIGHTS)


if __name__ == "__main__":
    main()
