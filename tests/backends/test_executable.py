"""Building a program's machine code."""

from __future__ import annotations

import pytest
import tvm

from narrowcast.backends.executable import build_executable
from narrowcast.backends.target import Target
from narrowcast.errors import VerificationError


def test_what_the_code_generator_refuses_is_an_error_of_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise tvm.error.InternalError("Check failed: no such code")

    monkeypatch.setattr(tvm, "compile", refuse)
    with pytest.raises(VerificationError, match="no machine code can be generated") as caught:
        build_executable(tvm.IRModule(), Target.parse("cpu").tvm_target())
    assert "no such code" in str(caught.value) and "dims=" in str(caught.value)
