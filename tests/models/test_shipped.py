"""Reading and writing the shipped tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from narrowcast.errors import DataError
from narrowcast.models import shipped
from narrowcast.models.shipped import data_folder, load_shipped, write_atomically


def test_shipped_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in data_folder().iterdir()) < 15_000_000


def test_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shipped, "data_folder", lambda: tmp_path)
    with pytest.raises(DataError, match=r"no absent\.safetensors in (?s:.*)narrowcast\.models\.some_script"):
        load_shipped("absent.safetensors", made_by="some_script")


def test_broken_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shipped, "data_folder", lambda: tmp_path)
    write_atomically({"x": torch.ones(8)}, tmp_path / "x.safetensors")
    (tmp_path / "x.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:-4])
    with pytest.raises(DataError, match=r"is broken(?s:.*)x\.safetensors"):
        load_shipped("x.safetensors", made_by="some_script")


def test_channels_last_tensors_keep_their_values(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    write_atomically({"weight": weight}, tmp_path / "x.safetensors")
    assert torch.equal(load_file(tmp_path / "x.safetensors")["weight"], weight)


def test_write_atomically_keeps_the_old_file_on_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "weights.safetensors"
    write_atomically({"x": torch.ones(2)}, path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically({"x": torch.zeros(2)}, path)
    assert load_file(path)["x"].tolist() == [1, 1]
    assert [file.name for file in path.parent.iterdir()] == ["weights.safetensors"]
