"""Silero VAD, a voice activity detector, with speech mixed into noise at known places.

The network is ``silero_vad_16k_sequence.onnx`` of the PyPI package ``silero-vad`` (MIT): a short-time Fourier transform
as a convolution, four convolutions, an LSTM over the frames and a sigmoid. The speech is synthesised by Debian's
``flite`` (Carnegie Mellon, BSD-like) with four voices, so that the truth of every frame follows from the clean signal.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import wave
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np

from ..errors import DataError
from .benchmark import Benchmark, Sample, package_file

RATE = 16_000
"""Samples a second."""
FRAME = 512
"""New samples of a frame."""
CONTEXT = 64
"""Samples of the frame before that the network sees again."""
STATE = (1, 1, 128)
"""Shape of the LSTM's hidden and cell state."""
VOICES = ("slt", "rms", "awb", "kal16")
SPEECH_FLOOR_DB = -30.0
"""A frame is speech where its clean power is above this, relative to the clip's loudest frame."""

CALIBRATION_SENTENCES = (
    "Please leave the parcel next to the green door.",
    "Seven geese crossed the frozen river before noon.",
    "I would rather walk than wait for another bus.",
    "The museum opens at ten and closes early on Mondays.",
    "Could you turn the radio down a little?",
)
EVALUATION_SENTENCES = (
    "Fresh bread is sold at the corner shop.",
    "We measured the bridge twice and got the same length.",
    "Nobody expected rain on the first day of the fair.",
    "Her brother plays the cello in a small orchestra.",
    "The next train to the coast leaves in twenty minutes.",
    "Put the heavy boxes on the lower shelf.",
    "How many pages does the final report have?",
    "A cold wind blew across the empty harbour.",
    "They painted the kitchen yellow last summer.",
    "Thank you for calling, all our lines are busy.",
    "The old clock in the hall is always five minutes slow.",
    "Remember to water the plants while we are away.",
)


def model_path() -> Path:
    """The ONNX file: ``input`` [T, 576], ``h`` and ``c`` [1, 1, 128] to ``speech_probs`` [T] and the new states.

    Raises DataError where the package is missing.
    """
    return package_file("silero-vad", "silero_vad_16k_sequence.onnx")


def synthesize(sentence: str, voice: str) -> np.ndarray:
    """Speech float32 [samples] at 16 kHz, loudest sample 1. Raises DataError where flite is missing or fails."""
    program = shutil.which("flite")
    if program is None:
        raise DataError("the speech synthesizer flite is not installed", hint="apt-get install flite")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        done = subprocess.run([program, "-voice", voice, "-t", sentence, "-o", str(path)], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0 or not path.is_file():
            raise DataError(f"flite could not speak with the voice {voice!r}", found=done.stderr.strip()[:200],
                            expected=f"a flite with the voices {', '.join(VOICES)}")
        with wave.open(str(path)) as file:
            rate, raw = file.getframerate(), file.readframes(file.getnframes())
    if rate != RATE:
        raise DataError(f"flite's voice {voice!r} has another rate", found=f"{rate} Hz", expected=f"{RATE} Hz")
    speech = np.frombuffer(raw, "<i2").astype(np.float32)
    return speech / np.abs(speech).max()


def colored_noise(samples: int, slope: float, generator: np.random.Generator) -> np.ndarray:
    """Noise float32 [samples] of mean 0 and power 1 whose power spectrum falls as 1 / frequency**slope (1 is pink)."""
    spectrum = np.fft.rfft(generator.standard_normal(samples))
    frequency = np.fft.rfftfreq(samples)
    spectrum[0], frequency[0] = 0.0, 1.0
    noise = np.fft.irfft(spectrum * frequency ** (-slope / 2), samples)
    return (noise / noise.std()).astype(np.float32)


def mix(speech: np.ndarray, frames: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A clip of ``frames`` frames: speech at a random place in noise, float32 [frames * 512]; labels float32 [frames].

    The noise is coloured by a random slope in 0 … 1.5 and lies 5 … 20 dB below the speech. Speech that is longer than
    the clip is cut.
    """
    samples = frames * FRAME
    speech = speech[:samples]
    clean = np.zeros(samples, np.float32)
    start = generator.integers(0, samples - len(speech) + 1)
    clean[start : start + len(speech)] = speech
    power = np.square(clean.reshape(frames, FRAME)).mean(axis=1)
    labels = (power > power.max() * 10 ** (SPEECH_FLOOR_DB / 10)).astype(np.float32)
    noise = colored_noise(samples, generator.uniform(0.0, 1.5), generator)
    ratio = generator.uniform(5.0, 20.0)
    scale = np.sqrt(power[labels > 0].mean()) * 10 ** (-ratio / 20)
    clip = clean + np.float32(scale) * noise
    return clip * np.float32(generator.uniform(0.1, 0.5) / np.abs(clip).max()), labels


def frame_inputs(clip: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The network's inputs for a clip float32 [T * 512]: frames with their context [T, 576], and zero states."""
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), clip])
    frames = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]
    return np.ascontiguousarray(frames), np.zeros(STATE, np.float32), np.zeros(STATE, np.float32)


def load(frames: int = 96, seed: int = 0) -> Benchmark:
    """The network with 20 calibration and 48 evaluation clips of ``frames`` frames (32 ms each).

    Labels are float32 [frames], 1 where there is speech. The two sets share no sentence. The metric is the share of
    frames whose probability lies on the right side of 0.5 (about 0.9 in float32). Raises DataError where the package or
    flite is missing.
    """
    path = model_path()
    generator = np.random.default_rng(seed)
    calibration = _samples(CALIBRATION_SENTENCES, frames, generator)
    evaluation = _samples(EVALUATION_SENTENCES, frames, generator)
    return Benchmark("silero-vad", path, evaluation[0][0], calibration, evaluation, "frame_accuracy")


def _samples(sentences: tuple[str, ...], frames: int, generator: np.random.Generator) -> list[Sample]:
    spoken = list(product(sentences, VOICES))
    with ThreadPoolExecutor(2) as pool:
        speeches = list(pool.map(lambda pair: synthesize(*pair), spoken))
    samples: list[Sample] = []
    for speech in speeches:
        clip, labels = mix(speech, frames, generator)
        samples.append((frame_inputs(clip), labels))
    return samples
