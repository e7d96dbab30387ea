"""Fuzz target: bytes of an ONNX file, changed blindly → import → compile.

    python -m fuzz.onnx_bytes build/fuzz/bytes -max_total_time=1800
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["narrowcast.frontends", "narrowcast.ir"]):
    import narrowcast.frontends.onnx  # noqa: F401

from .oracle import Folder, options
from .seeds import write_seeds


def main() -> None:
    folder = Folder()
    write_seeds(Path(sys.argv[1]))
    atheris.Setup(options(sys.argv[1:]), folder.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
