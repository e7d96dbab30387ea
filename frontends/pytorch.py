"""PyTorch modules and exported programs into the normal form.

The module is exported by ``torch.export`` in inference form, and its ATen graph walked once. Operators without an
entry in ``aten.TABLE`` are taken apart by PyTorch's own decompositions first; calls that do not depend on the model's
inputs are computed by PyTorch on the spot. What is left without a translation is reported together.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..errors import ImportModelError
from .aten.graph import decompose_unknown, functionalize, user_inputs
from .aten.recurrent_export import WholeRecurrentLayers
from .aten.regions import inline_regions
from .aten.symbols import Symbols
from .aten.translate import Translator
from .dynamic_shapes import read_dynamic_shapes
from .export_errors import export_error
from .model import ImportedModel


def accepts(model: object) -> bool:
    """Whether ``import_pytorch`` is for this kind of model."""
    return isinstance(model, (torch.nn.Module, ExportedProgram))


def import_pytorch(model: torch.nn.Module | ExportedProgram, example_inputs: Any = None, dynamic_shapes: Any = None,
                   dims: Mapping[str, int] | None = None) -> ImportedModel:
    """Import a module, or an exported program, into the normal form.

    Parameters
    ----------
    model : a module, which is exported in ``eval()`` form and left in the mode it was in, or an exported program.
    example_inputs : a tensor or array, a tuple of arguments, or a dict of keyword arguments. A module needs them; for
        an exported program they default to those that it was exported with, and give hints only.
    dynamic_shapes : for a module, as ``torch.export.export`` takes it; a string stands for a ``Dim`` of that name.
    dims : extents that fix dynamic dimensions, by name.

    Raises
    ------
    ImportModelError : ``torch.export`` refuses the module or the inputs, or the model changes its own state.
    UnsupportedOperatorError : operators without a translation, all of them, with layer and number.
    """
    if isinstance(model, ExportedProgram):
        if dynamic_shapes is not None:
            raise ImportModelError("dynamic_shapes= is for modules", found="an exported program",
                                   hint="pass it to torch.export.export; dims= fixes dimensions of the program")
        exported, names = model, dict[str, str]()
    else:
        exported, names = _export(model, example_inputs, dynamic_shapes)
    symbols = Symbols(exported, dims or {}, names)
    examples = _example_leaves(exported, example_inputs)
    with _quiet():
        exported = decompose_unknown(functionalize(inline_regions(exported)))
        return Translator(exported, symbols, examples).run()


def _export(module: torch.nn.Module, example_inputs: Any,
            dynamic_shapes: Any) -> tuple[ExportedProgram, dict[str, str]]:
    """The exported module, and the names that the user gave dynamic dimensions, by input and axis (``x_0``)."""
    if example_inputs is None:
        raise ImportModelError("a PyTorch module is imported with example inputs, and none were given",
                               hint="pass example_inputs=: a tensor, a tuple of arguments or a dict of keyword ones")
    _require_weights(module)
    args, kwargs = _call_arguments(example_inputs)
    parameter = next(module.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to(device), (args, kwargs))
    try:
        shapes = read_dynamic_shapes(module, args, kwargs, dynamic_shapes)
        with _quiet(), _inference_form(module), WholeRecurrentLayers():
            traced, named = pytree.tree_map_only(torch.Tensor, shapes.traceable, (args, kwargs))
            exported = _exported(module, traced, named, shapes.for_export)
    except ImportModelError:
        raise
    except Exception as error:  # the user's own forward() runs in there and can raise anything
        raise export_error(error, module) from error
    leaves = zip(user_inputs(exported), pytree.tree_leaves((args, kwargs)), strict=True)
    return exported, {f"{node.name}_{axis}": name for node, leaf in leaves
                      for (tensor, axis), name in shapes.names.items() if tensor == id(leaf)}


def _exported(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any) -> ExportedProgram:
    """What PyTorch assumes about extents on the way is kept as checks in the program, not refused; where PyTorch cannot
    write such a check, it is only noted."""
    export = functools.partial(torch.export.export, module, args, kwargs, dynamic_shapes=dynamic, strict=False)
    try:
        return export(prefer_deferred_runtime_asserts_over_guards=dynamic is not None)
    except torch.fx.proxy.TraceError:
        return export()


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
    loggers = [logging.getLogger(f"torch.{n}") for n in ("fx.experimental.symbolic_shapes", "utils._sympy.interp")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
