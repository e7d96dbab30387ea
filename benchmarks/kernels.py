"""Kernels against the machine's peak: every layer of a network, next to a register-only loop of the same instruction.

``python -m benchmarks.kernels --precision int8 --network resnet50 [--json FILE]``. The peak is measured
again before every layer, so that both see the same machine; times are the best of several rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

from narrowcast import ir
from narrowcast.backends.cpu import convolution, depthwise, gemm
from narrowcast.backends.cpu.build import compile_functions, empty_outputs
from narrowcast.backends.cpu.kernel import Kernel, KernelRequest, buffer_dtype
from narrowcast.backends.cpu.peak import peak_macs_per_second
from narrowcast.backends.executable import use_threads
from narrowcast.backends.target import Target
from narrowcast.backends.tile_permission import request_tiles_for
from narrowcast.ir import shape_of
from narrowcast.precision import BFLOAT16, FLOAT32, Precision, QParams, Storage

_ROUNDS = 40


@dataclass(frozen=True)
class Layer:
    """A convolution of a square NHWC image, or (kernel 0) a matrix product of ``size`` rows.

    count : how often the network has it; residual : whether a tensor is added before the activation.
    """

    name: str
    size: int
    channels: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    residual: bool = False
    activation: str = "relu"
    count: int = 1


@dataclass(frozen=True)
class Result:
    """A layer's time and rate.

    share : of the peak measured next to it.
    """

    layer: str
    count: int
    macs: int
    microseconds: float
    gmacs: float
    peak_gmacs: float
    share: float


def resnet50() -> list[Layer]:
    """The 53 convolutions and the classifier of ResNet-50 (stride in the 3×3 convolution)."""
    layers = [Layer("conv1", 224, 3, 64, 7, 2)]
    size, channels = 56, 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        stride, name = (1 if stage == 1 else 2), f"layer{stage}"
        layers += [
            Layer(f"{name}.0.conv1", size, channels, width),
            Layer(f"{name}.0.conv2", size, width, width, 3, stride),
            Layer(f"{name}.0.downsample", size, channels, 4 * width, 1, stride, activation=""),
            Layer(f"{name}.conv3", size // stride, width, 4 * width, residual=True, count=blocks),
            Layer(f"{name}.n.conv1", size // stride, 4 * width, width, count=blocks - 1),
            Layer(f"{name}.n.conv2", size // stride, width, width, 3, count=blocks - 1),
        ]
        size, channels = size // stride, 4 * width
    return [*layers, Layer("fc", 1, 2048, 1000, 0, activation="")]


def mobilenetv2_depthwise() -> list[Layer]:
    """The depthwise convolutions of MobileNetV2."""
    shapes = ((112, 32, 1, 1), (112, 96, 2, 1), (56, 144, 1, 1), (56, 144, 2, 1), (28, 192, 1, 2), (28, 192, 2, 1),
              (14, 384, 1, 4), (14, 576, 1, 2), (14, 576, 2, 1), (7, 960, 1, 3))
    return [Layer(f"{size}x{channels}/{stride}", size, channels, channels, 3, stride, channels, activation="relu6",
                  count=count) for size, channels, stride, count in shapes]


def minilm() -> list[Layer]:
    """The linear layers of MiniLM (6 blocks, width 384) on 128 tokens."""
    return [Layer("query/key/value/output", 128, 384, 384, 0, activation="", count=24),
            Layer("intermediate", 128, 384, 1536, 0, activation="gelu", count=6),
            Layer("output", 128, 1536, 384, 0, residual=True, activation="", count=6)]


NETWORKS = {"resnet50": resnet50, "mobilenetv2-depthwise": mobilenetv2_depthwise, "minilm": minilm}


def request_of(layer: Layer, precision: Precision) -> KernelRequest:
    """The layer with seeded weights, bias, residual and activation; it writes what the next layer would read."""
    rng = np.random.default_rng(0)
    anchor_shape = (layer.size, layer.channels) if not layer.kernel else (1, layer.size, layer.size, layer.channels)
    data = relax.Var("data", relax.TensorType(anchor_shape, "float32"))
    weight_shape = ((layer.outputs, layer.kernel, layer.kernel, layer.channels // layer.groups) if layer.kernel
                    else (layer.channels, layer.outputs))
    weight = ir.constant((rng.standard_normal(weight_shape) * 0.05).astype(np.float32))
    if layer.kernel:
        value = relax.op.nn.conv2d(data, weight, strides=layer.stride, padding=layer.kernel // 2, groups=layer.groups,
                                   data_layout="NHWC", kernel_layout="OHWI")
    else:
        value = relax.op.matmul(data, weight)
    type_of = relax.BlockBuilder().normalize(value).ty
    params = [data, relax.Var("residual", type_of)] if layer.residual else [data]
    builder = ir.GraphBuilder(params)
    result = builder.emit(value, layer.name)
    bias = ir.constant(rng.standard_normal(layer.outputs).astype(np.float32))
    result = builder.emit(relax.op.add(result, bias), "bias")
    if layer.residual:
        result = builder.emit(relax.op.add(result, params[1]), "sum")
    if layer.activation:
        op = {"relu": relax.op.nn.relu, "relu6": lambda x: relax.op.clip(x, 0, 6), "gelu": relax.op.nn.gelu}
        result = builder.emit(op[layer.activation](result), "activation")
    kind = ("depthwise" if layer.groups > 1 else "conv") if layer.kernel else "matmul"
    function = builder.finish([result], attrs={"Primitive": True, "group": kind})
    group = ir.Group(layer.name, kind, function, tuple(p.name for p in params))
    return KernelRequest(group, precision, tuple(_storage(precision) for _ in params), (_storage(precision),))


def _storage(precision: Precision) -> Storage:
    if precision is Precision.INT8:
        return Storage("uint8", QParams(0.05, 0))
    return BFLOAT16 if precision is Precision.BF16 else FLOAT32


def measure(layers: Sequence[Layer], precision: Precision, target: Target) -> list[Result]:
    """Build all layers into one module and time each, next to the peak."""
    build = {"conv": convolution.build_conv, "matmul": gemm.build_matmul, "depthwise": depthwise.build_depthwise}
    requests = [request_of(layer, precision) for layer in layers]
    kernels = [build[r.group.kind](r, target.capabilities, target.threads) for r in requests]
    module = compile_functions({f"layer_{i}": k.func for i, k in enumerate(kernels)}, target.tvm_target())
    request_tiles_for(target)
    use_threads(target.threads)
    return [_measure(module, f"layer_{i}", layer, request, kernel, target)
            for i, (layer, request, kernel) in enumerate(zip(layers, requests, kernels, strict=True))]


def _measure(module: tvm.runtime.Module, function: str, layer: Layer, request: KernelRequest, kernel: Kernel,
             target: Target) -> Result:
    rng = np.random.default_rng(1)
    inputs = [_array(rng, shape_of(p), buffer_dtype(s))
              for p, s in zip(request.group.parameters, request.inputs, strict=True)]
    arguments = [tvm.runtime.tensor(a) for a in (*inputs, *kernel.constants)] + empty_outputs(request)
    timer = module.time_evaluator(function, tvm.cpu(), number=1, repeat=_ROUNDS)
    peak, seconds = 0.0, float("inf")
    for _ in range(3):
        peak = max(peak, peak_macs_per_second(request.precision, target, rounds=5))
        seconds = min(seconds, *timer(*arguments).results)
    rate = kernel.macs / seconds
    return Result(layer.name, layer.count, kernel.macs, seconds * 1e6, rate / 1e9, peak / 1e9, rate / peak)


def _array(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    if dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    values = rng.standard_normal(shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "uint16" else values


def weighted_share(results: Sequence[Result]) -> float:
    """Share of the peak over all layers: the time at the peak over the time taken."""
    ideal = sum(r.count * r.macs / (r.peak_gmacs * 1e3) for r in results)
    return ideal / sum(r.count * r.microseconds for r in results)


def show(results: Sequence[Result], title: str, console: Console) -> None:
    """Print a table of the layers and their sum."""
    table = Table(title=title)
    for column in ("layer", "times", "MMAC", "µs", "GMAC/s", "peak", "share"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for r in results:
        table.add_row(r.layer, str(r.count), f"{r.macs / 1e6:.1f}", f"{r.microseconds:.1f}", f"{r.gmacs:.0f}",
                      f"{r.peak_gmacs:.0f}", f"{r.share:.1%}")
    total = sum(r.count * r.microseconds for r in results)
    table.add_section()
    table.add_row("all", str(sum(r.count for r in results)), f"{sum(r.count * r.macs for r in results) / 1e6:.0f}",
                  f"{total:.0f}", "", "", f"{weighted_share(results):.1%}")
    console.print(table)


def report_of(network: str, precision: Precision, threads: int, results: Sequence[Result]) -> dict[str, object]:
    """The results of a network in one precision, for JSON."""
    return {"network": network, "precision": str(precision), "threads": threads, "share": weighted_share(results),
            "layers": [asdict(r) for r in results]}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", choices=[*NETWORKS, "all"], default="all")
    parser.add_argument("--precision", choices=["int8", "bf16", "fp32", "all"], default="all")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    target = Target.parse(options.target, options.threads)
    chosen = [Precision(options.precision)] if options.precision != "all" else list(target.precisions())
    names = [options.network] if options.network != "all" else list(NETWORKS)
    console, report = Console(), []
    for name in names:
        for precision in chosen:
            results = measure(NETWORKS[name](), precision, target)
            show(results, f"{name}, {precision}, {target.threads} threads", console)
            report.append(report_of(name, precision, target.threads, results))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
