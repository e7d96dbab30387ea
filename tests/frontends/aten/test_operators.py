"""Every family of ATen operators against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from narrowcast.frontends import ImportedModel

Same = Callable[..., ImportedModel]


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes)


def integers(high: int, *sizes: int) -> torch.Tensor:
    return torch.randint(0, high, sizes)


UNARY = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "trunc": torch.trunc,
    "neg": torch.neg,
    "exp": torch.exp,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "sign": torch.sign,
    "round": torch.round,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "expm1": torch.expm1,
    "exp2": torch.exp2,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "nan_to_num": torch.nan_to_num,
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "softplus": lambda x: F.softplus(x, beta=2),
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "softsign": F.softsign,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "glu": lambda x: F.glu(x, 1),
    "rrelu": F.rrelu,
    "logical_not": torch.logical_not,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_max": lambda x: x.clamp_max(0.1),
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
}
POSITIVE = {
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log10": torch.log10,
    "pow": lambda x: x**0.3,
    "sqrt_by_pow": lambda x: x**0.5,
    "rsqrt_by_pow": lambda x: x**-0.5,
    "acosh": lambda x: torch.acosh(x + 1.5),
    "asin": lambda x: torch.asin(x / 9),
    "acos": lambda x: torch.acos(x / 9),
    "atanh": lambda x: torch.atanh(x / 9),
    "exp_base": lambda x: 2.0**x,
}


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_functions(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(UNARY[name], randn(2, 4, 5))


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(POSITIVE[name], torch.rand(2, 4, 5) + 0.1)


BINARY = {
    "add": torch.add,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=2),
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "rsub": lambda x, y: 3.0 - x * y,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "max_other": torch.max,
    "atan2": torch.atan2,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "eq": lambda x, y: x == y,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": lambda x, y: x <= y,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": lambda x, y: (x > 0) & (y > 0),
    "logical_or": lambda x, y: (x > 0) | (y > 0),
    "logical_xor": torch.logical_xor,
    "bool_add": lambda x, y: (x > 0) + (y > 0),
    "bool_mul": lambda x, y: (x > 0) * y,
    "invert": lambda x, y: ~(x > y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "where_scalar": lambda x, y: torch.where(x > y, x, 0.5),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -2.0),
    "in_place": lambda x, y: (x * 2).add_(y).relu_(),
    "ones_like": lambda x, y: x + torch.ones_like(y),
    "full_like": lambda x, y: x + torch.full_like(y, 2.5),
    "new_zeros": lambda x, y: x + x.new_zeros(2, 1, 5),
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "copysign_free": lambda x, y: x.sign() * y.abs(),
}


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(BINARY[name], randn(2, 4, 5), randn(4, 5))


INTEGER = {
    "add": lambda i, x: i + 2,
    "promote": lambda i, x: i + x,
    "true_div": lambda i, x: i / 2,
    "floor_div": lambda i, x: i // 2,
    "mod": lambda i, x: i % 3,
    "neg_mod": lambda i, x: (i - 5) % 3,
    "trunc_div": lambda i, x: torch.div(i - 5, 2, rounding_mode="trunc"),
    "pow": lambda i, x: i**2,
    "and": lambda i, x: i & 3,
    "or": lambda i, x: i | 4,
    "xor": lambda i, x: i ^ 5,
    "not": lambda i, x: ~i,
    "compare": lambda i, x: i > 1.5,
    "compare_tensor": lambda i, x: i < x,
    "float": lambda i, x: i.float() * x,
    "bool": lambda i, x: i.bool(),
    "int": lambda i, x: (x * 3).int(),
    "type_as": lambda i, x: i.type_as(x),
    "clamp": lambda i, x: i.clamp(1, 3),
    "sum": lambda i, x: i.sum(0),
    "mean": lambda i, x: i.float().mean(),
    "max": lambda i, x: i.max(),
    "cumsum": lambda i, x: i.cumsum(1),
    "one_hot": lambda i, x: F.one_hot(i, 8),
    "abs": lambda i, x: (i - 3).abs(),
    "bool_sum": lambda i, x: (i > 2).sum(),
}


@pytest.mark.parametrize("name", INTEGER)
def test_integers(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(INTEGER[name], integers(8, 3, 4), randn(3, 4))


MOVEMENT = {
    "view": lambda x: x.view(2, -1),
    "reshape": lambda x: x.reshape(4, 30),
    "flatten": lambda x: x.flatten(1, 2),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(1, 2),
    "t": lambda x: x[0].t(),
    "mT": lambda x: x.mT,
    "movedim": lambda x: x.movedim(0, 2),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[:1, :, :1].squeeze(),
    "squeeze_dim": lambda x: x[:1].squeeze(0),
    "squeeze_dims": lambda x: x[:1, :, :1].squeeze((0, 2)),
    "expand": lambda x: x[:1].expand(3, -1, -1),
    "expand_as": lambda x: x[:1].expand_as(x),
    "repeat": lambda x: x.repeat(2, 1, 2),
    "repeat_more": lambda x: x.repeat(2, 1, 1, 1),
    "tile": lambda x: torch.tile(x, (2, 1)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "cat": lambda x: torch.cat([x, x + 1], 1),
    "stack": lambda x: torch.stack([x, x * 2], -1),
    "hstack": lambda x: torch.hstack([x, x]),
    "slice": lambda x: x[:, 1:5:2, -3:],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "select": lambda x: x[:, -1],
    "chunk": lambda x: x.chunk(4, 1),
    "split": lambda x: x.split(4, 1),
    "split_sizes": lambda x: x.split([1, 5], 1)[1],
    "tensor_split": lambda x: x.tensor_split(4, 1),
    "unbind": lambda x: x.unbind(0),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((1, -2), (1, 2)),
    "roll_flat": lambda x: x.roll(3),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=1.5),
    "crop": lambda x: F.pad(x, (-1, 2)),
    "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (2, 1), mode="circular"),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "shuffle": lambda x: F.channel_shuffle(x.unsqueeze(0), 2),
    "contiguous": lambda x: x.transpose(0, 1).contiguous() + 0,
    "assign": lambda x: _assigned(x),
    "index_front": lambda x: x[[1, 0, 1]],
    "index_pair": lambda x: x[[0, 1], [2, 3]],
    "index_tail": lambda x: x[:, [0, 2], [1, 3]],
    "index_apart": lambda x: x[[0, 1], :, [1, 3]],
    "index_negative": lambda x: x[:, torch.tensor([-1, 0])],
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "rot90": lambda x: torch.rot90(x, 1, (1, 2)),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="xy"),
    "arange": lambda x: x + torch.arange(20),
    "linspace": lambda x: x * torch.linspace(0, 1, 20),
    "eye": lambda x: x[:, :, :6] @ torch.eye(6),
    "position": lambda x: x + torch.arange(x.shape[-1]).float()[None] / x.size(1),
    "atleast_3d": torch.atleast_3d,
    "view_as": lambda x: x.view_as(x.transpose(0, 1)),
}


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1] = 0
    y[:, :, 2:4] += 1
    return y


@pytest.mark.parametrize("name", MOVEMENT)
def test_movement(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(MOVEMENT[name], randn(2, 6, 20)[:, :, :20] if name != "reshape" else randn(2, 6, 10))


REDUCTION = {
    "sum": lambda x: x.sum(),
    "sum_dim": lambda x: x.sum((0, 2)),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "mean_all": torch.mean,
    "prod": lambda x: x.prod(1),
    "max": lambda x: x.max(),
    "max_dim": lambda x: x.max(1),
    "min_dim": lambda x: x.min(1, keepdim=True),
    "amax": lambda x: x.amax((1, 2)),
    "amin": lambda x: x.amin(1),
    "argmax": lambda x: x.argmax(1),
    "argmax_all": torch.argmax,
    "argmin": lambda x: x.argmin(-1, keepdim=True),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -3).all(),
    "var": lambda x: x.var(),
    "var_dim": lambda x: x.var(1),
    "var_biased": lambda x: x.var(1, unbiased=False, keepdim=True),
    "std": lambda x: x.std((1, 2), keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, 1, correction=0),
    "norm": lambda x: x.norm(dim=1),
    "norm_all": torch.norm,
    "norm1": lambda x: x.norm(p=1, dim=-1),
    "norm3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "normalize": lambda x: F.normalize(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "topk": lambda x: x.topk(3, dim=1),
    "sort": lambda x: x.sort(1, descending=True),
    "argsort": lambda x: x.argsort(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=1),
    "median_free": lambda x: x.sort(-1)[0][..., 3],
    "norm_matrix": lambda x: torch.linalg.norm(x, dim=(1, 2)),
}


@pytest.mark.parametrize("name", REDUCTION)
def test_reductions(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(REDUCTION[name], randn(2, 5, 7))


INDEXING = {
    "gather": lambda x, i: x.gather(1, i),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "index": lambda x, i: x[:, i[0]],
    "take": lambda x, i: torch.take_along_dim(x, i, 1),
    "scatter": lambda x, i: torch.scatter(x, 1, i[:, :1], 2.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i, torch.ones_like(i, dtype=torch.float32)),
    "negative": lambda x, i: x[:, i[0] - 3],
    "pair": lambda x, i: x[i[:, 0] % 2, i[:, 1]],
    "put_mask": lambda x, i: _masked(x),
    "embedding": lambda x, i: F.embedding(i, x.t()),
    "index_put": lambda x, i: torch.index_put(x, (i[:, 0] % 2, i[:, 1]), torch.tensor(4.0)),
}


def _masked(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[x > 0] = 7.0
    return y


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(INDEXING[name], randn(2, 6), torch.tensor([[0, 3, 5], [1, 2, 4]]))


MATRIX = {
    "matmul": torch.matmul,
    "bmm": torch.bmm,
    "einsum": lambda a, b: torch.einsum("bij,bjk->bik", a, b),
    "einsum_transposed": lambda a, b: torch.einsum("bij,bjk->bki", a, b),
    "einsum_sum": lambda a, b: torch.einsum("bij,bjk->bk", a, b),
    "baddbmm": lambda a, b: torch.baddbmm(torch.ones(3, 4, 6), a, b, beta=0.5, alpha=2),
    "addmm": lambda a, b: torch.addmm(a[0, :, :1], a[0], b[0]),
    "mv": lambda a, b: a[0] @ b[0, :, 0],
    "dot": lambda a, b: torch.dot(a[0, 0], b[0, :, 0]),
    "outer": lambda a, b: torch.outer(a[0, 0], b[0, 0]),
    "dynamic_linear": lambda a, b: F.linear(a[0], b[0].t()),
    "tensordot": lambda a, b: torch.tensordot(a[0], b[0], 1),
    "vector_first": lambda a, b: a[0, 0] @ b,
    "chain": lambda a, b: (a @ b).softmax(-1) @ b.transpose(1, 2),
}


@pytest.mark.parametrize("name", MATRIX)
def test_matrix_products(name: str, same_as_pytorch: Same) -> None:
    same_as_pytorch(MATRIX[name], randn(3, 4, 5), randn(3, 5, 6))
