"""Reference semantics against TVM's own legalization, compiled for the CPU: one function per case, one module."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.errors import DataError, UnsupportedOperatorError
from narrowcast.operators import custom, reference

op = relax.op
EPSILON = float(np.finfo(np.float32).eps)


def var(name: str, shape: tuple[int, ...], dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def const(array: object, dtype: str = "float32") -> ir.Constant:
    return ir.constant(np.asarray(array, dtype=dtype))


def weights(*shape: int, seed: int = 7) -> ir.Constant:
    return const(np.random.default_rng(seed).standard_normal(shape))


X = (2, 8, 6, 4)  # the shape of the first input of most cases
H = (2, 6, 4, 8)  # the same channels last
Build = Callable[..., relax.Call]
# name -> (build, shapes of the float32 inputs, length of the longest sum, for the tolerance)
CASES: dict[str, tuple[Build, list[tuple[int, ...]], int]] = {
    "conv2d": (lambda x: op.nn.conv2d(x, weights(5, 8, 3, 3), strides=(2, 1), padding=(0, 1, 2, 1)), [X], 72),
    "conv2d_grouped_dilated": (lambda x: op.nn.conv2d(x, weights(4, 4, 2, 3), dilation=(2, 1), groups=2), [X], 24),
    "conv2d_nhwc": (lambda x: op.nn.conv2d(x, weights(5, 3, 3, 8), padding=1, data_layout="NHWC",
                                           kernel_layout="OHWI"), [H], 72),
    "conv1d": (lambda x: op.nn.conv1d(x, weights(5, 8, 3), strides=2, padding=(2, 1)), [(2, 8, 9)], 24),
    "conv1d_nwc": (lambda x: op.nn.conv1d(x, weights(5, 3, 8), data_layout="NWC", kernel_layout="OWI"), [(2, 9, 8)],
                   24),
    "conv3d": (lambda x: op.nn.conv3d(x, weights(3, 2, 2, 2, 2), padding=1), [(1, 2, 4, 3, 3)], 16),
    "conv1d_transpose": (lambda x: op.nn.conv1d_transpose(x, weights(8, 3, 4), strides=2, padding=(1, 2),
                                                          output_padding=1), [(2, 8, 5)], 32),
    "conv2d_transpose": (lambda x: op.nn.conv2d_transpose(x, weights(8, 2, 3, 3), strides=2, padding=(1, 1, 0, 1),
                                                          output_padding=(1, 0), groups=2), [X], 72),
    "matmul": (lambda x: op.matmul(x, weights(4, 7)), [X], 4),
    "matmul_batched": (op.matmul, [(2, 3, 5), (3, 1, 5, 4)], 5),
    "attention": (lambda q, k, v: op.nn.attention(q, k, v, scale=0.3), [(1, 5, 2, 4), (1, 6, 2, 4), (1, 6, 2, 3)], 64),
    "attention_causal": (lambda q, k, v: op.nn.attention(q, k, v, causal_mask="TopLeft"),
                         [(1, 5, 2, 4), (1, 5, 2, 4), (1, 5, 2, 4)], 64),
    "attention_bias": (lambda q, k, v, b: op.nn.attention(q, k, v, bias=b),
                       [(1, 5, 2, 4), (1, 6, 2, 4), (1, 6, 2, 4), (1, 2, 5, 6)], 64),
    "softmax": (lambda x: op.nn.softmax(x, 1), [X], 32),
    "log_softmax": (lambda x: op.nn.log_softmax(x, -1), [X], 32),
    "layer_norm": (lambda x: op.nn.layer_norm(x, weights(6, 4), weights(6, 4, seed=8), axes=[-2, -1]), [X], 96),
    "rms_norm": (lambda x: op.nn.rms_norm(x, weights(4), axes=[-1]), [X], 32),
    "group_norm": (lambda x: op.nn.group_norm(x, weights(8), weights(8, seed=8), num_groups=2, channel_axis=1,
                                              axes=[2, 3]), [X], 400),
    "instance_norm": (lambda x: op.nn.instance_norm(x, weights(8), weights(8, seed=8), channel_axis=1, axes=[2, 3]),
                      [X], 96),
    "batch_norm": (lambda x: op.nn.batch_norm(x, weights(8), weights(8, seed=8), weights(8, seed=9),
                                              const(np.linspace(0.5, 2, 8)), axis=1, training=False), [X], 8),
    "max_pool": (lambda x: op.nn.max_pool2d(x, (3, 2), (2, 2), (1, 0, 1, 1)), [X], 1),
    "max_pool_ceil": (lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1), ceil_mode=True), [(1, 2, 7, 6)], 1),
    "max_pool_nhwc": (lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2), (0, 1, 1, 0), (1, 2), layout="NHWC"), [H], 1),
    "avg_pool": (lambda x: op.nn.avg_pool2d(x, (3, 2), (2, 1), (1, 0, 1, 1)), [X], 6),
    "avg_pool_include": (lambda x: op.nn.avg_pool2d(x, (3, 2), (2, 2), (1, 1, 0, 1), ceil_mode=True,
                                                    count_include_pad=True), [(1, 2, 7, 6)], 6),
    "avg_pool_ceil": (lambda x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), ceil_mode=True), [(1, 2, 6, 7)], 9),
    "avg_pool1d_nwc": (lambda x: op.nn.avg_pool1d(x, 3, 2, (1, 1), layout="NWC"), [(2, 9, 3)], 3),
    "adaptive_pool": (lambda x: op.nn.adaptive_avg_pool2d(x, (4, 3)), [X], 4),
    "adaptive_pool_nhwc": (lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC"), [H], 24),
    "relu": (op.nn.relu, [X], 1),
    "gelu": (op.nn.gelu, [X], 8),
    "gelu_tanh": (op.nn.gelu_tanh, [X], 8),
    "silu": (op.nn.silu, [X], 8),
    "selu": (op.nn.selu, [X], 8),
    "softplus": (lambda x: op.nn.softplus(x, 2.0, 5.0), [X], 8),
    "leakyrelu": (lambda x: op.nn.leakyrelu(x, 0.1), [X], 1),
    "prelu": (lambda x: op.nn.prelu(x, weights(8), 1), [X], 1),
    "clip": (lambda x: op.clip(x, -0.5, 0.75), [X], 1),
    "erf": (op.erf, [X], 8),
    "round": (lambda x: op.round(x), [X], 1),
    "sign": (op.sign, [X], 1),
    "mod": (op.mod, [(3, 4), (3, 4)], 4),
    "floor_mod": (op.floor_mod, [(3, 4), (3, 4)], 4),
    "floor_divide": (op.floor_divide, [(3, 4), (3, 4)], 1),
    "power": (lambda x: op.power(x, const(1.7)), [X], 8),
    "where": (lambda x, y: op.where(const(np.arange(24).reshape(6, 4) % 3 == 0, "bool"), x, y), [X, X], 1),
    "sum": (lambda x: op.sum(x, [1, -1], keepdims=True), [X], 32),
    "sum_all": (op.sum, [X], 384),
    "mean": (lambda x: op.mean(x, [2]), [X], 6),
    "variance": (lambda x: op.variance(x, [2, 3]), [X], 24),
    "std": (lambda x: op.std(x, [1]), [X], 8),
    "prod": (lambda x: op.prod(x, [3]), [X], 4),
    "argmax": (lambda x: op.argmax(x, 1, keepdims=True), [X], 1),
    "argmin_all": (op.argmin, [X], 1),
    "cumsum": (lambda x: op.cumsum(x, 1, exclusive=True), [X], 8),
    "cumprod": (lambda x: op.cumprod(x, 2), [X], 6),
    "sort": (lambda x: op.sort(x, 1, descending=True), [X], 1),
    "argsort": (lambda x: op.argsort(x, 1), [X], 1),
    "topk": (lambda x: op.topk(x, 3, 1, "both", True, "int64"), [X], 1),
    "reshape": (lambda x: op.reshape(x, (2, -1, 8)), [X], 1),
    "permute_dims": (lambda x: op.permute_dims(x, [0, 2, 3, 1]), [X], 1),
    "concat": (lambda x, y: op.concat([x, y], 1), [(2, 3, 4), (2, 5, 4)], 1),
    "stack": (lambda x, y: op.stack([x, y], -1), [(2, 3), (2, 3)], 1),
    "split_sections": (lambda x: op.split(x, 4, 1), [X], 1),
    "split_indices": (lambda x: op.split(x, [2, 5], 1), [X], 1),
    "strided_slice": (lambda x: op.strided_slice(x, [1, 2], [1, -1], [7, -7], [2, -2]), [X], 1),
    "squeeze": (lambda x: op.squeeze(x, [1]), [(2, 1, 3)], 1),
    "expand_dims": (lambda x: op.expand_dims(x, [0, -1]), [(2, 3)], 1),
    "broadcast_to": (lambda x: op.broadcast_to(x, (3, 2, 4)), [(2, 1)], 1),
    "tile": (lambda x: op.tile(x, (2, 1, 3)), [(2, 3)], 1),
    "repeat": (lambda x: op.repeat(x, 2, 1), [X], 1),
    "flip": (lambda x: op.flip(x, 1), [X], 1),
    "take": (lambda x: op.take(x, const([[3, 0], [7, 7]], "int64"), 1), [X], 1),
    "gather_elements": (lambda x: op.gather_elements(x, const([[1, 0, 2], [0, 2, 1]], "int64"), 0), [(3, 3)], 1),
    "gather_nd": (lambda x: op.gather_nd(x, const([[0, 7], [1, 2]], "int64")), [X], 1),
    "gather_nd_batched": (lambda x: op.gather_nd(x, const([[7], [2]], "int64"), 1), [X], 1),
    "scatter_elements": (lambda x, u: op.scatter_elements(x, const([[2, 0, 2]], "int64"), u, 0, "add"),
                         [(3, 3), (1, 3)], 2),
    "scatter_nd": (lambda x, u: op.scatter_nd(x, const([[2], [0]], "int64"), u, "update"), [(3, 4), (2, 4)], 1),
    "pad": (lambda x: op.nn.pad(x, [0, 0, 1, 2, 0, 1, 3, 0], pad_value=1.5), [X], 1),
    "pad_reflect": (lambda x: op.nn.pad(x, [0, 0, 0, 0, 2, 1, 3, 0], pad_mode="reflect"), [X], 1),
    "pad_replicate": (lambda x: op.nn.pad(x, [0, 0, 0, 0, 2, 1, 3, 0], pad_mode="replicate"), [X], 1),
    "pad_circular": (lambda x: op.nn.pad(x, [0, 0, 0, 0, 2, 1, 3, 0], pad_mode="circular"), [X], 1),
    "one_hot": (lambda x: op.one_hot(const([1, 0, 4], "int64"), relax.prim_value(2.0), relax.prim_value(-1.0), 5, 0),
                [(1,)], 1),
    "tril": (lambda x: op.tril(x, 1), [X], 1),
    "triu": (lambda x: op.triu(x, -1), [X], 1),
    "full_like": (lambda x: op.full_like(x, const(2.5)), [X], 1),
    "astype": (lambda x: op.astype(x, "int32"), [X], 1),
    "einsum": (lambda x, y: op.einsum([x, y], "abc,acd->abd"), [(2, 3, 4), (2, 4, 5)], 4),
    "index_tensor": (lambda x: op.index_tensor(x, [const([1, 0, 1], "int64"), const([[2], [7]], "int64")]), [X], 1),
    "slice_scatter": (lambda x, u: op.slice_scatter(x, u, 1, 7, 2, 1), [X, (2, 3, 6, 4)], 1),
    "reverse_sequence": (lambda x: op.reverse_sequence(x, const([3, 5], "int64"), 1, 0), [X], 1),
    "bucketize": (lambda x: op.bucketize(x, const([-1.0, 0.0, 0.5])), [X], 1),
    "integer_divide": (lambda x: op.divide(const([-7, 7, -6], "int64"), const([2, -2, 3], "int64")), [(1,)], 1),
    "integer_floor_divide": (lambda x: op.floor_divide(const([-7, 7], "int64"), const([2, -2], "int64")), [(1,)], 1),
    "integer_mod": (lambda x: op.mod(const([-7, 7], "int64"), const([3, -3], "int64")), [(1,)], 1),
    "integer_floor_mod": (lambda x: op.floor_mod(const([-7, 7], "int64"), const([3, -3], "int64")), [(1,)], 1),
    "integer_sum": (lambda x: op.sum(const([[1, 2], [3, 4]], "int32"), [1]), [(1,)], 1),
    "greater": (lambda x: op.greater(x, const(0.0)), [X], 1),
    "grid_sample": (lambda x: op.image.grid_sample(x, const(np.random.default_rng(2).uniform(-1.2, 1.2, (1, 2, 3, 5))),
                                                   method="bilinear", padding_mode="zeros", align_corners=True),
                    [(1, 2, 6, 4)], 64),
    "meshgrid": (lambda x, y: op.meshgrid([x, y]), [(3,), (4,)], 1),
    **{f"resize_{method}_{mode}": (
        lambda x, method=method, mode=mode: op.image.resize2d(
            x, (9, 6), roi=(0.1, 0.2, 1.2, 0.9), layout="NCHW", method=method, coordinate_transformation_mode=mode,
            rounding_method="round_prefer_floor" if mode == "half_pixel" else "", extrapolation_value=0.5,
            cubic_exclude=1 if mode == "asymmetric" else 0), [(1, 2, 6, 4)], 64)
       for method in ("nearest_neighbor", "linear", "cubic")
       for mode in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_half_pixel_for_nn",
                    "tf_crop_and_resize")},
    "resize_nhwc_down": (lambda x: op.image.resize2d(x, (3, 3), layout="NHWC", method="linear"), [H], 64),
}


# Cases whose inputs are not standard normal.
DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "round": lambda rng, shape: rng.integers(-9, 10, shape) / 2,
    "power": lambda rng, shape: rng.uniform(0.1, 3.0, shape),
}


def function_of(name: str) -> relax.Function:
    build, shapes, _ = CASES[name]
    params = [var(f"x{i}", shape) for i, shape in enumerate(shapes)]
    builder = ir.GraphBuilder(params)
    return builder.finish([builder.emit(build(*params), "y")])


def inputs_of(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    draw = DRAWS.get(name, lambda rng, shape: rng.standard_normal(shape))
    return [draw(rng, shape).astype(np.float32) for shape in CASES[name][1]]


@pytest.fixture(scope="module")
def machine() -> relax.VirtualMachine:
    mod = tvm.IRModule({name: function_of(name).with_attr("global_symbol", name) for name in CASES})
    return relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_tvm(machine: relax.VirtualMachine, name: str) -> None:
    inputs = inputs_of(name)
    expected = machine[name](*[tvm.runtime.tensor(x) for x in inputs])
    expected = [expected] if isinstance(expected, tvm.runtime.Tensor) else list(expected)
    found = reference.to_numpy(reference.run(function_of(name), [torch.from_numpy(x) for x in inputs]))
    terms = CASES[name][2]
    assert len(found) == len(expected)
    for ours, theirs in zip(found, (e.numpy() for e in expected), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if theirs.dtype.kind != "f":
            np.testing.assert_array_equal(ours, theirs)
        else:
            # each of `terms` additions and the function's own evaluation rounds once, relative to the largest term
            scale = float(np.abs(theirs).max(initial=1.0))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=(terms - 1) * 2 * EPSILON * scale)


def test_pixel_shuffle_moves_channels_into_space() -> None:
    x = np.arange(2 * 8 * 3 * 4, dtype=np.float32).reshape(2, 8, 3, 4)
    param = var("x", x.shape)
    builder = ir.GraphBuilder([param])
    func = builder.finish([builder.emit(op.nn.pixel_shuffle(param, 2), "y")])
    found = reference.to_numpy(reference.run(func, [torch.from_numpy(x)]))[0]
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        np.testing.assert_array_equal(found[:, :, row::2, column::2], x[:, 2 * row + column::4])


def test_hard_activations() -> None:
    x = torch.linspace(-4, 4, 33)
    param = var("x", (33,))
    for make, expected in ((custom.hard_swish, torch.nn.functional.hardswish(x)),
                           (custom.hard_sigmoid, torch.nn.functional.hardsigmoid(x))):
        builder = ir.GraphBuilder([param])
        func = builder.finish([builder.emit(make(param), "y")])
        torch.testing.assert_close(reference.run(func, [x])[0], expected, rtol=0, atol=4 * EPSILON)


def test_channels_last_equals_channels_first() -> None:
    """Layouts that TVM has no legalization for: transposed convolutions, channels last."""
    x, w = torch.randn(2, 8, 5, 4), torch.randn(8, 3, 3, 3)
    first, last = var("x", (2, 8, 5, 4)), var("x", (2, 5, 4, 8))
    builder = ir.GraphBuilder([first])
    options = {"strides": 2, "padding": (1, 0, 1, 1)}
    plain = builder.finish([builder.emit(op.nn.conv2d_transpose(first, ir.constant(w.numpy()), **options), "y")])
    builder = ir.GraphBuilder([last])
    kernel = ir.constant(w.permute(0, 2, 3, 1).numpy())
    permuted = builder.finish([builder.emit(op.nn.conv2d_transpose(
        last, kernel, data_layout="NHWC", kernel_layout="IHWO", **options), "y")])
    expected = reference.run(plain, [x])[0]
    found = reference.run(permuted, [x.permute(0, 2, 3, 1)])[0]
    torch.testing.assert_close(found.permute(0, 3, 1, 2), expected, rtol=0, atol=72 * EPSILON * 8)


def grouped_module() -> tvm.IRModule:
    """``main`` calls a private function that scales and clamps, then negates itself."""
    inner = var("x", (2, 3))
    builder = ir.GraphBuilder([inner])
    scaled = builder.emit(op.multiply(inner, const(2.0)), "scale")
    clamped = builder.emit(op.nn.relu(scaled), "clamp")
    group = builder.finish([clamped], attrs={"Primitive": True, "group": "elementwise"})
    module = relax.BlockBuilder()
    name = module.add_func(group, "fused_scale")
    x = var("x", (2, 3))
    builder = ir.GraphBuilder([x])
    y = builder.emit(relax.Call(name, [x]), "scale")
    return ir.with_main(module.get(), builder.finish([builder.emit(op.negative(y), "negative")]))


def test_runs_grouped_modules_and_differentiates() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 0.5, 0.25]], requires_grad=True)
    y = reference.run(grouped_module(), {"x": x})[0]
    torch.testing.assert_close(y, -torch.relu(2 * x))
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(x > 0, -2.0, 0.0))


def test_unknown_operator_names_itself_and_its_binding() -> None:
    x = var("x", (4,))
    builder = ir.GraphBuilder([x])
    func = builder.finish([builder.emit(op.unique(x), "features.3.distinct")])
    with pytest.raises(UnsupportedOperatorError, match=r"(?s)features\.3\.distinct.*relax\.unique"):
        reference.run(func, [torch.zeros(4)])


def test_unknown_form_names_its_binding() -> None:
    x = var("x", (2, 8, 3))
    builder = ir.GraphBuilder([x])
    call = op.nn.batch_norm(x, *(const(np.ones(8)) for _ in range(4)), axis=1, training=True)
    func = builder.finish([builder.emit(call, "stem.bn")])
    with pytest.raises(UnsupportedOperatorError, match=r"(?s)stem\.bn.*training"):
        reference.run(func, [torch.zeros(2, 8, 3)])


def test_missing_inputs() -> None:
    with pytest.raises(DataError, match="missing"):
        reference.run(function_of("relu"), {"wrong": torch.zeros(X)})
    with pytest.raises(DataError, match="wrong number"):
        reference.run(function_of("relu"), [])


@pytest.mark.parametrize("bad", [-1, 5])
def test_index_outside_of_a_table(bad: int) -> None:
    ids = var("ids", (2,), "int64")
    builder = ir.GraphBuilder([ids])
    func = builder.finish([builder.emit(op.take(weights(5, 3), ids, axis=0), "embedding")])
    with pytest.raises(DataError, match=r"(?s)embedding.*outside of the table.*0 to 4"):
        reference.run(func, [torch.tensor([0, bad])])
