"""What ``torch.export`` refuses, in words about the user's code: the layer, the line, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends import import_model


class Block(nn.Module):
    """A layer that calls a function of itself and its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc, self.block = nn.Linear(4, 4), Block(function)

    def forward(self, x: torch.Tensor, *more: Any) -> Any:
        return self.block(self.fc(x), *more)


class Custom:
    """No container that PyTorch knows."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


X = torch.randn(3, 4)
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, tuple[str, ...]]] = {
    "branch on values": (lambda x: x + 1 if x.sum() > 0 else x, (X,), None,
                         ("block: forward() goes another way", "x + 1 if x.sum() > 0", "torch.where")),
    "size from values": (lambda x: x[:int(x.argmax())], (X,), None, ("block: forward() goes another way", "argmax")),
    "loop over values": (lambda x: [x for _ in range(int(x[0, 0]))], (X,), None, ("block: forward() goes", "range")),
    "NumPy": (lambda x: torch.from_numpy(np.sort(x.numpy())), (X,), None, ("block: forward() leaves PyTorch", "sort")),
    "returns an object": (Custom, (X,), None, ("forward() returns an object", "Custom", "dataclass")),
    "takes an object": (lambda x, y: x, (X, Custom(X)), None, ("an example input is of a kind", "Custom", "a cache")),
    "another size": (lambda x: x @ torch.ones(5, 5), (X,), None,
                     ("block: torch.export cannot export", "torch.ones(5, 5)")),
    "missing argument": (lambda x, y: x, (X,), None, ("forward() cannot be called", "missing 1 required", "tuple")),
    "raises": (lambda x: {}["mode"], (X,), None, ("block: torch.export cannot export", "'mode'")),
    "equal dims": (lambda x, y: x + y, (X, X), ({0: Dim("a")}, ({0: Dim("b")},)),
                   ("different names have to be equal", "b = ", "one name")),
    "one extent": (lambda x: x * float(x.shape[0]), (X,), ({0: Dim("n")},), ("for one extent only", "float()")),
    "outside of the range": (lambda x: x, (X,), ({0: Dim("n", min=5)},),
                             ("outside of the range", "3 not in", "min=")),
    "not for all extents": (lambda x: x + 1 if x.shape[0] < 9 else x, (X,), ({0: Dim("n", max=64)},),
                            ("does not work for all extents", "n <= 64", "as a string")),
    "an extent as a number": (lambda x: x.new_zeros(int(x.shape[0] * 1.5)) + x.sum(), (X,), ({0: "rows"},),
                              ("rows: the model works for one extent only", "int()")),
    "a fixed number": (lambda x: nn.functional.scaled_dot_product_attention(x, x, x, scale=x.shape[0] ** -0.5),
                       (X,), ({0: "n"},), ("a number that forward() computes", "0.57735", "q * scale")),
    "a name for one extent": (lambda x: x * float(x.shape[0]), (X,), ({0: "rows"},),
                              ("rows: the model works for one extent only", "dimension 0 of x is 3", "float(x.sh")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_of_torch_export(name: str) -> None:
    function, inputs, dynamic, texts = REFUSED[name]
    with pytest.raises(ImportModelError) as caught:
        import_model(Net(function).eval(), inputs, dynamic_shapes=dynamic)
    message = str(caught.value)
    assert all(t in message for t in texts), message
    assert caught.value.hint and "TORCH_LOGS" not in message


WRONG: dict[str, tuple[Any, Any, str]] = {
    "unknown argument": (X, {"y": {0: "n"}}, "arguments that the example inputs do not have"),
    "too few entries": ((X, X), ({0: "n"},), "one entry for every argument"),
    "axis too large": (X, ({2: "n"},), "does not fit an argument"),
    "too short": (X, (["n"],), "does not fit an argument"),
    "no name": (X, ({0: "2 n"},), "have to be identifiers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_dynamic_shapes_that_do_not_fit(name: str) -> None:
    inputs, dynamic, text = WRONG[name]

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
            return x + 1 if other is None else x + other

    with pytest.raises(ImportModelError, match=text):
        import_model(Sum(), inputs, dynamic_shapes=dynamic)


@pytest.mark.parametrize(("dims", "text"), [
    ({"steps": 3}, "does not have as dynamic"), ({"n": 0}, "extents that are not"),
    ({"n": True}, "extents that are not"),
])
def test_dims_that_do_not_fit(dims: dict[str, int], text: str) -> None:
    with pytest.raises(ImportModelError, match=text):
        import_model(nn.Linear(4, 4), X, dynamic_shapes={0: "n"}, dims=dims)


def test_dynamic_shapes_are_for_modules() -> None:
    program = torch.export.export(nn.Linear(4, 4), (X,))
    with pytest.raises(ImportModelError, match="for modules"):
        import_model(program, dynamic_shapes={0: "n"})


def test_an_extent_that_depends_on_values() -> None:
    with pytest.raises(UnsupportedOperatorError, match="depend"):
        import_model(Net(lambda x: x[x > 0].sum()).eval(), X)
