"""Networks quantized by the tools that people use: ONNX Runtime's quantizer, and PT2E with the quantizer for x86."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import version_converter
from torch import nn
from torch.export import ExportedProgram

from .quiet import need, quiet

Arrays = tuple[np.ndarray, ...]
_PER_CHANNEL_OPSET = 13


def quantize_onnx(model: onnx.ModelProto, calibration: Sequence[Arrays], *, form: str = "QDQ", per_channel: bool = True,
                  activations: str = "QUInt8", weights: str = "QInt8", exclude: Sequence[str] = (),
                  **options: Any) -> onnx.ModelProto:
    """``model`` with min-max ranges by ONNX Runtime's static quantization.

    form : "QDQ" or "QOperator"; activations, weights : names of ``QuantType``; exclude : types of operators that stay
    in floating point; options : the quantizer's ``extra_options``.
    """
    need("onnxruntime")
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [value.name for value in model.graph.input]

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest: Iterator[Arrays] = iter(calibration)

        def get_next(self) -> dict[str, np.ndarray] | None:
            arrays = next(self.rest, None)
            return None if arrays is None else dict(zip(names, arrays, strict=True))

    with tempfile.TemporaryDirectory() as folder, quiet():
        original, prepared, quantized = (str(Path(folder) / f"{name}.onnx") for name in ("fp32", "prepared", "int8"))
        onnx.save(_with_axes(model), original)
        quant_pre_process(original, prepared, skip_symbolic_shape=True)
        left_out = [n.name for n in onnx.load(prepared).graph.node if n.op_type in exclude]
        quantize_static(
            prepared, quantized, Reader(), quant_format=QuantFormat[form], per_channel=per_channel,
            activation_type=QuantType[activations], weight_type=QuantType[weights], nodes_to_exclude=left_out,
            extra_options=options,
        )
        return onnx.load(quantized)


def _with_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an opset in which scales may be per channel."""
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return model if opset >= _PER_CHANNEL_OPSET else version_converter.convert_version(model, _PER_CHANNEL_OPSET)


def quantize_pt2e(
    module: nn.Module, calibration: Sequence[tuple[torch.Tensor, ...]], *, dynamic: bool = False
) -> tuple[nn.Module, ExportedProgram]:
    """``module`` quantized for x86, products of two tensors as well; as a module, and exported. ``dynamic``: ranges of
    activations are found when it runs."""
    need("torchao")
    with quiet():
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        config = x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic)
        quantizer = x86.X86InductorQuantizer().set_global(config)
        quantizer.set_function_type_qconfig(torch.matmul, config)
        observed = prepare_pt2e(torch.export.export(module.eval(), calibration[0]).module(), quantizer)
        with torch.no_grad():
            for sample in calibration:
                observed(*sample)
        converted = convert_pt2e(observed)
        return converted, torch.export.export(converted, calibration[0])
