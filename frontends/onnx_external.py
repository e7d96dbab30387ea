"""Data of tensors that lie in other files: in the model's folder, and nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import TensorProto

from ..errors import ImportModelError
from .limits import MAX_SHARED, is_name, machine_memory


def with_external_data(tensor: TensorProto, folder: Path | None, where: str) -> TensorProto:
    """``tensor`` with its data read from the file that it names.

    Raises ImportModelError: the file is not in ``folder``, is reached by a link, or is shorter than the tensor says.
    """
    location, offset, length = _place(tensor, where)
    if folder is None:
        raise ImportModelError(f"{where} is in another file", found=location, hint="pass the path of the model's file")
    descriptor = _opened(folder, location, where)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        length = size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > size:
            raise ImportModelError(f"{where} lies beyond the end of its file", found=f"{offset} + {length} bytes",
                                   expected=f"at most {size}", hint=f"{location} may be truncated")
        file.seek(offset)
        raw = file.read(length)
    return TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=raw)


def check_external_data(tensors: Iterable[TensorProto], folder: Path | None) -> None:
    """Tensors in other files take no more memory than those files explain, nor than this machine has."""
    total, files = 0, {}
    for tensor in tensors:
        if tensor.data_location != TensorProto.EXTERNAL or folder is None:
            continue
        where = f"tensor {tensor.name}" if tensor.name else "a tensor"
        location, offset, length = _place(tensor, where)
        if location not in files:
            descriptor = _opened(folder, location, where)
            files[location] = os.fstat(descriptor).st_size
            os.close(descriptor)
        total += max(files[location] - offset, 0) if length is None else length
    if total > MAX_SHARED * sum(files.values()):
        raise ImportModelError("many tensors share the same external data", found=f"{total} bytes of tensors",
                               expected=f"at most {MAX_SHARED} times the {sum(files.values())} bytes of the files")
    if total > machine_memory():
        raise ImportModelError("the weights take more memory than this machine has", found=f"{total} bytes",
                               expected=f"at most {machine_memory()}")


def tensors_of(graph: onnx.GraphProto) -> list[TensorProto]:
    """The tensors of a graph: weights, those in attributes, and those of nested graphs."""
    found = list(graph.initializer)
    for attribute in (a for node in graph.node for a in node.attribute):
        found += [attribute.t] if attribute.type == onnx.AttributeProto.TENSOR else []
        nested = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
        found += [t for g in nested for t in tensors_of(g)]
    return found


def _place(tensor: TensorProto, where: str) -> tuple[str, int, int | None]:
    """The file, the offset and the length; None for all the rest of the file."""
    entries = {e.key: e.value for e in tensor.external_data if is_name(e.key)}
    unusable = [e.value[:40] for e in tensor.external_data if not is_name(e.value)]
    if unusable:
        raise ImportModelError(f"{where} has an unreadable place in its file", found=unusable)
    numbers = {key: entries[key] for key in ("offset", "length") if key in entries}
    if not all(text.isascii() and text.lstrip("-").isdecimal() and len(text) < 20 for text in numbers.values()):
        raise ImportModelError(f"{where} has an unreadable place in its file", found=numbers)
    length = int(numbers["length"]) if "length" in numbers else None
    return entries.get("location", ""), int(numbers.get("offset", 0)), length


def _opened(folder: Path, location: str, where: str) -> int:
    """A descriptor of the file ``location``: a relative path in ``folder`` without links, and a regular file."""
    parts = Path(location).parts
    hint = "external data must lie in the model's folder"
    if not location or Path(location).is_absolute() or ".." in parts or "\\" in location:
        raise ImportModelError(f"{where} names a file that is not allowed", found=location,
                               expected="a relative path without ..", hint=hint)
    place = folder
    try:
        for part in parts:
            place /= part
            if stat.S_ISLNK(os.lstat(place).st_mode):
                raise ImportModelError(f"{where} names a link", found=location, hint=f"{hint}, itself, not as a link")
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ImportModelError(f"{where} is in a file that does not exist or cannot be read",
                               found=f"{location}: {error.strerror}",
                               hint="copy it next to the model's file") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ImportModelError(f"{where} is in something that is not a file", found=location, hint=hint)
    return descriptor
