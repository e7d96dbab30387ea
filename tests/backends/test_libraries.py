"""The cache of compiled programs: what is kept, what is trusted, and what is not."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

import numpy as np
import pytest
import tvm

import narrowcast as nc
from narrowcast.backends import executable, libraries
from narrowcast.backends.libraries import SWITCH, LibraryCache, cache_folder, library_key
from narrowcast.backends.target import Target

TARGET = Target.parse("cpu", threads=1).tvm_target()
KEY = "0" * 64


def lowered(bias: float = 0.0, name: str = "layer") -> tvm.IRModule:
    """A lowered module with one kernel: ``y = x + bias``."""
    with tvm.script.ir_builder.IRBuilder() as builder, tvm.script.ir_builder.tirx.prim_func():
        T = tvm.script.ir_builder.tirx
        T.func_name(name)
        x, y = (T.arg(n, T.buffer((8,), "float32")) for n in ("x0", "y0"))
        with T.serial(0, 8) as i:
            T.buffer_store(y, x[i] + T.float32(bias), [i])
    return tvm.IRModule({name: builder.get().with_attr("global_symbol", name)})


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    kept = LibraryCache(tmp_path / "deep" / "libraries")
    assert kept.get(KEY) is None
    kept.put(KEY, b"machine code")
    assert kept.get(KEY) == b"machine code" and kept.get("1" * 64) is None
    assert os.listdir(kept.folder) == [KEY], "no temporary file is left"
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((kept.folder / KEY).stat().st_mode) == 0o600


def test_keys_tell_all_that_makes_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    key = library_key(lowered(), TARGET)
    assert key == library_key(lowered(), TARGET) and len(key) == 64
    others = {library_key(lowered(1e-9), TARGET), library_key(lowered(name="other"), TARGET),
              library_key(lowered(), Target.parse("cpu:haswell", 1).tvm_target())}
    for owner, name, value in ((libraries, "_backend_digest", lambda: "changed"), (tvm, "__version__", "99"),
                               (libraries.codegen, "llvm_version_major", lambda: 99)):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            others.add(library_key(lowered(), TARGET))
    assert len(others) == 6 and key not in others


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(path.read_bytes() + b"x"),
    lambda path: path.write_bytes(b""),
    lambda path: path.chmod(0o620),
    lambda path: path.chmod(0o602),
    lambda path: path.rename(path.with_name("moved")) and path.symlink_to("moved"),
    lambda path: (path.unlink(), path.mkdir()),
    lambda path: (path.unlink(), os.mkfifo(path)),
], ids=["short", "long", "empty", "of the group", "of all", "a link", "a folder", "a pipe"])
def test_files_that_are_damaged_or_not_the_users_alone_are_ignored(tmp_path: Path, damage: object) -> None:
    kept = LibraryCache(tmp_path / "libraries")
    kept.put(KEY, b"machine code")
    damage(kept.folder / KEY)  # type: ignore[operator]
    assert kept.get(KEY) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_folders_that_others_may_write_to_are_ignored(tmp_path: Path, mode: int) -> None:
    kept = LibraryCache(tmp_path / "libraries")
    kept.put(KEY, b"machine code")
    kept.folder.chmod(mode)
    with pytest.warns(UserWarning, match="are not used, because the folder is not this user's own"):
        assert kept.get(KEY) is None
    with pytest.warns(UserWarning, match="others may write to it"):
        kept.put("1" * 64, b"more")
    assert os.listdir(kept.folder) == [KEY]


def test_folders_of_others_and_links_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = LibraryCache(tmp_path / "libraries")
    kept.put(KEY, b"machine code")
    (tmp_path / "link").symlink_to("libraries")
    assert LibraryCache(tmp_path / "link").get(KEY) is None
    monkeypatch.setattr(os, "geteuid", lambda: kept.folder.stat().st_uid + 1)
    with pytest.warns(UserWarning, match="not this user's own"):
        assert kept.get(KEY) is None


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    kept = LibraryCache(tmp_path / "libraries", limit_bytes=3 * (32 + 100))
    for age, name in enumerate(("a", "b", "c")):
        kept.put(name, bytes(100))
        os.utime(kept.folder / name, (1e9 + age, 1e9 + age))
    assert kept.get("a") == bytes(100), "it is the last used now"
    kept.put("d", bytes(100))
    assert sorted(os.listdir(kept.folder)) == ["a", "c", "d"]


def test_a_folder_that_cannot_be_made_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = LibraryCache(tmp_path / "file" / "libraries")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept.put(KEY, b"machine code")
        assert kept.get(KEY) is None


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert LibraryCache.of_user() is None
    monkeypatch.delenv(SWITCH)
    assert LibraryCache.of_user() == LibraryCache(cache_folder() / "libraries")


def test_the_same_program_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built: list[tvm.IRModule] = []
    build = executable.build_executable
    monkeypatch.setattr(executable, "build_executable", lambda mod, target: built.append(mod) or build(mod, target))
    x = np.ones((2, 8), np.float32)
    for width, compilations in ((4, 1), (4, 1), (5, 2)):
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, width).eval()
        program = nc.compile(layer, example_inputs=(x,), num_threads=1)
        np.testing.assert_allclose(program(x), layer(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=1e-6)
        assert len(built) == compilations
    assert len(os.listdir(tmp_path / "narrowcast" / "libraries")) == 2
