"""Broken and hostile files: contents that are no model, and external data that leave the model's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from narrowcast.errors import ImportModelError
from narrowcast.frontends.onnx import import_onnx

from .building import model, node
from .limits import bounded


def _nested(depth: int) -> bytes:
    """A graph in an attribute of a node in a graph …, each by its field's tag and length."""
    content = b""
    for i in range(depth):
        tag = (b"\x32", b"\x2a", b"\x0a")[i % 3]  # AttributeProto.g, NodeProto.attribute, GraphProto.node
        content = tag + _varint(len(content)) + content
    return b"\x3a" + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    result = b""
    while value > 127:
        result, value = result + bytes([value & 127 | 128]), value >> 7
    return result + bytes([value])


CONTENTS = {
    "nothing": (b"", "no graph"),
    "noise": (b"\xff" * 64, "not an ONNX model"),
    "truncated": (model(node("Relu", "x")).SerializeToString()[:-5], "not an ONNX model"),
    "another format": (b"PK\x03\x04 zip archive", "not an ONNX model"),
    "a length of two gigabytes": (b"\x3a\xff\xff\xff\xff\x07" + b"\0" * 64, "not an ONNX model"),
    "a length that overflows": (b"\x3a" + b"\xff" * 9 + b"\x01" + b"\0" * 64, "not an ONNX model"),
    "a number that never ends": (b"\x08" + b"\xff" * 4096, "not an ONNX model"),
    "ten thousand nested messages": (_nested(9_999), "not an ONNX model"),
    "a pickle": (b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
                 "not an ONNX model|no graph"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_contents(tmp_path: Path, name: str) -> None:
    content, text = CONTENTS[name]
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with bounded(), pytest.raises(ImportModelError, match=text):
        import_onnx(path)


def test_places_that_are_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.onnx"):
        with pytest.raises(ImportModelError, match="does not exist"):
            import_onnx(path)
    os.mkfifo(tmp_path / "pipe.onnx")
    with bounded(), pytest.raises(ImportModelError, match="does not exist"):
        import_onnx(tmp_path / "pipe.onnx")
    with pytest.raises(ImportModelError, match="does not exist"):
        import_onnx("a\0b.onnx")


def test_a_file_larger_than_protobuf_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(2 ** 40)
    with bounded(), pytest.raises(ImportModelError, match="larger than an ONNX file can be"):
        import_onnx(path)


def test_objects_that_are_no_model() -> None:
    with pytest.raises(ImportModelError, match="not an ONNX model"):
        import_onnx(42)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with 24 bytes of data, links, a pipe and a folder; next to it what no model may read."""
    result = tmp_path / "model"
    (result / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"\0" * 24)
    (result / "data").write_bytes(b"\0" * 24)
    (result / "link").symlink_to(tmp_path / "secret")
    (result / "inner").symlink_to(result / "data")
    (result / "up").symlink_to(tmp_path)
    os.mkfifo(result / "pipe")
    with (result / "sparse").open("wb") as file:
        file.truncate(2 ** 42)
    return result


def _written(folder: Path, entries: dict[str, str], names: tuple[str, ...] = ("w",),
             change: Callable[[TensorProto], object] = lambda _: None) -> Path:
    result = model(*(node("Add", f"{'x' if i == 0 else f'a{i}'},{name}", f"a{i + 1}") for i, name in enumerate(names)),
                   node("Relu", f"a{len(names)}"))
    for name in names:
        tensor = TensorProto(name=name, dims=[2, 3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        change(tensor)
        result.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(result.SerializeToString())
    return path


PLACES = [
    ("/etc/hostname", {}, "not allowed"), ("../secret", {}, "not allowed"), ("a/../../secret", {}, "not allowed"),
    ("deep/../../secret", {}, "not allowed"), ("..\\secret", {}, "not allowed"), ("", {}, "not allowed"),
    ("gone", {}, "does not exist"), ("link", {}, "names a link"), ("inner", {}, "names a link"),
    ("up/secret", {}, "names a link"), ("deep", {}, "not a file"), ("pipe", {}, "not a file"),
    ("data/more", {}, "does not exist or cannot be read"), ("a" * 3000, {}, "cannot be read"),
    ("a" * 5000, {}, "unreadable place"), ("da\x1bta", {}, "unreadable place"),
    ("data", {"offset": "4", "length": "24"}, "beyond the end"), ("data", {"offset": "-8"}, "beyond the end"),
    ("data", {"offset": "9" * 19}, "beyond the end"), ("data", {"offset": "9" * 400}, "unreadable place"),
    ("data", {"length": "-24"}, "beyond the end"), ("data", {"offset": "much"}, "unreadable place"),
    ("data", {"offset": "1e1"}, "unreadable place"), ("data", {"offset": "٣"}, "unreadable place"),
    ("data", {"length": "20"}, "wrong length"), ("sparse", {}, "more memory than this machine has"),
]


@pytest.mark.parametrize(("location", "entries", "text"), PLACES)
def test_external_data_stays_in_the_folder(folder: Path, location: str, entries: dict[str, str], text: str) -> None:
    path = _written(folder, {"location": location, **entries})
    with bounded(), pytest.raises(ImportModelError, match=text):
        import_onnx(path)


def test_external_data_in_the_folder_is_read(folder: Path) -> None:
    (folder / "deep" / "weights").write_bytes(b"\0" * 8 + b"\0\0\x80\x3f" * 6)
    path = _written(folder, {"location": "deep/weights", "offset": "8", "length": "24"})
    assert len(import_onnx(path).mod["main"].body.blocks[0].bindings) == 3


def test_a_model_behind_a_link_reads_the_folder_that_it_is_named_in(folder: Path, tmp_path: Path) -> None:
    path = _written(folder, {"location": "secret"})
    (tmp_path / "m.onnx").symlink_to(path)
    assert import_onnx(tmp_path / "m.onnx").inputs[0].shape == (2, 3)


def test_external_data_needs_a_folder(folder: Path) -> None:
    proto = onnx.load(_written(folder, {"location": "data"}), load_external_data=False)
    with pytest.raises(ImportModelError, match="pass the path"):
        import_onnx(proto)


def test_the_same_data_as_many_tensors(folder: Path) -> None:
    path = _written(folder, {"location": "data"}, tuple(f"w{i}" for i in range(5)))
    with bounded(), pytest.raises(ImportModelError, match="share the same external data"):
        import_onnx(path)
    path = _written(folder, {"location": "data"}, tuple(f"w{i}" for i in range(4)))
    assert import_onnx(path).inputs[0].shape == (2, 3)


def test_external_data_of_a_type_that_is_refused_are_not_opened(folder: Path) -> None:
    path = _written(folder, {"location": "data"}, change=lambda t: setattr(t, "data_type", TensorProto.STRING))
    with bounded(), pytest.raises(ImportModelError, match="strings"):
        import_onnx(path)
