"""Networks that torch.onnx exports with dynamic extents, at two values of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from narrowcast.models.bert import BertEncoder, BertShape
from narrowcast.models.efficientnet_lite import EfficientNetLite0

from .bindings import operations
from .onnx_models import agrees, noise
from .test_pytorch_architectures import SEQUENCE, VISION


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path, dynamic: tuple[dict[int, str], ...],
             *, dynamo: bool = True) -> onnx.ModelProto:
    """The ONNX model with the axes named in ``dynamic`` open."""
    names = [f"input{i}" for i in range(len(inputs))]
    if dynamo:
        shapes = tuple({axis: torch.export.Dim(name) for axis, name in axes.items()} for axes in dynamic)
        torch.onnx.export(module.eval(), inputs, str(path), input_names=names, dynamo=True, external_data=False,
                          dynamic_shapes=shapes, verbose=False)
    else:
        torch.onnx.export(module.eval(), inputs, str(path), input_names=names, dynamo=False,
                          dynamic_axes=dict(zip(names, dynamic, strict=True)))
    return onnx.load(str(path))


@pytest.mark.filterwarnings("ignore")
def test_efficientnet_with_a_dynamic_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    proto = exported(EfficientNetLite0(), (torch.randn(2, 3, 64, 64),), tmp_path / "net.onnx", ({0: "batch"},))
    feeds = [{"input0": noise(batch, 3, 64, 64)} for batch in (1, 3)]
    imported = agrees(proto, *feeds, terms=49 * 48)
    assert imported.inputs[0].shape == ("batch", 3, 64, 64) and imported.requirements == ()
    assert operations(imported).count("relax.nn.conv2d") == 49


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [True, False])
def test_bert_with_dynamic_batch_and_length(tmp_path: Path, dynamo: bool) -> None:
    torch.manual_seed(0)
    module = BertEncoder(BertShape(layers=2, channels=32, heads=4, inner=64, vocabulary=50, positions=40))
    ids, mask = torch.randint(0, 50, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    axes = {0: "batch", 1: "tokens"}
    proto = exported(module, (ids, mask), tmp_path / "net.onnx", (axes, axes), dynamo=dynamo)
    feeds = []
    for batch, tokens in ((1, 5), (3, 17)):
        generator = np.random.default_rng(tokens)
        lengths = generator.integers(1, tokens + 1, batch)
        feeds.append({"input0": generator.integers(0, 50, (batch, tokens)),
                      "input1": (np.arange(tokens) < lengths[:, None]).astype(np.int64)})
    imported = agrees(proto, *feeds, terms=2 * (3 * 32 + 64 + 17))
    assert [s.shape for s in imported.inputs] == [("batch", "tokens")] * 2
    assert all(str(r) == "40 >= tokens" for r in imported.requirements)
    assert {"relax.take", "relax.nn.layer_norm", "relax.nn.softmax", "relax.nn.gelu"} <= set(operations(imported))


class Pyramid(nn.Module):
    """Maps at two resolutions, the coarse one enlarged to the size of the fine one."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(4, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = self.down(x)
        coarse = self.deep(fine)
        return fine + nn.functional.interpolate(coarse, size=fine.shape[2:], mode="bilinear", align_corners=False)


@pytest.mark.filterwarnings("ignore")
def test_an_image_network_with_dynamic_sides(tmp_path: Path) -> None:
    torch.manual_seed(0)
    proto = exported(Pyramid(), (torch.randn(1, 3, 30, 22),), tmp_path / "net.onnx",
                     ({0: "batch", 2: "height", 3: "width"},))
    agrees(proto, {"input0": noise(1, 3, 31, 20)}, {"input0": noise(2, 3, 24, 33)}, terms=100)


# Of the architectures of the PyTorch frontend those whose exports compute most from their extents.
ARCHITECTURES = ("swin", "unet", "fpn", "deeplab", "squeezenet", "segnet", "tcn", "crnn", "gmlp", "gcn",
                 "relative_bias", "gpt_by_hand", "linear_attention", "text_cnn")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_of_the_scripting_exporter(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = (VISION | SEQUENCE)[name]
    inputs = case.inputs(**case.sizes[0])
    proto = exported(case.make(), inputs, tmp_path / "net.onnx", case.dynamic, dynamo=False)
    feeds = [{f"input{i}": t.numpy() for i, t in enumerate(case.inputs(**size))} for size in case.sizes]
    # Up to a dozen layers in series, sums of some hundred products at most.
    imported = agrees(proto, *feeds, terms=12 * 64, least=1.0)
    assert {d for s in imported.inputs for d in s.shape if isinstance(d, str)} == set(case.sizes[0])
    assert all(r.is_met(size) for r in imported.requirements for size in case.sizes)
