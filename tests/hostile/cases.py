"""The tables of this folder: by name the builder of a model, the class of the error it gives, and what that says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import onnx

from narrowcast.errors import CompileError

Cases: TypeAlias = dict[str, tuple[Callable[[], onnx.ModelProto], type[CompileError], str]]
