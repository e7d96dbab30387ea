"""The file a program is saved in: one file, every byte of it under a SHA-256.

Layout: a magic line, the manifest's SHA-256 and length as text, the manifest (JSON), then the parts one after
another in the manifest's order, nothing between or behind them. The manifest lists name, size and SHA-256 of every
part. Reading checks all of it before anything is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .errors import ProgramError

MAGIC = b"narrowcast program 1\n"
_HEADER = len(MAGIC) + 64 + 1 + 16 + 1  # magic, digest, space, length, newline
_MANIFEST_LIMIT = 1 << 24


def write_container(path: Path, parts: Mapping[str, bytes]) -> None:
    """Write ``parts`` to ``path``: to a temporary name in the same folder, then renamed.

    Raises ProgramError where the folder cannot be written.
    """
    manifest = json.dumps(
        {"parts": [{"name": n, "size": len(b), "sha256": hashlib.sha256(b).hexdigest()} for n, b in parts.items()]},
    ).encode()
    digest = hashlib.sha256(manifest).hexdigest().encode()
    header = MAGIC + digest + b" " + b"%016d" % len(manifest) + b"\n"
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ProgramError(
            f"the program cannot be saved to {path}",
            found=error.strerror,
            hint="choose a folder that exists and can be written",
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([header, manifest, *parts.values()])
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise ProgramError(f"the program cannot be saved to {path}", found=error.strerror) from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_container(path: Path) -> dict[str, bytes]:
    """The parts of the file at ``path``; ProgramError where it is missing, is none of ours, or one byte differs."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProgramError(f"the program {path} cannot be read", found=error.strerror) from error
    hint = "save the program again, or fetch an undamaged copy"
    if not data.startswith(MAGIC):
        raise ProgramError(
            f"{path} is not a narrowcast program",
            found=f"{len(data)} bytes starting {data[:12]!r}",
            expected="a file that Program.save wrote",
            hint=hint,
        )
    digest, _, length = data[len(MAGIC) : _HEADER - 1].partition(b" ")
    if (
        len(length) != 16
        or not length.isdigit()
        or data[_HEADER - 1 : _HEADER] != b"\n"
        or int(length) > _MANIFEST_LIMIT
    ):
        raise ProgramError(f"{path} is damaged: its header is unreadable", hint=hint)
    manifest = data[_HEADER : _HEADER + int(length)]
    if hashlib.sha256(manifest).hexdigest().encode() != digest:
        raise ProgramError(f"{path} is damaged: the manifest does not match its SHA-256", hint=hint)
    parts: dict[str, bytes] = {}
    position = _HEADER + int(length)
    for entry in json.loads(manifest)["parts"]:
        part = data[position : position + entry["size"]]
        if len(part) != entry["size"]:
            raise ProgramError(
                f"{path} is damaged: part '{entry['name']}' is cut short",
                found=f"{len(part)} bytes",
                expected=f"{entry['size']} bytes",
                hint=hint,
            )
        if hashlib.sha256(part).hexdigest() != entry["sha256"]:
            raise ProgramError(f"{path} is damaged: part '{entry['name']}' does not match its SHA-256", hint=hint)
        parts[entry["name"]] = part
        position += entry["size"]
    if position != len(data):
        raise ProgramError(f"{path} is damaged: {len(data) - position} bytes follow its end", hint=hint)
    return parts
