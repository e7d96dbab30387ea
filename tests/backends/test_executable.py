"""Building a program's machine code."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from torch import nn

import narrowcast
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


def test_only_what_the_user_passes_is_checked_in_the_program() -> None:
    """Its own weights are what they were when it was loaded: no time goes into looking at them at every call."""
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    program = narrowcast.compile(module, example_inputs=(np.ones((1, 8), np.float32),), num_threads=1)
    assert len(program._lowered["main"].params) > 1
    text = build_executable(program._lowered, program._target.tvm_target()).as_text()
    assert text.count("vm.builtin.check_tensor_info in:") == 1
