"""Which materialisation a consumer reads."""

from __future__ import annotations

import itertools

import pytest

from narrowcast.errors import PlanError
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage, readable

U8, OTHER_U8 = Storage("uint8", QParams(0.5, 3)), Storage("uint8", QParams(0.25, 3))


@pytest.mark.parametrize("stored", list(itertools.permutations([FLOAT32, BFLOAT16, U8])))
def test_flexible_consumers_read_the_most_precise(stored: tuple[Storage, ...]) -> None:
    assert readable(stored) == FLOAT32
    assert readable([s for s in stored if s != FLOAT32]) == BFLOAT16
    assert readable([U8]) == U8
    assert readable([Storage("int64")]) == Storage("int64")


def test_operands_read_their_precision() -> None:
    stored = (FLOAT32, BFLOAT16, U8)
    assert [readable(stored, p) for p in (Precision.FP32, Precision.BF16, Precision.INT8)] == list(stored)


def test_movement_reads_exactly_what_it_writes() -> None:
    assert readable((FLOAT32, U8), U8) == U8
    with pytest.raises(PlanError, match="nothing that a consumer can read"):
        readable((FLOAT32, U8), OTHER_U8)


def test_what_is_not_stored_cannot_be_read() -> None:
    with pytest.raises(PlanError, match=r"(?s)found.*float32.*expected: int8"):
        readable((FLOAT32,), Precision.INT8)
    with pytest.raises(PlanError):
        readable(())
