"""The operators of the normal form: Relax's own, and the few that narrowcast adds (``custom``), with their reference
semantics in PyTorch (``reference``)."""

from . import custom
from .custom import hard_sigmoid, hard_swish, lstm

__all__ = ["custom", "hard_sigmoid", "hard_swish", "lstm"]
