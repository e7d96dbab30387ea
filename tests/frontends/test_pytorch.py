"""The PyTorch frontend against PyTorch: every operator family, names, preferred forms, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends import ImportedModel, import_model
from narrowcast.ir import constant_value, op_bindings, op_name, shape_of
from narrowcast.operators import reference
from narrowcast.passes.verify import VerifyNormalForm
from torch import nn
from torch.utils import _pytree as pytree

EPS = float(np.finfo(np.float32).eps)


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes)


def integers(high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, high, sizes)


def same(model: nn.Module | Callable[..., Any], *inputs: Any, length: int = 64) -> ImportedModel:
    """Import, verify, run by the reference and compare with PyTorch.

    ``length`` is the longest sum in the model: rounding errors of both sides grow with it, at worst linearly; a
    factor of 16 leaves room for a few operators in a row.
    """
    module = model if isinstance(model, nn.Module) else Function(model)
    imported = import_model(module, inputs)
    VerifyNormalForm()(imported.mod)
    tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    assert [(i.shape, i.dtype) for i in imported.inputs] == [
        (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
    found = reference.run(imported.mod, tensors)
    training = [m for m in module.modules() if m.training]
    with torch.no_grad():
        expected = pytree.tree_leaves(module.eval()(*inputs))
    for m in training:
        m.training = True
    assert len(found) == len(expected) == len(imported.outputs)
    for a, b in zip(found, expected, strict=True):
        assert tuple(a.shape) == tuple(b.shape) and a.dtype == b.dtype
        if b.dtype.is_floating_point:
            scale = float(b[torch.isfinite(b)].abs().max()) if torch.isfinite(b).any() else 1.0
            torch.testing.assert_close(a, b, rtol=16 * EPS, atol=16 * EPS * length * max(scale, 1e-3), equal_nan=True)
        else:
            torch.testing.assert_close(a, b)
    return imported


def operators(imported: ImportedModel) -> list[str]:
    return [op_name(b.value) or "item" for b in op_bindings(imported.mod["main"])]


def names(imported: ImportedModel) -> list[str]:
    return [b.var.name for b in op_bindings(imported.mod["main"])]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


UNARY = {
    "abs": torch.abs, "ceil": torch.ceil, "floor": torch.floor, "trunc": torch.trunc, "neg": torch.neg,
    "exp": torch.exp, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "sign": torch.sign, "round": torch.round,
    "square": torch.square, "reciprocal": torch.reciprocal, "expm1": torch.expm1, "exp2": torch.exp2,
    "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite, "nan_to_num": torch.nan_to_num,
    "relu": F.relu, "relu6": F.relu6, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "elu": lambda x: F.elu(x, 0.7), "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3), "softplus": lambda x: F.softplus(x, beta=2), "mish": F.mish,
    "logsigmoid": F.logsigmoid, "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7), "softsign": F.softsign,
    "hardshrink": F.hardshrink, "softshrink": F.softshrink, "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0), "glu": lambda x: F.glu(x, 1), "rrelu": F.rrelu,
    "logical_not": torch.logical_not, "clamp": lambda x: x.clamp(-0.5, 0.5), "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda x: x.clamp_max(0.1), "pow2": lambda x: x**2, "pow3": lambda x: x**3,
}
POSITIVE = {
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log1p": torch.log1p, "log2": torch.log2,
    "log10": torch.log10, "pow": lambda x: x**0.3, "sqrt_by_pow": lambda x: x**0.5, "rsqrt_by_pow": lambda x: x**-0.5,
    "acosh": lambda x: torch.acosh(x + 1.5), "asin": lambda x: torch.asin(x / 9), "acos": lambda x: torch.acos(x / 9),
    "atanh": lambda x: torch.atanh(x / 9), "exp_base": lambda x: 2.0**x,
}


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions(name: str) -> None:
    same(UNARY[name], randn(2, 4, 5))


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name: str) -> None:
    same(POSITIVE[name], torch.rand(2, 4, 5) + 0.1)


BINARY = {
    "add": torch.add, "add_alpha": lambda x, y: torch.add(x, y, alpha=2), "sub": torch.sub, "mul": torch.mul,
    "div": torch.div, "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "rsub": lambda x, y: 3.0 - x * y,
    "maximum": torch.maximum, "minimum": torch.minimum, "max_other": torch.max, "atan2": torch.atan2,
    "fmod": torch.fmod, "remainder": torch.remainder, "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5), "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "eq": lambda x, y: x == y, "ne": torch.ne, "lt": torch.lt, "le": lambda x, y: x <= y, "gt": torch.gt,
    "ge": torch.ge, "logical_and": lambda x, y: (x > 0) & (y > 0), "logical_or": lambda x, y: (x > 0) | (y > 0),
    "logical_xor": torch.logical_xor, "bool_add": lambda x, y: (x > 0) + (y > 0), "bool_mul": lambda x, y: (x > 0) * y,
    "invert": lambda x, y: ~(x > y), "where": lambda x, y: torch.where(x > y, x, y),
    "where_scalar": lambda x, y: torch.where(x > y, x, 0.5), "masked_fill": lambda x, y: x.masked_fill(y > 0, -2.0),
    "in_place": lambda x, y: (x * 2).add_(y).relu_(), "ones_like": lambda x, y: x + torch.ones_like(y),
    "full_like": lambda x, y: x + torch.full_like(y, 2.5), "new_zeros": lambda x, y: x + x.new_zeros(2, 1, 5),
    "hypot": torch.hypot, "logaddexp": torch.logaddexp, "copysign_free": lambda x, y: x.sign() * y.abs(),
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name: str) -> None:
    same(BINARY[name], randn(2, 4, 5), randn(4, 5))


INTEGER = {
    "add": lambda i, x: i + 2, "promote": lambda i, x: i + x, "true_div": lambda i, x: i / 2, "floor_div": lambda i, x: i // 2,
    "mod": lambda i, x: i % 3, "neg_mod": lambda i, x: (i - 5) % 3, "trunc_div": lambda i, x: torch.div(i - 5, 2, rounding_mode="trunc"),
    "pow": lambda i, x: i**2, "and": lambda i, x: i & 3, "or": lambda i, x: i | 4, "xor": lambda i, x: i ^ 5,
    "not": lambda i, x: ~i, "compare": lambda i, x: i > 1.5, "compare_tensor": lambda i, x: i < x, "float": lambda i, x: i.float() * x,
    "bool": lambda i, x: i.bool(), "int": lambda i, x: (x * 3).int(), "type_as": lambda i, x: i.type_as(x), "clamp": lambda i, x: i.clamp(1, 3),
    "sum": lambda i, x: i.sum(0), "mean": lambda i, x: i.float().mean(), "max": lambda i, x: i.max(), "cumsum": lambda i, x: i.cumsum(1),
    "one_hot": lambda i, x: F.one_hot(i, 8), "abs": lambda i, x: (i - 3).abs(), "bool_sum": lambda i, x: (i > 2).sum(),
}


@pytest.mark.parametrize("name", INTEGER)
def test_integers(name: str) -> None:
    same(INTEGER[name], integers(8, 3, 4), randn(3, 4))


MOVEMENT = {
    "view": lambda x: x.view(2, -1), "reshape": lambda x: x.reshape(4, 30), "flatten": lambda x: x.flatten(1, 2),
    "unflatten": lambda x: x.unflatten(1, (2, -1)), "permute": lambda x: x.permute(2, 0, 1), "transpose": lambda x: x.transpose(1, 2),
    "t": lambda x: x[0].t(), "mT": lambda x: x.mT, "movedim": lambda x: x.movedim(0, 2), "swapaxes": lambda x: x.swapaxes(0, 1),
    "unsqueeze": lambda x: x.unsqueeze(-1), "squeeze": lambda x: x[:1, :, :1].squeeze(), "squeeze_dim": lambda x: x[:1].squeeze(0),
    "squeeze_dims": lambda x: x[:1, :, :1].squeeze((0, 2)), "expand": lambda x: x[:1].expand(3, -1, -1), "expand_as": lambda x: x[:1].expand_as(x),
    "repeat": lambda x: x.repeat(2, 1, 2), "repeat_more": lambda x: x.repeat(2, 1, 1, 1), "tile": lambda x: torch.tile(x, (2, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1), "cat": lambda x: torch.cat([x, x + 1], 1), "stack": lambda x: torch.stack([x, x * 2], -1),
    "hstack": lambda x: torch.hstack([x, x]), "slice": lambda x: x[:, 1:5:2, -3:], "narrow": lambda x: x.narrow(1, 2, 3), "select": lambda x: x[:, -1],
    "chunk": lambda x: x.chunk(4, 1), "split": lambda x: x.split(4, 1), "split_sizes": lambda x: x.split([1, 5], 1)[1], "tensor_split": lambda x: x.tensor_split(4, 1),
    "unbind": lambda x: x.unbind(0), "flip": lambda x: x.flip(0, 2), "roll": lambda x: x.roll((1, -2), (1, 2)), "roll_flat": lambda x: x.roll(3),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), "crop": lambda x: F.pad(x, (-1, 2)), "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1), mode="replicate"), "circular": lambda x: F.pad(x, (2, 1), mode="circular"),
    "tril": lambda x: x.tril(1), "triu": lambda x: x.triu(-1), "shuffle": lambda x: F.channel_shuffle(x.unsqueeze(0), 2), "contiguous": lambda x: x.transpose(0, 1).contiguous() + 0,
    "assign": lambda x: _assigned(x), "index_front": lambda x: x[[1, 0, 1]], "index_pair": lambda x: x[[0, 1], [2, 3]], "index_tail": lambda x: x[:, [0, 2], [1, 3]],
    "index_apart": lambda x: x[[0, 1], :, [1, 3]], "index_negative": lambda x: x[:, torch.tensor([-1, 0])], "diagonal": lambda x: x.diagonal(0, 1, 2),
    "unfold": lambda x: x.unfold(1, 3, 2), "rot90": lambda x: torch.rot90(x, 1, (1, 2)), "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="xy"),
    "arange": lambda x: x + torch.arange(20), "linspace": lambda x: x * torch.linspace(0, 1, 20), "eye": lambda x: x[:, :, :6] @ torch.eye(6),
    "position": lambda x: x + torch.arange(x.shape[-1]).float()[None] / x.size(1), "atleast_3d": torch.atleast_3d, "view_as": lambda x: x.view_as(x.transpose(0, 1)),
}


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1] = 0
    y[:, :, 2:4] += 1
    return y


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement(name: str) -> None:
    same(MOVEMENT[name], randn(2, 6, 20)[:, :, :20] if name != "reshape" else randn(2, 6, 10))


REDUCTION = {
    "sum": lambda x: x.sum(), "sum_dim": lambda x: x.sum((0, 2)), "mean": lambda x: x.mean(-1, keepdim=True), "mean_all": torch.mean, "prod": lambda x: x.prod(1),
    "max": lambda x: x.max(), "max_dim": lambda x: x.max(1), "min_dim": lambda x: x.min(1, keepdim=True), "amax": lambda x: x.amax((1, 2)), "amin": lambda x: x.amin(1),
    "argmax": lambda x: x.argmax(1), "argmax_all": torch.argmax, "argmin": lambda x: x.argmin(-1, keepdim=True), "any": lambda x: (x > 1).any(1), "all": lambda x: (x > -3).all(),
    "var": lambda x: x.var(), "var_dim": lambda x: x.var(1), "var_biased": lambda x: x.var(1, unbiased=False, keepdim=True), "std": lambda x: x.std((1, 2), keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1), "std_mean": lambda x: torch.std_mean(x, 1, correction=0), "norm": lambda x: x.norm(dim=1), "norm_all": torch.norm,
    "norm1": lambda x: x.norm(p=1, dim=-1), "norm3": lambda x: torch.linalg.vector_norm(x, 3, dim=1), "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "normalize": lambda x: F.normalize(x, dim=1), "logsumexp": lambda x: x.logsumexp(1), "cumsum": lambda x: x.cumsum(1), "cumprod": lambda x: x.cumprod(-1),
    "topk": lambda x: x.topk(3, dim=1), "sort": lambda x: x.sort(1, descending=True), "argsort": lambda x: x.argsort(1), "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: F.log_softmax(x, -1), "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=1), "median_free": lambda x: x.sort(-1)[0][..., 3],
    "norm_matrix": lambda x: torch.linalg.norm(x, dim=(1, 2)), "cdist": lambda x: torch.cdist(x, x + 1, compute_mode="donot_use_mm_for_euclid_dist"),
}


@pytest.mark.parametrize("name", REDUCTION)
def test_reductions(name: str) -> None:
    same(REDUCTION[name], randn(2, 5, 7))


INDEXING = {
    "gather": lambda x, i: x.gather(1, i), "index_select": lambda x, i: x.index_select(1, i[0]), "index": lambda x, i: x[:, i[0]], "take": lambda x, i: torch.take_along_dim(x, i, 1),
    "scatter": lambda x, i: torch.scatter(x, 1, i[:, :1], 2.0), "scatter_add": lambda x, i: x.scatter_add(1, i, torch.ones_like(i, dtype=torch.float32)),
    "negative": lambda x, i: x[:, i[0] - 3], "pair": lambda x, i: x[i[:, 0] % 2, i[:, 1]], "put_mask": lambda x, i: _masked(x), "embedding": lambda x, i: F.embedding(i, x.t()),
    "index_put": lambda x, i: torch.index_put(x, (i[:, 0] % 2, i[:, 1]), torch.tensor(4.0)),
}


def _masked(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[x > 0] = 7.0
    return y


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str) -> None:
    same(INDEXING[name], randn(2, 6), torch.tensor([[0, 3, 5], [1, 2, 4]]))


MATRIX = {
    "matmul": torch.matmul, "bmm": torch.bmm, "einsum": lambda a, b: torch.einsum("bij,bjk->bik", a, b), "einsum_transposed": lambda a, b: torch.einsum("bij,bjk->bki", a, b),
    "einsum_sum": lambda a, b: torch.einsum("bij,bjk->bk", a, b), "baddbmm": lambda a, b: torch.baddbmm(torch.ones(3, 4, 6), a, b, beta=0.5, alpha=2),
    "addmm": lambda a, b: torch.addmm(a[0, :, :1], a[0], b[0]), "mv": lambda a, b: a[0] @ b[0, :, 0], "dot": lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
    "outer": lambda a, b: torch.outer(a[0, 0], b[0, 0]), "dynamic_linear": lambda a, b: F.linear(a[0], b[0].t()), "tensordot": lambda a, b: torch.tensordot(a[0], b[0], 1),
    "vector_first": lambda a, b: a[0, 0] @ b, "chain": lambda a, b: (a @ b).softmax(-1) @ b.transpose(1, 2),
}


@pytest.mark.parametrize("name", MATRIX)
def test_matrix_products(name: str) -> None:
    same(MATRIX[name], randn(3, 4, 5), randn(3, 5, 6))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2)), (2, 4, 12, 12)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 3, padding=1), (1, 2, 5, 6, 7)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6, bias=False), (2, 6, 7, 7)),
    "grouped": (lambda: nn.Conv2d(6, 9, 3, groups=3), (2, 6, 7, 7)),
    "conv_same": (lambda: nn.Conv2d(3, 4, 4, padding="same"), (1, 3, 8, 8)),
    "conv_valid": (lambda: nn.Conv1d(3, 4, 4, padding="valid"), (1, 3, 8)),
    "conv_reflect": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (1, 3, 8, 8)),
    "conv_unbatched": (lambda: nn.Conv2d(3, 4, 3), (3, 8, 8)),
    "transposed1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (2, 3, 6)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (2, 4, 5, 5)),
    "transposed_up": (lambda: nn.ConvTranspose2d(4, 3, 2, stride=2), (1, 4, 5, 5)),
    "linear": (lambda: nn.Linear(7, 5), (2, 3, 7)), "linear_vector": (lambda: nn.Linear(7, 5, bias=False), (7,)),
    "batch_norm1d": (lambda: trained_norm(nn.BatchNorm1d(5)), (4, 5)),
    "batch_norm1d_sequence": (lambda: trained_norm(nn.BatchNorm1d(5, affine=False)), (4, 5, 6)),
    "batch_norm2d": (lambda: trained_norm(nn.BatchNorm2d(5)), (2, 5, 4, 4)),
    "batch_norm3d": (lambda: trained_norm(nn.BatchNorm3d(5)), (2, 5, 2, 3, 4)),
    "layer_norm": (lambda: nn.LayerNorm((3, 7)), (2, 3, 7)),
    "layer_norm_bare": (lambda: nn.LayerNorm(7, elementwise_affine=False), (2, 3, 7)),
    "rms_norm": (lambda: nn.RMSNorm(7), (2, 3, 7)), "group_norm": (lambda: nn.GroupNorm(2, 6), (2, 6, 4, 4)),
    "instance_norm": (lambda: nn.InstanceNorm2d(6, affine=True), (2, 6, 4, 4)),
    "instance_norm1d": (lambda: nn.InstanceNorm1d(6), (2, 6, 9)), "local_response": (lambda: nn.LocalResponseNorm(3), (2, 6, 4, 4)),
    "prelu": (lambda: nn.PReLU(6, init=0.3), (2, 6, 4)), "prelu_one": (lambda: nn.PReLU(), (2, 6)),
    "max_pool1d": (lambda: nn.MaxPool1d(3, 2, 1), (2, 3, 9)), "max_pool2d": (lambda: nn.MaxPool2d(3, 2, 1), (2, 3, 9, 8)),
    "max_pool_ceil": (lambda: nn.MaxPool2d(3, 2, ceil_mode=True), (2, 3, 8, 10)),
    "max_pool_ceil_pad": (lambda: nn.MaxPool2d(2, 2, 1, ceil_mode=True), (1, 3, 6, 7)),
    "max_pool_dilated": (lambda: nn.MaxPool2d(2, 1, dilation=2), (1, 3, 6, 7)), "max_pool3d": (lambda: nn.MaxPool3d(2), (1, 2, 4, 4, 6)),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, 2, 1), (2, 3, 9)), "avg_pool2d": (lambda: nn.AvgPool2d(3, 2, 1), (2, 3, 9, 8)),
    "avg_pool_exclude": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 9, 8)),
    "avg_pool_ceil": (lambda: nn.AvgPool2d(3, 2, ceil_mode=True), (2, 3, 8, 10)),
    "avg_pool_ceil_pad": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), (2, 3, 8, 10)),
    "avg_pool_divisor": (lambda: nn.AvgPool2d(3, 2, 1, divisor_override=5), (2, 3, 9, 8)), "avg_pool3d": (lambda: nn.AvgPool3d(2), (1, 2, 4, 4, 6)),
    "adaptive_avg": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 5, 6)), "adaptive_avg_uneven": (lambda: nn.AdaptiveAvgPool2d((3, 4)), (2, 3, 7, 6)),
    "adaptive_avg1d": (lambda: nn.AdaptiveAvgPool1d(3), (2, 3, 9)), "adaptive_max": (lambda: nn.AdaptiveMaxPool2d(2), (2, 3, 6, 8)),
    "upsample_nearest": (lambda: nn.Upsample(scale_factor=2), (1, 3, 4, 5)), "upsample_nearest_size": (lambda: nn.Upsample(size=(7, 9)), (1, 3, 4, 5)),
    "upsample_nearest1d": (lambda: nn.Upsample(scale_factor=2), (1, 3, 4)), "upsample_exact": (lambda: nn.Upsample(size=(7, 9), mode="nearest-exact"), (1, 3, 4, 5)),
    "upsample_bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 3, 4, 5)),
    "upsample_corners": (lambda: nn.Upsample(size=(7, 9), mode="bilinear", align_corners=True), (1, 3, 4, 5)),
    "downsample_bilinear": (lambda: nn.Upsample(size=(3, 3), mode="bilinear"), (1, 3, 7, 8)), "upsample_linear1d": (lambda: nn.Upsample(scale_factor=2, mode="linear"), (1, 3, 4)),
    "upsample_bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (1, 3, 4, 5)), "pixel_shuffle": (lambda: nn.PixelShuffle(2), (1, 8, 3, 4)),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), (1, 2, 6, 4)), "dropout": (lambda: nn.Sequential(nn.Dropout(), nn.ReLU()), (2, 3)),
    "softmax": (lambda: nn.Softmax(1), (2, 5, 3)), "flatten": (lambda: nn.Flatten(), (2, 5, 3)), "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
    "gru": (lambda: nn.GRU(4, 3, batch_first=True, bidirectional=True), (2, 3, 4)), "rnn": (lambda: nn.RNN(4, 3), (3, 2, 4)), "lstm_cell": (lambda: nn.LSTMCell(4, 3), (2, 4)),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), (2, 5, 8)), "unfold": (lambda: nn.Unfold(2), (1, 2, 4, 5)),
}


def trained_norm(norm: nn.Module) -> nn.Module:
    """Statistics and affine parameters that are not those of a new layer."""
    for tensor in [*norm.parameters(), norm.running_mean]:
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    make, sizes = LAYERS[name]
    same(make(), randn(*sizes))
