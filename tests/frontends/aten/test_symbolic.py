"""Operators of ATen over dynamic extents: imported once, right at every extent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

from narrowcast.errors import UnsupportedOperatorError
from narrowcast.frontends import DimRange, import_model
from narrowcast.operators import reference
from narrowcast.passes.verify import VerifyNormalForm

EPS = torch.finfo(torch.float32).eps


class Several(nn.Module):
    """Functions of the same inputs, all of whose results are returned."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: torch.Tensor) -> list[Any]:
        return [f(*inputs) for f in self.functions]


def steps(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[1])


def assigned(x: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    changed = x.clone()
    changed[key] = value
    return changed


SHAPES = (
    lambda x, y: x.view(x.shape[0], x.shape[1] * 4), lambda x, y: x.flatten(0, 1), lambda x, y: x.reshape(-1, 2),
    lambda x, y: x.unflatten(2, (2, -1)), lambda x, y: x.transpose(0, 1), lambda x, y: x[:, None].squeeze(1),
    lambda x, y: x[:1].expand(x.shape[0], -1, -1), lambda x, y: x.repeat(1, x.shape[0], 1),
    lambda x, y: x[:, :, :1].repeat(1, 1, x.shape[1]), lambda x, y: x.repeat_interleave(x.shape[1], 0),
    lambda x, y: x.repeat_interleave(2, 1), lambda x, y: torch.cat([x, y, x[:, :1]], 1),
    lambda x, y: torch.stack([x, y], 1), lambda x, y: x.flip(1), lambda x, y: torch.roll(x, (1, -2), (1, 2)),
    lambda x, y: torch.meshgrid(steps(x), torch.arange(x.shape[0]), indexing="ij"),
)
PARTS = (
    lambda x, y: x[:, 1:], lambda x, y: x[:, :-1], lambda x, y: x[:, -2:], lambda x, y: x[:, ::2],
    lambda x, y: x[:, 1::3], lambda x, y: x[:, x.shape[1] // 2:], lambda x, y: x[:, :y.shape[0]],
    lambda x, y: x[:, -1], lambda x, y: x[:, 0], lambda x, y: x[:, x.shape[1] - 2],
    lambda x, y: x.narrow(1, 1, x.shape[1] - 1), lambda x, y: x.chunk(2, 2)[1],
    lambda x, y: torch.split(x, [1, x.shape[1] - 1], 1), lambda x, y: x.unfold(1, 2, 1),
    lambda x, y: torch.cat([x, y], 1).chunk(2, 1), lambda x, y: torch.slice_scatter(x, y[:, :-1], 1, 1),
    lambda x, y: torch.select_scatter(x, y[:, 0], 1, -1), lambda x, y: x.tril(), lambda x, y: x.transpose(1, 2).triu(1),
)
PADDED = (
    lambda x, y: F.pad(x, (0, 0, 2, 1)), lambda x, y: F.pad(x, (0, 0, 0, x.shape[1]), value=2.0),
    lambda x, y: F.pad(x, (0, 0, -1, 1)), lambda x, y: F.pad(x, (0, 0, 1 - x.shape[1], 0)),
    lambda x, y: F.pad(x.transpose(1, 2), (2, 1), mode="reflect"),
    lambda x, y: F.pad(x.transpose(1, 2), (2, 1), mode="replicate"),
    lambda x, y: F.pad(x.transpose(1, 2), (2, 1), mode="circular"),
    lambda x, y: F.interpolate(x.transpose(1, 2), scale_factor=2.0),
    lambda x, y: F.interpolate(x.transpose(1, 2), size=x.shape[1] + 3, mode="linear"),
    lambda x, y: F.interpolate(x.transpose(1, 2), size=y.shape[0] * 2, mode="nearest-exact"),
)
CREATED = (
    lambda x, y: torch.zeros(x.shape[0], x.shape[1] * 2), lambda x, y: torch.full((x.shape[1],), 3),
    lambda x, y: x.new_ones(x.shape[1], 2), lambda x, y: torch.full_like(x, 2.5), lambda x, y: torch.eye(x.shape[1]),
    lambda x, y: torch.arange(1, x.shape[1] + 1), lambda x, y: torch.arange(0, 2 * x.shape[1], 2),
    lambda x, y: steps(x).float() / x.shape[1], lambda x, y: x * x.shape[0] + 1 / x.shape[1],
    lambda x, y: x / x.shape[1] ** 0.5, lambda x, y: torch.tensor(x.shape[1]) + steps(x),
    lambda x, y: torch.ones(x.shape[1], x.shape[1]).tril() @ x,
    lambda x, y: x.new_zeros(max(x.shape[0], x.shape[1]), min(x.shape[0], 5)),
    lambda x, y: torch.zeros(x.shape[1] % 3 + x.shape[0] // 2), lambda x, y: torch.zeros(math.floor(x.shape[1] / 2)),
    lambda x, y: torch.where(steps(x)[None] <= steps(x)[:, None], 0.0, -1.0),
)
REDUCED = (
    lambda x, y: x.mean(1), lambda x, y: x.sum(), lambda x, y: x.var(1), lambda x, y: x.std(), lambda x, y: x.amax(1),
    lambda x, y: x.argmax(1), lambda x, y: x.max(1), lambda x, y: x.softmax(1), lambda x, y: x.cumsum(1),
    lambda x, y: torch.logsumexp(x, 1), lambda x, y: x.norm(dim=1), lambda x, y: x.sort(1)[0],
    lambda x, y: x.topk(2, 1)[0], lambda x, y: F.group_norm(x.transpose(1, 2), 2), lambda x, y: x.any(1),
    lambda x, y: F.instance_norm(x.transpose(1, 2)), lambda x, y: F.layer_norm(x, (4,)),
    lambda x, y: F.adaptive_avg_pool1d(x.transpose(1, 2), 1), lambda x, y: F.adaptive_max_pool1d(x.transpose(1, 2), 1),
    lambda x, y: F.max_pool2d(x[:, None], 3, 2, ceil_mode=True),
    lambda x, y: F.avg_pool1d(x.transpose(1, 2), 3, 2, 1),
)
PRODUCTS = (
    lambda x, y: x @ y.transpose(1, 2), lambda x, y: torch.einsum("bsd,btd->bst", x, y),
    lambda x, y: torch.baddbmm(torch.ones(1, 1, 1), x, y.transpose(1, 2), alpha=0.5),
    lambda x, y: F.scaled_dot_product_attention(x, y, y),
    lambda x, y: F.scaled_dot_product_attention(x, y, y, is_causal=True),
    lambda x, y: F.scaled_dot_product_attention(x, y, y, attn_mask=steps(x)[None] <= steps(x)[:, None]),
    lambda x, y: F.scaled_dot_product_attention(x[:, None] * x.shape[1] ** -0.5, y[:, None], y[:, None], scale=1.0),
    lambda x, y: x.gather(1, torch.zeros(x.shape[0], 1, 4, dtype=torch.int64) + 1),
    lambda x, y: x.index_select(1, steps(x)), lambda x, y: x[:, steps(x) // 2],
    lambda x, y: x[torch.arange(x.shape[0]), -1], lambda x, y: x[torch.arange(x.shape[0])[:, None], steps(x)[None]],
    lambda x, y: x.scatter(1, torch.zeros_like(x[:, :1], dtype=torch.int64), y[:, :1]),
    lambda x, y: assigned(x, (slice(None), steps(x)[::2]), y[:, ::2]),
    lambda x, y: torch.index_put(x, (torch.arange(x.shape[0]), torch.tensor(-1)), y[:, 0], accumulate=True),
    lambda x, y: assigned(x, (slice(None), steps(x) % 2 == 0), 1.0),
    lambda x, y: assigned(x, (..., torch.tensor([[3, 1]])), torch.tensor([2.0, 3.0])),
    lambda x, y: F.one_hot(steps(x) % 3, 3), lambda x, y: x.masked_fill(steps(x)[None, :, None] > 1, 0.0),
    lambda x, y: F.conv1d(x.transpose(1, 2), torch.ones(3, 4, 2), stride=2, padding=1),
    lambda x, y: F.conv_transpose1d(x.transpose(1, 2), torch.ones(4, 3, 3), stride=2),
)
FAMILIES = {"shapes": SHAPES, "parts": PARTS, "padded": PADDED, "created": CREATED, "reduced": REDUCED,
            "products": PRODUCTS}


@pytest.mark.parametrize("family", FAMILIES)
def test_operators(family: str) -> None:
    module = Several(FAMILIES[family])
    axes = {0: "batch", 1: "steps"}
    imported = import_model(module, (torch.randn(3, 6, 4), torch.randn(3, 6, 4)), dynamic_shapes=((axes, axes),))
    VerifyNormalForm()(imported.mod)
    least = max(imported.ranges["steps"].minimum, 4)

    @settings(max_examples=6, deadline=None)
    @given(batch=st.integers(2, 7), count=st.integers(least, 13))
    def check(batch: int, count: int) -> None:
        if not all(r.is_met({"batch": batch, "steps": count}) for r in imported.requirements):
            return
        generator = torch.Generator().manual_seed(batch * 100 + count)
        inputs = [torch.randn(batch, count, 4, generator=generator) for _ in range(2)]
        expected = [t for t in torch.utils._pytree.tree_leaves(module(*inputs)) if isinstance(t, torch.Tensor)]
        for i, (a, b) in enumerate(zip(reference.run(imported.mod, inputs), expected, strict=True)):
            assert a.shape == b.shape and a.dtype == b.dtype, i
            # Sums of at most 13 · 7 · 4 elements of about 1.
            torch.testing.assert_close(a, b, rtol=16 * EPS, atol=364 * EPS, equal_nan=True)

    check()


def test_a_dim_that_is_a_multiple() -> None:
    """``2 * half``: the input's whole extent is the variable."""
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] // 2, 2, 3).sum(1) + x[::2]

    imported = import_model(Several([halves]), torch.randn(6, 3), dynamic_shapes=(({0: 2 * Dim("half")},),))
    assert imported.inputs[0].shape == ("inputs_0_0", 3) and imported.hints == {"inputs_0_0": 6}
    assert [str(r) for r in imported.requirements if r.relation == "=="] == ["inputs_0_0 % 2 == 0"]
    x = torch.randn(10, 3)
    torch.testing.assert_close(reference.run(imported.mod, [x])[0], halves(x))


def test_what_the_model_assumes_is_kept() -> None:
    def windows(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] // 4, 4, 3).flip(1).reshape(x.shape[0], 3) + x

    imported = import_model(Several([windows]), torch.randn(8, 3), dynamic_shapes=(({0: "rows"},),))
    assert [r.is_met({"rows": n}) for n in (4, 12, 13) for r in imported.requirements if r.relation == "=="] == [
        True, True, False]
    x = torch.randn(12, 3)
    torch.testing.assert_close(reference.run(imported.mod, [x])[0], windows(x))


def test_a_branch_on_an_extent_gives_its_range() -> None:
    function = lambda x: x + 1 if x.shape[0] > 4 else x  # noqa: E731
    imported = import_model(Several([function]), torch.randn(8, 3), dynamic_shapes=(({0: "rows"},),))
    assert imported.ranges == {"rows": DimRange(5)}


def test_dims_of_one_name_are_one_symbol() -> None:
    imported = import_model(Several([lambda x, y: (x + 1, y * 2)]), (torch.randn(3, 2), torch.randn(3, 5)),
                            dynamic_shapes=(({0: "batch"}, {0: "batch"}),))
    assert [i.shape for i in imported.inputs] == [("batch", 2), ("batch", 5)]
    assert imported.mod["main"].params[0].ty.shape[0].same_as(imported.mod["main"].params[1].ty.shape[0])


def test_forms_without_symbolic_translation_say_so() -> None:
    with pytest.raises(UnsupportedOperatorError, match="needs fixed extents") as caught:
        import_model(Several([torch.diagonal]), torch.randn(4, 5), dynamic_shapes=(({0: "rows"},),))
    assert "dims=" in str(caught.value)
