"""PyTorch modules and exported programs into the normal form.

The module is exported by ``torch.export`` in inference form, and its ATen graph walked once. Operators without an
entry in ``aten.TABLE`` are taken apart by PyTorch's own decompositions first; calls that do not depend on the model's
inputs are computed by PyTorch on the spot. What is left without a translation is reported together.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..errors import ImportModelError
from .aten.graph import decompose_unknown, functionalize
from .aten.regions import inline_regions
from .aten.translate import Translator
from .model import ImportedModel


def accepts(model: object) -> bool:
    """Whether ``import_pytorch`` is for this kind of model."""
    return isinstance(model, (torch.nn.Module, ExportedProgram))


def import_pytorch(model: torch.nn.Module | ExportedProgram, example_inputs: Any = None) -> ImportedModel:
    """Import a module, or an exported program, into the normal form.

    Parameters
    ----------
    model : a module, which is exported in ``eval()`` form and left in the mode it was in, or an exported program.
    example_inputs : a tensor or array, a tuple of arguments, or a dict of keyword arguments. A module needs them; for
        an exported program they bind dynamic dimensions, and default to those that it was exported with.

    Raises
    ------
    ImportModelError : ``torch.export`` refuses the module or the inputs, or the model changes its own state.
    UnsupportedOperatorError : operators without a translation, all of them, with layer and number.
    """
    if isinstance(model, ExportedProgram):
        exported, flat = model, _example_leaves(model, example_inputs)
    else:
        exported, flat = _export(model, example_inputs), None
    with _quiet():
        exported = decompose_unknown(functionalize(inline_regions(exported)))
        return Translator(exported, flat).run()


def _export(module: torch.nn.Module, example_inputs: Any) -> ExportedProgram:
    if example_inputs is None:
        raise ImportModelError("a PyTorch module is imported with example inputs, and none were given",
                               hint="pass example_inputs=: a tensor, a tuple of arguments or a dict of keyword ones")
    _require_weights(module)
    args, kwargs = _call_arguments(example_inputs)
    parameter = next(module.parameters(), None)
    if parameter is not None:
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(parameter.device), (args, kwargs))
    try:
        with _quiet(), _inference_form(module):
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:  # the user's own forward() runs in there and can raise anything
        raise ImportModelError("torch.export cannot export the module with these example inputs",
                               layer=type(module).__name__, found=_one_line(error),
                               hint="check the example inputs and the module's forward()") from error


def _require_weights(module: torch.nn.Module) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
            raise ImportModelError("the weight has no values yet", layer=name,
                                   hint="load the weights, or run a lazy module once, before compiling")


def _call_arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments, arrays as tensors."""
    example_inputs = pytree.tree_map_only(np.ndarray, _tensor, example_inputs)
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _tensor(array: np.ndarray) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(array))
    except TypeError as error:
        raise ImportModelError("an example input has elements of a type that PyTorch lacks",
                               found=str(array.dtype)) from error


def _example_leaves(program: ExportedProgram, example_inputs: Any) -> list[Any] | None:
    """The example inputs of an exported program in the order of its inputs; None where there are none."""
    if example_inputs is None:
        if program.example_inputs is None:
            return None
        args, kwargs = program.example_inputs
    else:
        args, kwargs = _call_arguments(example_inputs)
    names = program.call_spec.in_spec.children()[1].context or []
    if kwargs and set(kwargs) != set(names):
        raise ImportModelError("the example inputs do not have the names that the program was exported with",
                               found=sorted(kwargs), expected=sorted(names))
    return pytree.tree_leaves((args, {name: kwargs[name] for name in names if name in kwargs}))


@contextlib.contextmanager
def _inference_form(module: torch.nn.Module) -> Iterator[None]:
    """Put every submodule in inference mode, and back afterwards.

    The fast paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` are switched off meanwhile: they are
    opaque kernels where the ordinary path shows its parts.
    """
    modes = {m: m.training for m in module.modules()}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for m in modes:
            m.training = False
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for m, training in modes.items():
            m.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep PyTorch's warnings about its own internals from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _one_line(error: Exception) -> str:
    """The first line that says something, without PyTorch's wrapping."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
