"""Fuzz target: models with wrong values in right places (``fuzz.mutations``) → import → compile.

    python -m fuzz.onnx_models build/fuzz/models -max_total_time=1800
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import atheris
import onnx
from google.protobuf.message import DecodeError

with atheris.instrument_imports(include=["narrowcast.frontends", "narrowcast.ir", "narrowcast.passes"]):
    import narrowcast.compiler
    import narrowcast.frontends.onnx  # noqa: F401

from .mutations import graft, mutate
from .oracle import Folder, options
from .seeds import write_seeds


def mutated(data: bytes, max_size: int, seed: int) -> bytes:
    """``data`` with a few changes; itself where they make it too large."""
    model = _parsed(data)
    mutate(model, random.Random(seed))
    content = model.SerializeToString()
    return content if len(content) <= max_size else data


def crossed(first: bytes, second: bytes, max_size: int, seed: int) -> bytes:
    """``first`` with nodes of ``second``; itself where they make it too large."""
    model = _parsed(first)
    graft(model, _parsed(second), random.Random(seed))
    content = model.SerializeToString()
    return content if len(content) <= max_size else first


def _parsed(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        model.Clear()
    return model


def main() -> None:
    folder = Folder()
    write_seeds(Path(sys.argv[1]))
    atheris.Setup(options(sys.argv[1:]), folder.check, custom_mutator=mutated, custom_crossover=crossed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
