"""Opaque groups: kernels through TVM's legalization."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.kernel import KernelRequest
from narrowcast.backends.cpu.legalized import build_opaque, lift_constants
from narrowcast.backends.target import Target, capabilities
from narrowcast.errors import UnsupportedOperatorError
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, Storage

from .groups import NATIVE, group_of, run_kernel

op, nn = relax.op, relax.op.nn
ONES = np.ones(8, np.float32)


def run(shape: tuple[int, ...], make: Callable[[relax.Var], relax.Expr],
        target: Target = NATIVE) -> tuple[torch.Tensor, list[np.ndarray]]:
    group = group_of("opaque", [shape], lambda b, p: b.emit(make(p[0]), "layer"))
    result = group.function.ret_ty
    dtype = "float32" if isinstance(result, relax.TupleType) else str(result.dtype)
    request = KernelRequest(group, Precision.FP32, (FLOAT32,), (Storage(dtype),))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    kernel = build_opaque(request, capabilities(target), 2)
    return torch.tensor(x), run_kernel(request, kernel, [x], target.tvm_target())


Case = tuple[tuple[int, ...], Callable[[relax.Var], relax.Expr], Callable[[torch.Tensor], torch.Tensor], float]
CASES: dict[str, Case] = {
    # tolerance: roundings of the longest sum
    "cumsum": ((3, 5, 77), lambda x: op.cumsum(x, 2, "float32"), lambda x: x.cumsum(2), 1e-4),
    "softmax of another axis": ((3, 64, 64), lambda x: nn.softmax(x, 1), lambda x: x.softmax(1), 1e-6),
    "take": ((3, 64, 64), lambda x: op.take(x, relax.const(np.array([3, 1])), 1, mode="clip"),
             lambda x: x[:, [3, 1]], 0),
    "group_norm": ((1, 8, 12, 12), lambda x: nn.group_norm(x, relax.const(ONES), relax.const(ONES), 2, 1, [2, 3]),
                   lambda x: functional.group_norm(x, 2) + 1, 1e-5),
    "resize": ((1, 8, 12, 12), lambda x: op.image.resize2d(x, (24, 24), layout="NCHW", method="linear"),
               lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), 1e-5),
    "transposed convolution": (
        (1, 8, 12, 12), lambda x: nn.conv2d_transpose(x, relax.const(np.ones((8, 4, 2, 2), np.float32)), (2, 2)),
        lambda x: functional.conv_transpose2d(x, torch.ones(8, 4, 2, 2), stride=2), 1e-5),
    "sort": ((6, 8), lambda x: op.sort(x, -1), lambda x: x.sort(-1)[0], 0),
    "tril": ((6, 8), op.tril, torch.tril, 0),
    # intrinsics that LLVM has for scalars only, on whole vectors
    "sinh": ((6, 64), op.sinh, torch.sinh, 1e-5), "cosh": ((6, 64), op.cosh, torch.cosh, 1e-5),
    "asinh": ((6, 64), op.asinh, torch.asinh, 1e-6), "atan": ((6, 64), op.atan, torch.atan, 1e-6),
    "argmax": ((6, 8), lambda x: op.argmax(x, 1), lambda x: x.argmax(1), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    shape, make, reference, tolerance = CASES[name]
    x, (actual,) = run(shape, make)
    expected = reference(x).numpy()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.isa("avx2")
def test_on_avx2() -> None:
    shape, make, reference, tolerance = CASES["group_norm"]
    x, (actual,) = run(shape, make, Target("haswell", 2))
    np.testing.assert_allclose(actual, reference(x).numpy(), rtol=0, atol=tolerance)


def test_a_tuple_has_one_output_each() -> None:
    x, actual = run((4, 6), lambda x: op.split(x, 3, 1))
    for got, expected in zip(actual, x.split(2, 1), strict=True):
        np.testing.assert_array_equal(got, expected.numpy())


def test_integers_keep_their_types() -> None:
    group = group_of("opaque", [(4,)], lambda b, p: b.emit(op.multiply(b.emit(op.astype(p[0], "int64"), "layer"),
                                                                   relax.const(3, "int64")), "times"))
    request = KernelRequest(group, Precision.FP32, (FLOAT32,), (Storage("int64"),))
    kernel = build_opaque(request, capabilities(NATIVE), 1)
    x = np.array([1.0, 2.5, -3.0, 7.0], np.float32)
    actual, = run_kernel(request, kernel, [x], NATIVE.tvm_target())
    np.testing.assert_array_equal(actual, [3, 6, -9, 21])


def test_what_cannot_be_legalized_names_the_layer() -> None:
    group = group_of("opaque", [(4, 5)], lambda b, p: b.emit(op.unique(p[0]), "layer"))
    with pytest.raises(UnsupportedOperatorError, match=r"layer: TVM has no code.*\n.*relax\.unique"):
        build_opaque(KernelRequest(group, Precision.FP32, (FLOAT32,), (FLOAT32,)), capabilities(NATIVE), 1)


def test_storages_other_than_float32_are_refused() -> None:
    group = group_of("opaque", [(4,)], lambda b, p: b.emit(op.tan(p[0]), "layer"))
    with pytest.raises(UnsupportedOperatorError, match=r"layer: .*float32 only"):
        build_opaque(KernelRequest(group, Precision.FP32, (BFLOAT16,), (FLOAT32,)), capabilities(NATIVE), 1)


def test_constants_become_parameters_once_each() -> None:
    constant = relax.const(np.arange(3, dtype=np.float32))

    def body(b: ir.GraphBuilder, p: list[relax.Var]) -> relax.Var:
        return b.emit(op.multiply(b.emit(op.add(p[0], constant), "layer"), constant), "mul")

    function, arrays = lift_constants(group_of("opaque", [(3,)], body).function)
    assert [p.name for p in function.params] == ["in0", "constant0"]
    np.testing.assert_array_equal(arrays[0], [0, 1, 2])
