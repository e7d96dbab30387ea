"""The networks that ``make bench`` measures, and the inputs that they are called with.

Modules have seeded random weights where no trained ones ship, and random inputs calibrate everybody: this measures
time, never accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from narrowcast.models import bert, efficientnet_lite, gpt2, mobilenet, resnet, silero
from narrowcast.models.benchmark import package_file

from .quantizers import Arrays

Draw = Callable[[np.random.Generator], Arrays]

PRECISIONS = ("fp32", "bf16", "int8")
BERT_BASE = bert.BertShape(layers=12, channels=768, heads=12, inner=3072)
GPT2 = gpt2.Gpt2Shape()


@dataclass(frozen=True)
class Network:
    """A network and what it is measured on.

    build : a module, or the path of an ONNX file, whose symbolic dims stay open for everybody.
    draws : by name, what draws the inputs of one call; the first one also draws the calibration data.
    transformer : whether NNCF should take it for one.
    precisions : those that are measured.
    """

    build: Callable[[], nn.Module | Path]
    draws: dict[str, Draw]
    transformer: bool = False
    precisions: tuple[str, ...] = PRECISIONS


def draw_image(generator: np.random.Generator, shape: tuple[int, ...] = (1, 3, 224, 224)) -> Arrays:
    """Normal random images, float32 [N, 3, H, W]."""
    return (generator.standard_normal(shape, dtype=np.float32),)


def draw_tokens(generator: np.random.Generator, batch: int, tokens: int) -> Arrays:
    """Random token ids and a full mask, int64 [N, T]."""
    return generator.integers(0, 30522, (batch, tokens)), np.ones((batch, tokens), np.int64)


def draw_step(generator: np.random.Generator, cached: int) -> Arrays:
    """A token id int64 [1, 1], and keys and values of the cached tokens, float32 [layers, 1, heads, T, width]."""
    cache = (GPT2.layers, 1, GPT2.heads, cached, GPT2.channels // GPT2.heads)
    return (generator.integers(0, GPT2.vocabulary, (1, 1)), generator.standard_normal(cache, dtype=np.float32),
            generator.standard_normal(cache, dtype=np.float32))


def draw_frames(generator: np.random.Generator, frames: int) -> Arrays:
    """Frames of noise with their context float32 [T, 576], and the states of the LSTM."""
    return silero.frame_inputs(0.1 * generator.standard_normal(512 * frames, dtype=np.float32))


def recognizer() -> Path:
    """The ONNX file of PP-OCR's recognizer of text lines, float32 [N, 3, 48, W]."""
    return package_file("rapidocr", "PP-OCRv6_rec_small.onnx")


NETWORKS = {
    "resnet50": Network(resnet.build, {"": draw_image}),
    "resnet50, batch 8": Network(resnet.build, {"": partial(draw_image, shape=(8, 3, 224, 224))}),
    "mobilenetv2": Network(mobilenet.build, {"": draw_image}),
    "efficientnet-lite0": Network(efficientnet_lite.load_model, {"": draw_image}),
    "minilm, 128 tokens": Network(bert.build, {"": partial(draw_tokens, batch=1, tokens=128)}, transformer=True),
    "minilm, 16 x 32 tokens": Network(bert.build, {"": partial(draw_tokens, batch=16, tokens=32)}, transformer=True),
    "bert-base, 128 tokens": Network(partial(bert.build, shape=BERT_BASE),
                                     {"": partial(draw_tokens, batch=1, tokens=128)}, transformer=True),
    "gpt2, 1 token, 512 cached": Network(partial(gpt2.build, shape=GPT2), {"": partial(draw_step, cached=512)},
                                         transformer=True),
    "silero-vad, 96 frames": Network(silero.model_path, {"": partial(draw_frames, frames=96)},
                                     precisions=("fp32", "int8")),
    "pp-ocr recognizer": Network(recognizer, {
        ", width 160": partial(draw_image, shape=(1, 3, 48, 160)),
        ", width 640": partial(draw_image, shape=(1, 3, 48, 640)),
    }),
}
