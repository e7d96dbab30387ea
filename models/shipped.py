"""The tensors that lie beside this file in ``data/``, as safetensors: read without unpickling, written as a whole."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..errors import DataError


def data_folder() -> Path:
    """The folder of the shipped weights and images."""
    return Path(str(files(__package__))) / "data"


def load_shipped(name: str, made_by: str) -> dict[str, Tensor]:
    """The tensors of a shipped file. DataError where it is missing or broken says that ``made_by`` writes it."""
    path = data_folder() / name
    hint = f"reinstall narrowcast, or write the file with `python -m narrowcast.models.{made_by}`"
    if not path.is_file():
        raise DataError("a file that narrowcast ships is missing", found=f"no {name} in {path.parent}", hint=hint)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError("a file that narrowcast ships is broken", found=f"{path}: {error}", hint=hint) from None


def write_atomically(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file so that ``path`` holds either what it held before or all of the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
