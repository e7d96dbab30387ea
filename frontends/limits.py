"""Limits on what a model may ask for: what exceeds them is refused before memory or time is spent on it.

They lie above every network that narrowcast is meant for; ``MAX_ELEMENTS`` is what kernels can count.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence

# Protobuf's own limit on a message.
MAX_MODEL_BYTES = 2 ** 31 - 1
# Functions that call functions, and branches in branches.
MAX_DEPTH = 32
# Nodes when all functions are called in place; calls may multiply a file's own nodes so much, and some more.
MAX_NODES, MAX_CALLED, MAX_MULTIPLE = 100_000, 10_000, 20
# Nodes that loops are unrolled to; and those of bodies that run as functions, which may be translated several times.
MAX_UNROLLED, MAX_TRANSLATED = 5_000, 20_000
# Kernels address the elements of one tensor by 32-bit integers.
MAX_ELEMENTS = 2 ** 31 - 1
MAX_RANK = 32
# Bytes of constants that are computed at import, besides ``MAX_GROWTH`` times those of the weights; and elements of an
# array that holds symbols.
MAX_CONSTANTS_BYTES, MAX_GROWTH, MAX_SYMBOLIC = 2 ** 28, 4, 2 ** 12
# Elements of a table of places or of a matrix that a translation computes.
MAX_TABLE = 2 ** 26
MAX_NAME = 4096
# Tensors of external data may be read that many times, as tied weights are.
MAX_SHARED = 4


def is_tensor_shape(dims: Sequence[int]) -> bool:
    """Whether a tensor of known extents may have this shape."""
    return len(dims) <= MAX_RANK and all(0 <= d <= MAX_ELEMENTS for d in dims) and math.prod(dims) <= MAX_ELEMENTS


def machine_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_name(text: str | bytes) -> bool:
    """Whether a name is text (protobuf hands out what is not UTF-8 as bytes) of sensible length that can be printed."""
    return isinstance(text, str) and len(text) <= MAX_NAME and not any(c < " " or "\x7f" <= c < "\xa0" for c in text)


def unusable_names(names: Iterable[str | bytes]) -> list[str | bytes]:
    """The names that are none, each cut to what can be shown."""
    return [name[:40] for name in names if not is_name(name)]
