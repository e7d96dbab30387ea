"""Compiled programs, kept in the user's cache folder so that compiling the same program again takes no code generation.

A shared library is kept under a SHA-256 of all that makes it: the lowered module, the target, the versions of TVM, LLVM
and the C library, and the text of narrowcast's back end. To load one is to run code. So the folder and every file in it
have to be the user's own and writable by nobody else, links are not followed, and a file with another SHA-256 than it
begins with is not used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tvm
import tvm_ffi
from tvm.target import codegen

# Setting this environment variable to 0 keeps programs out of the cache, and reads none.
SWITCH = "NARROWCAST_CACHE"
# Bytes of all kept libraries together; those that were not used for longest go.
LIMIT_BYTES = 256 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """What narrowcast keeps for this user: ``narrowcast`` in ``$XDG_CACHE_HOME``, or in ``~/.cache`` without it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "narrowcast"


def library_key(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """What the library of a lowered module is kept under: 64 hexadecimal digits. The structural hash covers what a
    module's text may round or abridge; the text covers names, which are in the library's messages."""
    parts = (f"{tvm_ffi.structural_hash(mod) & (2**64 - 1):016x}", mod.script(), str(target), tvm.__version__,
             str(codegen.llvm_version_major()), platform.machine(), *platform.libc_ver(), _backend_digest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _backend_digest() -> str:
    """A SHA-256 of the sources that turn a lowered module into machine code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class LibraryCache:
    """The libraries in a folder.

    folder : made, for the user alone, when the first library is kept.
    limit_bytes : of all libraries together.
    """

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    @classmethod
    def of_user(cls) -> LibraryCache | None:
        """The user's cache; None where it is switched off."""
        return None if os.environ.get(SWITCH) == "0" else cls(cache_folder() / "libraries")

    def get(self, key: str) -> bytes | None:
        """The library kept under ``key``; None where there is none, or none that can be trusted and is whole."""
        with self._opened() as folder:
            if folder is None:
                return None
            try:
                content = _read(key, folder)
                os.utime(key, dir_fd=folder, follow_symlinks=False)
            except OSError:
                return None
        digest, library = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return library if hashlib.sha256(library).digest() == digest else None

    def put(self, key: str, library: bytes) -> None:
        """Keep a library; without effect where the folder cannot be written, or is not the user's own."""
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._opened() as folder:
            if folder is None:
                return
            with suppress(OSError):
                name = f"{key}.{secrets.token_hex(8)}"
                handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                try:
                    with open(handle, "wb") as file:
                        file.write(hashlib.sha256(library).digest() + library)
                    os.replace(name, key, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    os.unlink(name, dir_fd=folder)
                    raise
                self._make_room(folder)

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """A descriptor of the folder; None where there is none, or where others may write to it."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            yield None
            return
        try:
            trusted = _is_private(os.fstat(folder))
            if not trusted:
                warnings.warn(f"compiled programs in {self.folder} are not used, because the folder is not this user's "
                              "own or others may write to it", stacklevel=4)
            yield folder if trusted else None
        finally:
            os.close(folder)

    def _make_room(self, folder: int) -> None:
        """Remove what was not used for longest until the rest fits."""
        with os.scandir(folder) as entries:
            kept = sorted(((e.stat(follow_symlinks=False), e.name) for e in entries),
                          key=lambda entry: entry[0].st_mtime_ns, reverse=True)
        total = 0
        for status, name in kept:
            total += status.st_size
            if total > self.limit_bytes:
                os.unlink(name, dir_fd=folder)


def _read(name: str, folder: int) -> bytes:
    """The content of a file; nothing where it is no plain file, or not the user's own."""
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            return b""
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _is_private(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
