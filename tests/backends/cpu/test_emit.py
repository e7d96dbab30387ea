"""The table of kernels, and the contract of a kernel request."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu.emit import BUILDERS, emit
from narrowcast.backends.cpu.kernel import KernelRequest, identifier
from narrowcast.backends.target import capabilities
from narrowcast.errors import PlanError, UnsupportedOperatorError
from narrowcast.precision import BFLOAT16, FLOAT32, Precision

from .groups import NATIVE, execute, group_of


def relu(kind: str = "elementwise") -> ir.Group:
    return group_of(kind, [(2, 3)], lambda b, p: b.emit(relax.op.nn.relu(p[0]), "layer"))


def test_every_kind_has_a_builder() -> None:
    assert set(BUILDERS) == set(ir.GROUP_KINDS)


def test_parameters_are_inputs_constants_outputs() -> None:
    group = group_of("elementwise", [(2, 3)], lambda b, p: b.emit(
        relax.op.add(p[0], relax.const(np.ones(3, np.float32))), "layer"))
    request = KernelRequest(group, Precision.FP32, (BFLOAT16,), (FLOAT32, BFLOAT16))
    kernel = emit(request, capabilities(NATIVE), 1)
    assert [p.name for p in kernel.func.params] == ["x0", "c0", "y0", "y1"]
    assert [str(p.dtype) for p in kernel.func.params] == ["uint16", "float32", "float32", "uint16"]
    assert kernel.macs == 0


def test_the_table_is_used() -> None:
    request = KernelRequest(relu("opaque"), Precision.FP32, (FLOAT32,), (FLOAT32,))
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    np.testing.assert_array_equal(execute(emit, request, [x])[0], np.maximum(x, 0))


def test_an_unknown_kind_is_refused_by_name() -> None:
    request = KernelRequest(relu("mystery"), Precision.FP32, (FLOAT32,), (FLOAT32,))
    with pytest.raises(UnsupportedOperatorError, match=r"layer: no kernels.*\n.*mystery"):
        emit(request, capabilities(NATIVE), 1)


def test_requests_are_checked() -> None:
    with pytest.raises(PlanError, match="layer: a kernel needs one storage per input"):
        KernelRequest(relu(), Precision.FP32, (), (FLOAT32,))
    with pytest.raises(PlanError, match="layer: a kernel needs at least one output"):
        KernelRequest(relu(), Precision.FP32, (FLOAT32,), ())


@pytest.mark.parametrize(("name", "symbol"), [("features.0.conv", "features_0_conv"), ("0.weight", "_0_weight"),
                                              ("a/b:c", "a_b_c")])
def test_layer_names_become_symbols(name: str, symbol: str) -> None:
    assert identifier(name) == symbol
