"""The PyTorch frontend: kinds of inputs, outputs and programs, what it leaves alone, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.export import Dim

from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends import DimRange, ImportedModel, import_model
from narrowcast.ir import TensorSpec, bindings_of, constant_value, op_bindings, shape_of
from narrowcast.operators import reference

Same = Callable[..., ImportedModel]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0) -> torch.Tensor:
        y = self.fc(x) * scale
        return y if mask is None else y.masked_fill(mask, 0.0)


def test_inputs_by_keyword_and_as_arrays() -> None:
    x, mask = np.ones((2, 3), np.float32), np.zeros((2, 4), bool)
    imported = import_model(TwoInputs(), {"mask": mask, "x": x})
    assert set(imported.inputs) == {TensorSpec("x", (2, 3), "float32"), TensorSpec("mask", (2, 4), "bool")}
    assert import_model(TwoInputs(), x).inputs == (TensorSpec("x", (2, 3), "float32"),)


def test_constants_among_the_inputs_are_fixed() -> None:
    model = TwoInputs().eval()
    x = torch.randn(2, 3)
    imported = import_model(model, (x, None, 3.0))
    assert [i.name for i in imported.inputs] == ["x"]
    torch.testing.assert_close(reference.run(imported.mod, [x])[0], model(x, None, 3.0).detach())


def test_nested_inputs(same_as_pytorch: Same) -> None:
    a, b = torch.randn(2), torch.randn(2)
    same_as_pytorch(lambda pair, last: pair[0] - pair[1]["b"] * last, (a, {"b": b}), b)


class Answer(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor | None


OUTPUTS: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[str, ...]]] = {
    "one": (lambda x: x + 1, ("output",)),
    "one in a tuple": (lambda x: (x + 1,), ("output",)),
    "several": (lambda x: (x + 1, x * 2), ("output_0", "output_1")),
    "dict": (lambda x: {"logits": x + 1, "states": [x * 2, x * 3]}, ("logits", "states_0", "states_1")),
    "named tuple": (lambda x: Answer(x + 1, x * 2), ("logits", "hidden")),
    "the same twice": (lambda x: (y := x + 1, y), ("output_0", "output_1")),
    "an input": (lambda x: (x, x + 1), ("output_0", "output_1")),
    "a constant": (lambda x: (x + 1, torch.ones(3)), ("output_0", "output_1")),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str, same_as_pytorch: Same) -> None:
    function, expected = OUTPUTS[name]
    assert same_as_pytorch(function, torch.randn(2, 3)).outputs == expected


def test_an_output_of_none_is_left_out() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Answer:
            return Answer(x + 1, None)

    assert import_model(Model(), torch.randn(2)).outputs == ("logits",)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_types_become_float32(dtype: torch.dtype) -> None:
    model = nn.Linear(3, 4).to(dtype).eval()
    imported = import_model(model, torch.ones(2, 3, dtype=dtype))
    assert imported.inputs == (TensorSpec("input", (2, 3), "float32"),)
    weight = constant_value(op_bindings(imported.mod["main"])[0].value.args[1])
    np.testing.assert_array_equal(weight, model.weight.detach().float().numpy().T)
    found = reference.run(imported.mod, [torch.ones(2, 3)])[0]
    torch.testing.assert_close(found, model.float()(torch.ones(2, 3)).detach())


def test_the_module_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    model[2].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    imported = import_model(model, torch.randn(2, 3))
    assert [m.training for m in model.modules()] == [True, True, True, False]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        model[0].weight.zero_()
    assert constant_value(op_bindings(imported.mod["main"])[0].value.args[1]).any()


def test_unused_and_constant_work_vanishes(same_as_pytorch: Same) -> None:
    def function(x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        torch.exp(x)
        torch._assert(x.shape[0] == 2, "two rows")
        positions = torch.arange(3).float().sin()
        return (x.detach().clone().contiguous().to(torch.float32) + positions).reshape(2, 3)

    imported = same_as_pytorch(function, torch.randn(2, 3), torch.randn(4))
    assert len(op_bindings(imported.mod["main"])) == 1 and len(imported.inputs) == 2


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        y = self.fc(x).view(batch, steps, 2, width // 2).transpose(1, 2)
        return y.reshape(batch * 2, -1) + torch.arange(steps * 2)


def dynamic_program() -> torch.export.ExportedProgram:
    shapes = {"x": {0: Dim("batch", min=2, max=8), 1: Dim("steps", min=2, max=16)}}
    return torch.export.export(Dynamic().eval(), (torch.randn(3, 5, 4),), dynamic_shapes=shapes)


def test_an_exported_program_keeps_its_dynamic_dimensions() -> None:
    program = dynamic_program()
    imported = import_model(program, torch.randn(4, 7, 4))
    assert imported.inputs == (TensorSpec("x", ("batch", "steps", 4), "float32"),)
    assert imported.hints == {"batch": 4, "steps": 7}
    assert imported.ranges == {"batch": DimRange(1, 8), "steps": DimRange(1, 16)}
    for size in ((3, 5, 4), (2, 7, 4), (1, 1, 4)):
        x = torch.randn(size)
        torch.testing.assert_close(reference.run(imported.mod, [x])[0], program.module()(x).detach())
    assert import_model(program).hints == {"batch": 3, "steps": 5}


def test_dimensions_are_fixed_by_name() -> None:
    program = dynamic_program()
    imported = import_model(program, dims={"batch": 2})
    assert imported.inputs[0].shape == (2, "steps", 4) and imported.hints == {"steps": 5}
    x = torch.randn(2, 7, 4)
    torch.testing.assert_close(reference.run(imported.mod, [x])[0], program.module()(x).detach())
    assert import_model(program, dims={"batch": 2, "steps": 3}).inputs[0].is_static


@pytest.mark.parametrize("batch", ["batch", Dim("batch", min=1, max=8)])
def test_a_dimension_may_be_open_where_its_example_has_one(batch: object) -> None:
    """``torch.export`` alone takes an extent of 1 for fixed; the program is still made for it."""
    module = nn.Linear(6, 5).eval()
    imported = import_model(module, torch.ones(1, 6), dynamic_shapes=({0: batch},))
    (name,) = imported.hints
    assert imported.hints[name] == 1 and "batch" in name
    for rows in (1, 4):
        x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(0))
        (found,) = reference.run(imported.mod, [x])
        torch.testing.assert_close(found, module(x))


def test_a_saved_and_loaded_program(tmp_path: Path) -> None:
    torch.export.save(dynamic_program(), tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2")
    assert [b.var.name for b in op_bindings(import_model(program).mod["main"])][:2] == ["fc", "fc.1"]


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_keep_their_names(strict: bool) -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), (torch.randn(2, 3),), strict=strict)
    assert [b.var.name for b in op_bindings(import_model(program).mod["main"])] == ["0", "0.1", "1"]


def test_a_module_that_was_exported_before() -> None:
    module = torch.export.export(TwoInputs().eval(), (torch.randn(2, 3),)).module()
    assert len(bindings_of(import_model(module, torch.randn(2, 3)).mod["main"])) == 4


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def changes_its_input(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def wrapped(function: Callable[..., Any]) -> nn.Module:
    class Model(nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    return Model()


X = torch.randn(2, 3)
BAD: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "no example inputs": (TwoInputs, None, "example inputs"),
    "wrong width": (TwoInputs, torch.randn(2, 5), "torch.export"),
    "wrong type": (TwoInputs, torch.ones(2, 3, dtype=torch.int64), "not floating point"),
    "too few inputs": (lambda: nn.Bilinear(3, 3, 2), X, "cannot be called"),
    "too many inputs": (lambda: nn.Linear(3, 3), (X, X), "cannot be called"),
    "unknown keyword": (TwoInputs, {"y": X}, "cannot be called"),
    "strings": (TwoInputs, np.array(["a"]), "type that PyTorch lacks"),
    "data-dependent branch": (Branch, X, "goes another way"),
    "own state": (Counter, X, "changes its own state"),
    "changed input": (lambda: wrapped(changes_its_input), X, "changes its own state, or its inputs"),
    "no tensor": (lambda: wrapped(lambda x: 3), X, "has to return tensors"),
    "lazy weights": (lambda: nn.LazyLinear(3), X, "no values yet"),
    "meta weights": (lambda: nn.Linear(3, 3, device="meta"), X, "no values yet"),
    "training mode of a norm": (lambda: nn.BatchNorm1d(3, track_running_stats=False), X, "own statistics"),
    "not a model": (lambda: 3, None, "of a kind that cannot be imported"),
    "a class": (lambda: nn.Linear, X, "of a kind that cannot be imported"),
    "pt2 file": (lambda: Path("net.pt2"), None, "can execute code"),
    "other file": (lambda: "net.tflite", None, "of a kind that cannot be imported"),
    "program: wrong size": (dynamic_program, torch.randn(3, 5, 6), "has fixed"),
    "program: out of range": (dynamic_program, torch.randn(30, 5, 4), "outside of the range"),
    "program: wrong rank": (dynamic_program, torch.randn(3, 5), "does not fit"),
    "program: too many": (dynamic_program, (X, X), "number of example inputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models_and_inputs(name: str) -> None:
    make, inputs, text = BAD[name]
    with pytest.raises(ImportModelError, match=text) as caught:
        import_model(make(), inputs)
    assert "\n\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_all_unsupported_operators_are_reported_at_once() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(x) + torch.linalg.svdvals(x * 2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Spectrum(), Spectrum()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) + self.second(x) + torch.rand(3) + torch.linalg.inv(x)[0].relu()

    with pytest.raises(UnsupportedOperatorError) as caught:
        import_model(Model(), torch.randn(3, 3))
    text = str(caught.value)
    assert "3 operators" in text and "4 times" in text and "first" in text and "second" in text
    assert "aten.rand.default, 1 time" in text and "linalg_inv" in text and "random numbers" in text
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(("function", "reason"), [
    (lambda x: x[x > 0], "mask"),
    (lambda x: torch.nn.functional.interpolate(x[None, None], scale_factor=1.3), "whole number"),
    (lambda x: torch.nn.functional.adaptive_max_pool1d(x[None], 2), "divide"),
    (lambda x: torch.nn.functional.max_pool1d(x[None], 2, return_indices=True), "pool1d_with_indices.*number 1"),
    (lambda x: torch.fft.rfft(x).abs(), "complex|no translation"),
])
def test_refused_forms_say_why(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(ImportModelError, match=reason):
        import_model(wrapped(function), X)


def test_onnx_models_go_to_the_other_frontend() -> None:
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, (2, 3))], [value("y", 1, (2, 3))])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    imported = import_model(model, torch.ones(2, 3))
    assert imported.source == "onnx" and shape_of(imported.mod["main"].params[0]) == (2, 3)
