"""Trained networks of other frameworks into the normal form of ``ir``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ImportModelError
from .model import DimRange, ImportedModel

__all__ = ["DimRange", "ImportedModel", "import_model"]

_ACCEPTED = "a torch.nn.Module, a torch.export.ExportedProgram, an onnx.ModelProto or the path of an .onnx file"


def import_model(model: Any, example_inputs: Any = None, dynamic_shapes: Any = None,
                 dims: Mapping[str, int] | None = None) -> ImportedModel:
    """Import whatever ``compile`` accepts.

    Parameters
    ----------
    model : an ``nn.Module``, an ``ExportedProgram``, an ``onnx.ModelProto``, or the path of an ``.onnx`` file.
    example_inputs : one tensor or array, a sequence of them, or a dict by argument name. A module needs them; for the
        others their shapes are hints at the extents that dynamic dimensions usually have.
    dynamic_shapes : which dimensions of a module's inputs are dynamic, as ``torch.export.export`` takes it; a string
        may stand for a ``torch.export.Dim`` of that name. The other kinds of models say it themselves.
    dims : extents that fix dynamic dimensions, by name.

    Raises
    ------
    ImportModelError : the model cannot be read, or is of a kind that is not accepted.
    UnsupportedOperatorError : the model has operators without a translation; all are listed.
    """
    dims = _checked_dims(dims)
    if isinstance(model, (str, Path)):
        return _import_path(Path(model), example_inputs, dynamic_shapes, dims)
    framework = type(model).__module__.split(".")[0]
    if framework == "onnx":
        return _import_onnx(model, example_inputs, dynamic_shapes, dims)
    from .pytorch import accepts, import_pytorch
    if accepts(model):
        return import_pytorch(model, example_inputs, dynamic_shapes, dims)
    raise ImportModelError("the model is of a kind that cannot be imported", found=type(model).__name__,
                           expected=_ACCEPTED)


def _checked_dims(dims: Mapping[str, int] | None) -> dict[str, int]:
    wrong = {name: n for name, n in (dims or {}).items() if isinstance(n, bool) or not isinstance(n, int) or n < 1}
    if wrong:
        raise ImportModelError("dims= gives extents that are not", found=wrong, expected="whole numbers from 1")
    return dict(dims or {})


def _import_path(path: Path, example_inputs: Any, dynamic_shapes: Any, dims: Mapping[str, int]) -> ImportedModel:
    if path.suffix == ".onnx":
        return _import_onnx(path, example_inputs, dynamic_shapes, dims)
    if path.suffix in (".pt2", ".pt", ".pth"):
        raise ImportModelError(
            "files of PyTorch are not opened, because reading them can execute code that they contain",
            found=str(path), expected=_ACCEPTED,
            hint="if you trust the file, load it yourself (torch.export.load for .pt2) and pass the object")
    raise ImportModelError("the file is of a kind that cannot be imported", found=str(path), expected=_ACCEPTED)


def _import_onnx(model: Any, example_inputs: Any, dynamic_shapes: Any, dims: Mapping[str, int]) -> ImportedModel:
    if dynamic_shapes is not None:
        raise ImportModelError("dynamic_shapes= is for modules of PyTorch", found="an ONNX model",
                               hint="an ONNX model says itself which dimensions are dynamic; dims= fixes them")
    from .onnx import import_onnx
    return import_onnx(model, _arrays(example_inputs), dims)


def _arrays(example_inputs: Any) -> Sequence[np.ndarray] | None:
    """Example inputs as NumPy arrays in the order of the model's inputs."""
    if example_inputs is None:
        return None
    if isinstance(example_inputs, Mapping):
        example_inputs = list(example_inputs.values())
    if not isinstance(example_inputs, (list, tuple)):
        example_inputs = [example_inputs]
    return [np.asarray(value) for value in example_inputs]
