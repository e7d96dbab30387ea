"""Compiles the models of the tables one by one in a process of its own, with a limit on its memory.

``python worker.py NAME…`` prints one line of JSON for each: what was raised, what it took.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile.limits import BYTES, Cost
from hostile.operands import OPERANDS
from hostile.structures import STRUCTURES

import narrowcast as nc
import narrowcast.compiler
import narrowcast.frontends.onnx

MODELS = {**STRUCTURES, **OPERANDS}


def outcome(name: str) -> dict[str, object]:
    """What compiling the model called ``name`` came to."""
    built, error = MODELS[name][0](), None
    with Cost() as cost:
        try:
            nc.compile(built, num_threads=1)
        except Exception as raised:
            error = raised
    said = {"kind": type(error).__name__, "text": str(error)}
    return {"name": name, "seconds": cost.seconds, "bytes": cost.bytes, **said}


def main() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * BYTES, used + 2 * BYTES))
    for name in sys.argv[1:]:
        print(json.dumps(outcome(name)), flush=True)


if __name__ == "__main__":
    main()
