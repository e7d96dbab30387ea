"""What ``torch.export`` says when it refuses a module, in words about the user's code."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from ..errors import ImportModelError

# Code that is not the user's: PyTorch's, and what calls it here.
_OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


@dataclass(frozen=True)
class _Reason:
    """What a message of PyTorch's means: the text in it that tells, our sentence, and what to do."""

    pattern: str
    problem: str
    hint: str


_REASONS = (
    _Reason(r"Could not guard on data-dependent|Could not extract specialized integer from data-dependent|"
            r"data-dependent (expression|operator)",
            "forward() goes another way, or makes another size, for other values of its inputs, which a program cannot",
            "choose between tensors with torch.where, pass the number as a Python argument, or move the decision out "
            "of the model"),
    _Reason(r"\.numpy\(\) is not supported",
            "forward() leaves PyTorch: it takes a tensor's values to NumPy",
            "compute the same with operations of PyTorch, or before the model is called"),
    _Reason(r"Unsupported input type",
            "an example input is of a kind that an exported program cannot take",
            "pass tensors, numbers, and lists, tuples and dicts of them (a cache as its tensors), and build the object "
            "inside of a module that wraps this one"),
    _Reason(r"in output, which is not a known type|Unsupported output type",
            "forward() returns an object of a kind that an exported program cannot return",
            "return tensors, or tuples, lists and dicts of them; a dataclass has to be registered with "
            "torch.export.register_dataclass"),
    _Reason(r"must always be equal",
            "two dimensions that dynamic_shapes= calls by different names have to be equal",
            "give them one name"),
    _Reason(r"specialized it to be a constant|resulted in a specialized value|"
            r"generated guard (\d+) <= .* and .* <= \1\b",
            "the model works for one extent only of a dimension that is called dynamic",
            "look for an extent that forward() compares, converts by int() or float(), or passes to a layer of fixed "
            "size; or leave the dimension fixed"),
    _Reason(r"not in range",
            "an example input has an extent outside of the range that its Dim allows",
            "pass an example inside of the range, or widen min= and max= of the Dim"),
    _Reason(r"Constraints violated|Not all values of",
            "the model does not work for all extents that dynamic_shapes= allows",
            "narrow the range with min= and max= of torch.export.Dim, or pass the name as a string: then the range "
            "that the model works for is found"),
    _Reason(r"mismatch between the structure of|dynamic_shapes",
            "dynamic_shapes= does not fit the example inputs",
            "give every argument of forward() an entry, in order or by name; None where nothing is dynamic"),
    _Reason(r"(missing \d+ required .*argument|takes .* positional argument|got an unexpected keyword argument|"
            r"got multiple values for argument|missing a required argument|too many positional)",
            "forward() cannot be called with these example inputs",
            "pass a tuple with one entry for every positional argument, or a dict of keyword arguments"),
)
_UNKNOWN = _Reason("", "torch.export cannot export the module with these example inputs",
                   "call the module itself with these inputs; where that works, look at the line that is named")


def export_error(error: Exception, module: torch.nn.Module) -> ImportModelError:
    """The error for the user: what is wrong, in which layer and line of the model's code, and what to do."""
    text = str(error)
    reason = next((r for r in _REASONS if re.search(r.pattern, text)), _UNKNOWN)
    frame, line = _place(error)
    found = _said(text, reason) or type(error).__name__
    if frame is not None:
        code = linecache.getline(frame.f_code.co_filename, line).strip()
        found += f"\n    in {Path(frame.f_code.co_filename).name}, line {line}: {code}"
    return ImportModelError(reason.problem, layer=_layer(error, module), found=found, hint=reason.hint)


def _said(text: str, reason: _Reason) -> str:
    """The line of PyTorch's message that tells the reason, without what only PyTorch's developers need."""
    text = re.sub(r"(Constraints violated|Specializations unexpectedly required) \([^)]*\)!", "", text)
    lines = [line.strip(" -") for line in text.splitlines() if line.strip(" -")]
    telling = next((line for line in lines if reason.pattern and re.search(reason.pattern, line)), "".join(lines[:1]))
    telling = re.sub(r"\(unhinted:.*|For more information, run with.*|If you're using mark_dynamic.*|"
                     r"Export only supports.*|If this type holds tensors.*", "", telling)
    return re.sub(r"L\['(\w+)'\]((?:\[[^\]]+\])*)\.size\(\)\[(\d+)\]", r"dimension \3 of \1\2", telling).strip()[:300]


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames of an error and of those that it came from, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        trace = current.__traceback__
        while trace is not None:
            yield trace.tb_frame, trace.tb_lineno
            trace = trace.tb_next
        current = current.__cause__ or current.__context__


def _place(error: BaseException) -> tuple[FrameType | None, int]:
    """The innermost frame of the user's own code, and the line that was running."""
    own = [(f, line) for f, line in _frames(error)
           if not f.f_code.co_filename.startswith((*_OTHERS, "<")) and f.f_code.co_name != "<module>"]
    called = [(f, line) for f, line in own if isinstance(f.f_locals.get("self"), torch.nn.Module)]
    after = own[own.index(called[-1]):] if called else []
    return after[-1] if after else (None, 0)


def _layer(error: BaseException, module: torch.nn.Module) -> str:
    """The path of the innermost module that was running, or the class of the whole model."""
    names = {id(m): name for name, m in module.named_modules()}
    running = [names[id(f.f_locals["self"])] for f, _ in _frames(error) if id(f.f_locals.get("self")) in names]
    return (running[-1] if running else "") or type(module).__name__
