"""What ``torch.export`` says when it refuses a module, in words about the user's code."""

from __future__ import annotations

from ..errors import ImportModelError


def export_error(error: Exception, model: str) -> ImportModelError:
    """The error for the user; ``model`` is the class of the exported module."""
    return ImportModelError("torch.export cannot export the module with these example inputs",
                            layer=model, found=_one_line(error),
                            hint="check the example inputs and the module's forward()")


def _one_line(error: Exception) -> str:
    """The first line that says something, without PyTorch's wrapping."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
