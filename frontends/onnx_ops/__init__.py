"""The translations of ONNX operators into the normal form, one small function each, in one table.

``OPERATORS`` maps (domain, operator) to its translation; importing this package fills it.
"""

from __future__ import annotations

from . import (
    activations,
    arithmetic,
    attention,
    caches,
    casts,
    classical,
    contributed,
    contributed_attention,
    contributed_norms,
    contributed_quantized,
    convolutions,
    data_dependent,
    determinants,
    elementwise,
    generators,
    indexing,
    integers,
    linear,
    linear_attention,
    movement,
    ngrams,
    normalization,
    optimizers,
    pooling,
    quantization,
    recurrent,
    reductions,
    resizing,
    sampling,
    sequences,
    slicing,
    spectral,
    unfolding,
)
from .node import OPERATORS, OnnxNode, TensorSequence, Value, normal_dtype

__all__ = ["OPERATORS", "OnnxNode", "TensorSequence", "Value", "normal_dtype"]

# The modules are imported for what they enter in the table.
TABLES = (activations, arithmetic, attention, caches, casts, classical, contributed, contributed_attention,
          contributed_norms, contributed_quantized, convolutions, data_dependent, determinants, elementwise,
          generators, indexing, integers, linear, linear_attention, movement, ngrams, normalization, optimizers,
          pooling, quantization, recurrent, reductions, resizing, sampling, sequences, slicing, spectral, unfolding)
