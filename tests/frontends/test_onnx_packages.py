"""Networks that packages ship, with their dynamic extents kept, against ONNX Runtime at two sizes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from narrowcast.errors import UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx

from .onnx_models import agrees, noise


def packaged(package: str, name: str) -> Path:
    """A file of an installed package; the test is skipped where it is not installed."""
    try:
        files = importlib.metadata.files(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"the package {package} is not installed")
    return next(Path(str(f.locate())) for f in files or () if f.name == name)


# Width after width; the detector works in steps of 32.
IMAGES = {
    "PP-OCRv6_rec_small.onnx": [(1, 3, 48, 96), (2, 3, 48, 56)],
    "PP-OCRv6_det_small.onnx": [(1, 3, 32, 64), (2, 3, 64, 32)],
    "ch_ppocr_mobile_v2.0_cls_mobile.onnx": [(1, 3, 48, 192), (2, 3, 48, 96)],
}
# 50 layers in series, each a sum of up to 1,152 products of which rounding errors partly cancel.
TERMS = 50 * 48
# Of noise the detector makes probabilities below 1e-3, which ONNX Runtime's sigmoid gives to 1e-7 only.
LEAST = 1e-3


@pytest.mark.parametrize("name", IMAGES)
def test_text_recognition(name: str) -> None:
    proto = onnx.load(packaged("rapidocr", name))
    imported = agrees(proto, *({"x": 0.5 * noise(*shape)} for shape in IMAGES[name]), terms=TERMS, least=LEAST)
    assert sum(isinstance(d, str) for d in imported.inputs[0].shape) == (2 if "rec" in name else 3)
    extents = [dict(zip((d for d in imported.inputs[0].shape if isinstance(d, str)),
                        (e for e, d in zip(shape, imported.inputs[0].shape, strict=True) if isinstance(d, str)),
                        strict=True)) for shape in IMAGES[name]]
    assert all(r.is_met(e) for r in imported.requirements for e in [*extents, imported.hints])


def test_the_detector_requires_steps_of_32() -> None:
    imported = import_onnx(packaged("rapidocr", "PP-OCRv6_det_small.onnx"))
    batch, height, width = (d for d in imported.inputs[0].shape if isinstance(d, str))

    def fits(h: int, w: int) -> bool:
        return all(r.is_met({batch: 1, height: h, width: w}) for r in imported.requirements)

    assert fits(640, 960) and not fits(640, 970) and not fits(650, 960)


def speech(batch: int, samples: int, **rest: int) -> Mapping[str, np.ndarray]:
    return {"input": 0.1 * noise(batch, samples), "state": 0.1 * noise(2, batch, 128, seed=1),
            **{name: np.asarray(value, np.int64) for name, value in rest.items()}}


# By file: the extents and values to fix, and the inputs. What is left open is the batch, in the last also the length.
VOICE = {
    "silero_vad_16k_op15.onnx": ({"sequence": 576}, [speech(1, 576, sr=16000), speech(3, 576, sr=16000)]),
    "silero_vad_half.onnx": ({"sequence": 576}, [speech(1, 576), speech(3, 576)]),
    "silero_vad.onnx": ({"input_1": 576, "sr": 16000}, [speech(1, 576, sr=16000), speech(2, 576, sr=16000)]),
    "silero_vad_openvino_16k.onnx": ({}, [speech(1, 576)]),
    "silero_vad_op18_ifless.onnx": ({}, [speech(1, 576, sr=16000), speech(2, 288, sr=8000)]),
}


@pytest.mark.parametrize("name", VOICE)
def test_voice_activity(name: str) -> None:
    """Files with If: a condition that is fixed or follows from extents takes its branch, another one selects."""
    dims, feeds = VOICE[name]
    proto = onnx.load(packaged("silero-vad", name))
    imported = agrees(proto, *feeds, terms=TERMS, dims=dims)
    assert imported.requirements == () or name == "silero_vad_op18_ifless.onnx"


def test_the_low_rate_of_the_same_file() -> None:
    proto = onnx.load(packaged("silero-vad", "silero_vad.onnx"))
    agrees(proto, speech(1, 288, sr=8000), speech(3, 288, sr=8000), terms=TERMS, dims={"input_1": 288, "sr": 8000})


def test_voice_activity_over_a_sequence() -> None:
    proto = onnx.load(packaged("silero-vad", "silero_vad_16k_sequence.onnx"))
    state = {n: 0.1 * noise(1, 1, 128, seed=i) for i, n in enumerate("hc")}
    imported = agrees(proto, *({"input": 0.1 * noise(steps, 576), **state} for steps in (3, 5)), terms=TERMS)
    assert imported.inputs[0].shape == ("sequence_length", 576)


def test_an_open_length_that_decides_a_branch_is_named() -> None:
    with pytest.raises(UnsupportedOperatorError, match="between tensors of different types by") as caught:
        import_onnx(packaged("silero-vad", "silero_vad_16k_op15.onnx"))
    assert "sequence" in str(caught.value) and "dims=" in str(caught.value)
