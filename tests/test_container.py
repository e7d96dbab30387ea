"""The container: round trip, atomic writing, and every flipped byte refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from narrowcast.container import MAGIC, read_container, write_container
from narrowcast.errors import ProgramError

PARTS = {"a.json": b'{"x": 1}', "empty": b"", "b.bin": bytes(range(64))}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "net.ncast"
    write_container(path, PARTS)
    return path


def test_round_trip_keeps_parts_and_order(saved: Path) -> None:
    assert list(read_container(saved).items()) == list(PARTS.items())


def test_every_flipped_bit_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    for position in range(len(data)):
        for bit in (0, 5, 7):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            saved.write_bytes(flipped)
            with pytest.raises(ProgramError, match=r"damaged|not a narrowcast program"):
                read_container(saved)


@pytest.mark.parametrize("cut", [0, 5, len(MAGIC) + 10, -1])
def test_truncation_is_refused(saved: Path, cut: int) -> None:
    saved.write_bytes(saved.read_bytes()[:cut])
    with pytest.raises(ProgramError):
        read_container(saved)


def test_bytes_behind_the_end_are_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"x")
    with pytest.raises(ProgramError, match="1 bytes follow its end"):
        read_container(saved)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"none\.ncast cannot be read"):
        read_container(tmp_path / "none.ncast")


def test_failed_save_keeps_the_old_file_and_leaves_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ProgramError, match="No space left"):
        write_container(saved, {"other": b"1"})
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_missing_folder_is_a_program_error(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="cannot be saved"):
        write_container(tmp_path / "nowhere" / "net.ncast", PARTS)
