"""Sampling between elements, windows by tables, determinants and caches against PyTorch and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from narrowcast.errors import ImportModelError, UnsupportedOperatorError
from narrowcast.frontends.onnx import import_onnx

from .onnx_models import EPS, computed, expected, ints, model, node, noise


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return computed(import_onnx(proto), feeds)


def close(found: np.ndarray, wanted: np.ndarray | torch.Tensor, terms: int = 8) -> None:
    """Within the rounding of sums of ``terms`` products of numbers like the largest one."""
    wanted = np.asarray(wanted)
    scale = max(float(np.abs(wanted).max(initial=0)), 1.0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * EPS * terms * scale)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["nearest", "linear"]), st.sampled_from(["zeros", "border", "reflection"]), st.booleans(),
       st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_volumes_are_sampled(mode: str, padding: str, aligned: bool, extents: list[int]) -> None:
    x, grid = noise(2, 3, *extents), 1.4 * noise(2, 2, 3, 4, 3, seed=1)
    proto = model([node("GridSample", "x,grid", mode=mode, padding_mode=padding, align_corners=int(aligned))],
                  {"x": x.shape, "grid": grid.shape})
    wanted = functional.grid_sample(torch.from_numpy(x), torch.from_numpy(grid),
                                    "bilinear" if mode == "linear" else mode, padding, aligned)
    # Places are a few roundings of numbers up to twice the extents apart, and so are their weights.
    close(run(proto, {"x": x, "grid": grid})[0], wanted, terms=64)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [0, 2])
def test_regions(mode: str, coordinates: str, samples: int) -> None:
    if mode == "max" and samples == 0:
        samples = 3
    x = noise(2, 3, 9, 11)
    rois = np.array([[0, 0, 20, 15], [4, 3, 9, 30], [-3, 2, 6, 7], [1, 1, 1.5, 1.2]], np.float32)
    proto = model([node("RoiAlign", "x,rois,images", mode=mode, coordinate_transformation_mode=coordinates,
                        output_height=2, output_width=3, sampling_ratio=samples, spatial_scale=0.5)],
                  {"x": x.shape, "images": ("int64", [4])}, initializers={"rois": rois})
    feeds = {"x": x, "images": ints(1, 0, 1, 0)}
    if mode == "avg":  # For the maximum ONNX Runtime takes that of sums, as later versions of the operator do.
        close(run(proto, feeds)[0], expected(proto, feeds)[0], terms=64)
    else:
        assert np.isfinite(run(proto, feeds)[0]).all()


def test_regions_that_choose_their_samples_have_to_be_known() -> None:
    proto = model([node("RoiAlign", "x,rois,images", output_height=2, output_width=2)],
                  {"x": [1, 1, 4, 4], "rois": [2, 4], "images": ("int64", [2])})
    with pytest.raises(UnsupportedOperatorError, match="a number of samples that depends on the regions"):
        import_onnx(proto)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.booleans())
def test_deformable_convolution(groups: int, parts: int, stride: int, dilation: int, masked: bool) -> None:
    x, weight = noise(2, 4, 7, 6), noise(6, 4 // groups, 2, 3, seed=1)
    rows = (7 + 2 - dilation - 1) // stride + 1
    columns = (6 + 1 - 2 * dilation - 1) // stride + 1
    feeds = {"x": x, "w": weight, "offset": noise(2, parts * 12, rows, columns, seed=2), "bias": noise(6, seed=3)}
    if masked:
        feeds["mask"] = noise(2, parts * 6, rows, columns, seed=4)
    proto = model([node("DeformConv", ",".join(feeds), group=groups, offset_group=parts, strides=[stride] * 2,
                        dilations=[dilation] * 2, pads=[1, 0, 1, 1], kernel_shape=[2, 3])],
                  {n: a.shape for n, a in feeds.items()})
    close(run(proto, feeds)[0], expected(proto, feeds)[0], terms=64)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1), st.integers(0, 1))
def test_columns_become_an_image(kernel: int, stride: int, dilation: int, before: int, after: int) -> None:
    extents = (7, 6)
    if min(extents) + before + after < (kernel - 1) * dilation + 1:
        return
    unfold = functional.unfold(torch.from_numpy(noise(2, 3, 7 + before + after, 6 + before + after)), kernel, dilation,
                               stride=stride)
    columns = unfold.numpy()
    proto = model([node("Col2Im", "x,shape,block", pads=[before, before, after, after], strides=[stride] * 2,
                        dilations=[dilation] * 2)],
                  {"x": columns.shape}, initializers={"shape": ints(*extents), "block": ints(kernel, kernel)})
    whole = functional.fold(unfold, (7 + before + after, 6 + before + after), kernel, dilation, stride=stride)
    close(run(proto, {"x": columns})[0], whole[:, :, before:before + 7, before:before + 6], terms=9)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "stride", "dilation", "pad", "ceil"), [
    (2, 2, 1, 0, 0), (3, 2, 1, 1, 1), (2, 1, 2, 1, 0)])
def test_maxima_know_their_places(rank: int, kernel: int, stride: int, dilation: int, pad: int, ceil: int) -> None:
    x = noise(2, 2, *(7, 6, 5)[:rank])
    proto = model([node("MaxPool", "x", "y,places", kernel_shape=[kernel] * rank, strides=[stride] * rank,
                        dilations=[dilation] * rank, pads=[pad] * 2 * rank, ceil_mode=ceil)],
                  {"x": x.shape}, "y,places")
    for found, wanted in zip(run(proto, {"x": x}), expected(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_places_column_by_column() -> None:
    x = noise(1, 2, 4, 6)
    proto = model([node("MaxPool", "x", "y,places", kernel_shape=[2, 2], strides=[2, 2], storage_order=1)],
                  {"x": x.shape}, "y,places")
    places = run(proto, {"x": x})[1]
    columns_first = x.swapaxes(2, 3).reshape(-1)
    np.testing.assert_array_equal(columns_first[places], run(proto, {"x": x})[0])


def test_maxima_go_back_to_their_places() -> None:
    x = noise(2, 3, 6, 8)
    pooled, places = functional.max_pool2d(torch.from_numpy(x), 2, return_indices=True)
    wanted = functional.max_unpool2d(pooled, places, 2)
    images = np.arange(6).reshape(2, 3, 1, 1) * 48
    proto = model([node("MaxUnpool", "x,places", kernel_shape=[2, 2], strides=[2, 2])],
                  {"x": pooled.shape, "places": ("int64", places.shape)})
    found = run(proto, {"x": pooled.numpy(), "places": places.numpy() + images})[0]
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**31), st.sampled_from(["plain", "singular", "permuted"]))
def test_determinants(rows: int, seed: int, kind: str) -> None:
    x = noise(2, 2, rows, rows, seed=seed)
    if kind == "singular":
        x[..., -1, :] = x[..., 0, :] if rows > 1 else 0
    if kind == "permuted":
        x = np.broadcast_to(np.eye(rows, dtype=np.float32)[np.random.default_rng(seed).permutation(rows)], x.shape)
    found = run(model([node("Det", "x")], {"x": x.shape}), {"x": x})[0]
    wanted = np.linalg.det(x.astype(np.float64))
    # Elimination errs by the rounding of sums as large as Hadamard's bound on the determinant.
    bound = np.prod(np.linalg.norm(x.astype(np.float64), axis=-1), axis=-1)
    assert np.all(np.abs(found - wanted) <= 16 * rows * EPS * np.maximum(bound, 1e-6))


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, 2])
def test_caches_are_updated(mode: str, axis: int) -> None:
    cache, first = noise(3, 5, 5, 2), ints(0, 3, 2) if mode == "linear" else ints(0, 4, 7)
    update = noise(*(2 if a == axis else d for a, d in enumerate(cache.shape)), seed=1)
    wanted = cache.copy()
    for sample in range(3):
        for step in range(2):
            place = [sample, slice(None), slice(None)]
            source = list(place)
            place[axis], source[axis] = (int(first[sample]) + step) % 5, step
            wanted[tuple(place)] = update[tuple(source)]
    proto = model([node("TensorScatter", "cache,update,first", mode=mode, axis=axis)],
                  {"cache": cache.shape, "update": update.shape, "first": ("int64", [3])}, opset=24)
    found = run(proto, {"cache": cache, "update": update, "first": first})[0]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("proto", "text"), [
    (model([node("Det", "x")], {"x": [2, 3]}), "no square matrices"),
    (model([node("Det", "x")], {"x": [40, 40]}), "of 40 rows"),
    (model([node("Col2Im", "x,s,b")], {"x": [1, 4, 5]}, initializers={"s": ints(3, 3), "b": ints(2, 2)}),
     "the columns do not fit"),
    (model([node("GridSample", "x,g", mode="cubic")], {"x": [1, 1, 2, 2, 2], "g": [1, 1, 1, 1, 3]}), "mode cubic"),
    (model([node("GridSample", "x,g")], {"x": [1, 1, 2, 2, 2], "g": [1, 1, 1, 1, 2]}), "the grid does not fit"),
])
def test_forms_that_are_refused(proto: onnx.ModelProto, text: str) -> None:
    with pytest.raises(ImportModelError, match=text):
        import_onnx(proto)
