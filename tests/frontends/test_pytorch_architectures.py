"""Well-known architectures through the PyTorch frontend, with every dynamic dimension at two extents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import narrowcast as nc
from narrowcast.frontends import ImportedModel
from narrowcast.ir import groups_of
from narrowcast.operators import reference
from narrowcast.passes import run_pipeline

from . import sequence_networks as sequences
from . import vision_networks as vision

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """A network, its inputs for some extents, which dimensions those name, and the extents."""

    make: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Any, ...]]
    dynamic: Any
    sizes: Sequence[Sizes]


IMAGE = ({0: "batch", 2: "height", 3: "width"},)
STEPS = ({0: "batch", 1: "steps"},)
IMAGES = ({"batch": 2, "height": 16, "width": 24}, {"batch": 1, "height": 32, "width": 16})
SEQUENCES = ({"batch": 2, "steps": 6}, {"batch": 3, "steps": 9})


def of_images(make: Callable[[], nn.Module], channels: int = 3) -> Case:
    return Case(make, lambda batch, height, width: (torch.randn(batch, channels, height, width),), IMAGE, IMAGES)


def of_vectors(make: Callable[[], nn.Module], width: int) -> Case:
    return Case(make, lambda batch, steps: (torch.randn(batch, steps, width),), STEPS, SEQUENCES)


def of_ids(make: Callable[[], nn.Module], count: int) -> Case:
    return Case(make, lambda batch, steps: (torch.randint(0, count, (batch, steps)),), STEPS, SEQUENCES)


def of_batches(make: Callable[[], nn.Module], *inputs: Callable[[int], Any]) -> Case:
    """Inputs of which only the first dimension is dynamic."""
    return Case(make, lambda batch: tuple(i(batch) for i in inputs), ({0: "batch"},) * len(inputs),
                ({"batch": 2}, {"batch": 3}))


VISION: dict[str, Case] = {
    "vgg": of_images(vision.vgg), "resnet": of_images(vision.resnet), "densenet": of_images(vision.densenet),
    "inception": of_images(lambda: vision.Classifier(
        nn.Sequential(vision.conv(3, 4), vision.InceptionBlock()), 8)),
    "squeezenet": of_images(vision.squeezenet),
    "shufflenet": of_images(vision.ShuffleBlock, 8),
    "mobilenet_v2": of_images(lambda: vision.InvertedResidual(4, nn.ReLU6), 4),
    "mobilenet_v3": of_images(lambda: vision.InvertedResidual(4, nn.Hardswish, 5, excite=True), 4),
    "mnasnet": of_images(lambda: vision.InvertedResidual(4, nn.ReLU, 5), 4),
    "efficientnet": of_images(lambda: vision.InvertedResidual(4, nn.SiLU, 3, excite=True), 4),
    "regnet": of_images(lambda: nn.Sequential(vision.conv(4, 8, 1), vision.conv(8, 8, 3, 2, groups=4),
                                              vision.SqueezeExcite(8)), 4),
    "senet": of_images(lambda: nn.Sequential(vision.ResidualBlock(3, 4, 1), vision.SqueezeExcite(4))),
    "ghostnet": of_images(vision.GhostModule, 4), "convnext": of_images(vision.ConvNextBlock, 4),
    "unet": of_images(vision.UNet), "fcn": of_images(vision.FullyConvolutional),
    "deeplab": of_images(vision.AtrousPyramid, 4), "pspnet": of_images(vision.PyramidPooling, 2),
    "fpn": of_images(vision.FeaturePyramid), "ssd": of_images(vision.SingleShotHead), "yolo": of_images(vision.Yolo),
    "autoencoder": of_images(vision.Autoencoder),
    "vae": of_batches(vision.VariationalDecoder, lambda n: torch.randn(n, 4)),
    "dcgan": of_batches(vision.dcgan, lambda n: torch.randn(n, 6, 1, 1)),
    "cbam": of_images(vision.ChannelSpatialAttention, 4), "res2net": of_images(vision.Res2Block, 8),
    "hrnet": of_images(vision.HighResolution), "nfnet": of_images(vision.NormalizerFree),
    "style_transfer": of_images(vision.StyleTransfer), "espcn": of_images(vision.espcn, 1),
    "segnet": of_images(vision.segnet),
    "siamese": of_batches(vision.Siamese, *[lambda n: torch.randn(n, 3, 8, 8)] * 2),
    "swin": Case(vision.SwinBlock, lambda batch, height: (torch.randn(batch, height, 12, 8),),
                 ({0: "batch", 1: "height"},),
                 ({"batch": 2, "height": 8}, {"batch": 1, "height": 16})),
    "mlp_mixer": of_batches(vision.MixerBlock, lambda n: torch.randn(n, 3, 16, 16)),
    "class_token": of_images(vision.ClassToken),
}

SEQUENCE: dict[str, Case] = {
    "tcn": Case(sequences.TemporalConvolution, lambda batch, steps: (torch.randn(batch, 4, steps),),
                ({0: "batch", 2: "steps"},), SEQUENCES),
    "wavenet": of_ids(sequences.WaveNet, 16), "conformer": of_vectors(sequences.Conformer, 8),
    "gmlp": of_vectors(sequences.GatedMlp, 4), "pointnet": of_vectors(sequences.PointNet, 3),
    "gcn": Case(sequences.GraphConvolution, lambda batch, steps: (
        torch.randn(batch, steps, 4), (torch.rand(batch, steps, steps) > 0.5).float()),
        ({0: "batch", 1: "steps"}, {0: "batch", 1: "steps", 2: "steps"}), SEQUENCES),
    "deep_sets": Case(sequences.DeepSets, lambda batch, steps: (
        torch.randn(batch, steps, 3), (torch.rand(batch, steps) > 0.3).float()), (*STEPS, *STEPS), SEQUENCES),
    "crnn": Case(sequences.ConvolutionalRecurrent, lambda batch, steps: (torch.randn(batch, 1, 8, steps),),
                 ({0: "batch", 3: "steps"},), SEQUENCES),
    "transformer": Case(sequences.Transformer, lambda batch, steps, targets: (
        torch.randint(0, 20, (batch, steps)), torch.randint(0, 20, (batch, targets))),
        (*STEPS, {0: "batch", 1: "targets"}),
        ({"batch": 2, "steps": 6, "targets": 4}, {"batch": 3, "steps": 5, "targets": 7})),
    "linear_attention": of_vectors(sequences.LinearAttention, 8), "perceiver": of_vectors(sequences.Perceiver, 8),
    "mixture_of_experts": of_vectors(sequences.MixtureOfExperts, 8), "state_space": of_vectors(sequences.StateSpace, 4),
    "wide_and_deep": of_batches(sequences.WideAndDeep, lambda n: torch.randn(n, 2),
                                lambda n: torch.randint(0, 5, (n, 2))),
    "dlrm": Case(sequences.Dlrm, lambda batch, steps: (
        torch.randn(batch, 3), [torch.randint(0, 6, (batch, steps)) for _ in range(2)]),
        ({0: "batch"}, [{0: "batch", 1: "steps"}, {0: "batch", 1: "steps"}]), SEQUENCES),
    "tab_transformer": of_batches(sequences.TabTransformer, lambda n: torch.randint(0, 4, (n, 3)),
                                  lambda n: torch.randn(n, 3)),
    "seq2seq_step": Case(sequences.RecurrentStep, lambda batch, steps: (
        torch.randint(0, 10, (batch,)), torch.randn(batch, 6), torch.randn(batch, steps, 6),
        torch.randint(1, steps + 1, (batch,))), ({0: "batch"}, {0: "batch"}, *STEPS, {0: "batch"}), SEQUENCES),
    "gpt_by_hand": of_ids(sequences.GptByHand, 20),
    "cached_attention": Case(sequences.CachedAttention, lambda batch, past: (
        torch.randn(batch, 1, 8), {"k": torch.randn(batch, 2, past, 4), "v": torch.randn(batch, 2, past, 4)}),
        ({0: "batch"}, {"k": {0: "batch", 2: "past"}, "v": {0: "batch", 2: "past"}}),
        ({"batch": 2, "past": 5}, {"batch": 1, "past": 8})),
    "rotary": of_vectors(sequences.Rotary, 8), "text_cnn": of_ids(sequences.TextConvolution, 20),
    "relative_bias": of_vectors(sequences.RelativeBias, 8),
    "sliding_windows": Case(sequences.SlidingWindows, lambda batch, steps: (torch.randn(batch, steps),), STEPS,
                            ({"batch": 2, "steps": 32}, {"batch": 3, "steps": 45})),
}


CASES = VISION | SEQUENCE
ATTENTION = ("swin", "class_token", "conformer", "transformer", "perceiver", "tab_transformer", "gpt_by_hand",
             "cached_attention", "rotary", "relative_bias")


@pytest.mark.parametrize("name", CASES)
def test_architectures(name: str, same_for_extents: Callable[..., ImportedModel]) -> None:
    case = CASES[name]
    imported = same_for_extents(case.make(), case.inputs, case.dynamic, case.sizes)
    grouped = run_pipeline(imported.mod)
    for extents in case.sizes:
        inputs = [t for t in pytree.tree_leaves(case.inputs(**extents)) if isinstance(t, torch.Tensor)]
        for before, after in zip(*(reference.run(m, inputs) for m in (imported.mod, grouped)), strict=True):
            torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5 * float(before.abs().max()))
    kinds = {g.kind for g in groups_of(grouped)}
    assert ("attention" in kinds) == (name in ATTENTION) and not (name in ATTENTION and "softmax" in kinds)


@pytest.mark.parametrize("name", ["unet", "gpt_by_hand", "cached_attention", "seq2seq_step"])
def test_compiled_programs(name: str) -> None:
    torch.manual_seed(0)
    case, module = CASES[name], CASES[name].make().eval()
    program = nc.compile(module, "cpu", example_inputs=case.inputs(**case.sizes[0]), dynamic_shapes=case.dynamic)
    for extents in case.sizes:
        inputs = case.inputs(**extents)
        found = program(*(t.numpy() for t in pytree.tree_leaves(inputs)))
        with torch.no_grad():
            expected = pytree.tree_leaves(module(*inputs))
        for a, b in zip(pytree.tree_leaves(found), expected, strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-5 * float(b.abs().max()))
