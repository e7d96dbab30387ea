"""ONNX Runtime, OpenVINO and torch.compile, set up as their users would for the least latency.

Every function returns a callable that takes the model's inputs as NumPy arrays, in order, and returns the outputs as a
list. All start from the same PyTorch module, or its ONNX export, and use the number of threads they are told.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from narrowcast.errors import DataError

from .quantizers import Arrays, quantize_onnx
from .quiet import need, quiet

Peer = Callable[..., list[np.ndarray]]

PEERS = (
    "onnxruntime fp32", "onnxruntime int8", "openvino fp32", "openvino bf16", "openvino int8", "torch fp32",
    "torch bf16",
)
"""The peers that ``build_peers`` can make."""


def export_onnx(model: nn.Module, example_inputs: Arrays) -> onnx.ModelProto:
    """The module as ONNX, of the static shapes of ``example_inputs``."""
    tensors = tuple(torch.from_numpy(array) for array in example_inputs)
    with quiet():
        program = torch.onnx.export(model, tensors, dynamo=True, verbose=False)
    if program is None:
        raise DataError("PyTorch exported no ONNX program", found=type(model).__name__)
    return program.model_proto


def onnxruntime_fp32(model: onnx.ModelProto, threads: int) -> Peer:
    """ONNX Runtime on the CPU with all its graph optimizations."""
    return session(model, threads)


def onnxruntime_int8(model: onnx.ModelProto, calibration: Sequence[Arrays], threads: int) -> Peer:
    """ONNX Runtime on its static QDQ quantization: activations u8, weights s8 per channel, min-max ranges.

    Embeddings are looked up in floating point: as the weights of products, which they may be too, they have scales per
    channel.
    """
    return session(quantize_onnx(model, calibration, exclude=("Gather",)), threads)


def session(model: onnx.ModelProto, threads: int, *, optimized: bool = True) -> Peer:
    """ONNX Runtime on the CPU, with or without its graph optimizations."""
    need("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def openvino_model(model: onnx.ModelProto) -> Any:
    """OpenVINO's model of the ONNX one."""
    need("openvino")
    import openvino

    return openvino.Core().read_model(io.BytesIO(model.SerializeToString()))


def openvino_at(model: Any, precision: str, threads: int) -> Peer:
    """OpenVINO with the latency hint, one stream, and the inference precision hint ``"f32"`` or ``"bf16"``."""
    import openvino

    compiled = openvino.Core().compile_model(model, "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision,
    })
    request = compiled.create_infer_request()
    outputs = range(len(compiled.outputs))

    def call(*arrays: np.ndarray) -> list[np.ndarray]:
        request.infer(list(arrays), share_inputs=True)
        return [request.get_output_tensor(index).data for index in outputs]

    return call


def openvino_int8(model: Any, calibration: Sequence[Arrays], threads: int, *, transformer: bool = False) -> Peer:
    """OpenVINO on NNCF's post-training quantization; what NNCF leaves in floating point runs in BF16 where the CPU can.

    That is OpenVINO's default and its fastest form.
    """
    need("nncf")
    import nncf
    import openvino

    with quiet():
        quantized = nncf.quantize(
            model, nncf.Dataset([list(arrays) for arrays in calibration]), subset_size=len(calibration),
            model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        )
    supported = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return openvino_at(quantized, "bf16" if "BF16" in supported else "f32", threads)


def torch_at(model: nn.Module, dtype: torch.dtype, example_inputs: Arrays, threads: int) -> Peer:
    """torch.compile (Inductor, weights frozen) on the module with its floats, and those of the inputs, in ``dtype``."""
    from torch._inductor import config

    torch.set_num_threads(threads)
    with torch.no_grad(), config.patch(freezing=True), quiet():
        compiled = torch.compile(copy.deepcopy(model).eval().to(dtype))

        def call(*arrays: np.ndarray) -> list[np.ndarray]:
            tensors = [torch.from_numpy(array) for array in arrays]
            with torch.no_grad():
                outputs = compiled(*(t.to(dtype) if t.is_floating_point() else t for t in tensors))
            return [o.float().numpy() for o in (outputs if isinstance(outputs, tuple) else (outputs,))]

        call(*example_inputs)
    return call


def build_peers(
    model: nn.Module | Path, example_inputs: Arrays, calibration: Sequence[Arrays], threads: int, *,
    transformer: bool = False, wanted: Sequence[str] = PEERS,
) -> dict[str, Peer]:
    """The ``wanted`` ones of ``PEERS`` for one network; of an ONNX file those that take one.

    Raises DataError for an unknown name, or where a package of the ``bench`` extra is missing.
    """
    exported = onnx.load(model) if isinstance(model, Path) else export_onnx(model, example_inputs)
    makers: dict[str, Callable[[], Peer]] = {
        "onnxruntime fp32": lambda: onnxruntime_fp32(exported, threads),
        "onnxruntime int8": lambda: onnxruntime_int8(exported, calibration, threads),
        "openvino fp32": lambda: openvino_at(openvino_model(exported), "f32", threads),
        "openvino bf16": lambda: openvino_at(openvino_model(exported), "bf16", threads),
        "openvino int8": lambda: openvino_int8(
            openvino_model(exported), calibration, threads, transformer=transformer
        ),
    }
    if isinstance(model, nn.Module):
        makers |= {
            "torch fp32": lambda: torch_at(model, torch.float32, example_inputs, threads),
            "torch bf16": lambda: torch_at(model, torch.bfloat16, example_inputs, threads),
        }
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise DataError("there is no such peer", found=", ".join(unknown), expected=", ".join(PEERS))
    return {name: makers[name]() for name in wanted if name in makers}
