"""Silero VAD and its synthesised speech."""

from __future__ import annotations

import numpy as np
import pytest

from narrowcast.errors import DataError
from narrowcast.models import silero
from narrowcast.models.silero import CONTEXT, FRAME


def test_frames_carry_the_context_of_the_one_before() -> None:
    clip = np.arange(3 * FRAME, dtype=np.float32)
    frames, hidden, cell = silero.frame_inputs(clip)
    assert frames.shape == (3, CONTEXT + FRAME) and hidden.shape == cell.shape == silero.STATE
    assert not frames[0, :CONTEXT].any()
    np.testing.assert_array_equal(frames[:, CONTEXT:].ravel(), clip)
    np.testing.assert_array_equal(frames[1:, :CONTEXT], frames[:-1, -CONTEXT:])


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_noise_has_its_colour(slope: float) -> None:
    noise = silero.colored_noise(1 << 16, slope, np.random.default_rng(0))
    power = np.square(np.abs(np.fft.rfft(noise)))
    low, high = power[100:1000].mean(), power[10_000:30_000].mean()
    # Means of 1 / f**slope over the two bands; the periodogram's mean over 900 bins scatters by 3 %.
    expected = (np.arange(100.0, 1000) ** -slope).mean() / (np.arange(10_000.0, 30_000) ** -slope).mean()
    assert low / high == pytest.approx(expected, rel=0.15)
    assert np.square(noise).mean() == pytest.approx(1.0, rel=1e-3)


def test_labels_are_where_the_speech_is() -> None:
    tone = np.sin(np.arange(10 * FRAME, dtype=np.float32))
    clip, labels = silero.mix(tone, 40, np.random.default_rng(3))
    assert clip.shape == (40 * FRAME,) and clip.dtype == np.float32 and np.abs(clip).max() <= 0.5
    spoken = np.flatnonzero(labels)
    assert 10 <= len(spoken) <= 11 and spoken[-1] - spoken[0] == len(spoken) - 1
    power = np.square(clip.reshape(40, FRAME)).mean(1)
    assert power[spoken[1:-1]].min() > power[labels == 0].max()


def test_long_speech_is_cut() -> None:
    clip, labels = silero.mix(np.ones(10 * FRAME, np.float32), 4, np.random.default_rng(0))
    assert clip.shape == (4 * FRAME,) and labels.tolist() == [1, 1, 1, 1]


def test_missing_flite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match="apt-get install flite"):
        silero.synthesize("Hello.", "slt")


@pytest.mark.models(program="flite")
@pytest.mark.usefixtures("needs")
def test_unknown_voice_is_refused() -> None:
    with pytest.raises(DataError, match="no-such-voice"):
        silero.synthesize("Hello.", "no-such-voice")


@pytest.mark.models("silero-vad", "onnxruntime", program="flite")
@pytest.mark.usefixtures("needs")
def test_float32_frame_accuracy() -> None:
    import onnxruntime

    benchmark = silero.load()
    assert (len(benchmark.calibration), len(benchmark.evaluation)) == (20, 48)
    assert not set(silero.CALIBRATION_SENTENCES) & set(silero.EVALUATION_SENTENCES)
    session = onnxruntime.InferenceSession(str(benchmark.model), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    right = []
    for inputs, labels in benchmark.evaluation:
        probabilities = session.run(["speech_probs"], dict(zip(names, inputs, strict=True)))[0]
        right.append(((probabilities >= 0.5) == (labels >= 0.5)).mean())
    assert 0.89 <= np.mean(right) <= 0.93
