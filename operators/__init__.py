"""The operators of the normal form: Relax's own, and those that narrowcast adds (``custom``, ``recurrent``,
``data_dependent``, ``control``), with their reference semantics in PyTorch (``reference``)."""

from . import custom, recurrent
from .custom import fake_quantize, hard_sigmoid, hard_swish
from .recurrent import recurrent_layer

__all__ = ["custom", "fake_quantize", "hard_sigmoid", "hard_swish", "recurrent", "recurrent_layer"]
