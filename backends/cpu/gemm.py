"""Matrix products with constant weights: the matmul kernel, and what convolution shares with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ...dims import product_of
from ...errors import PlanError
from ...ir import constant_value, dims_of
from ...operators.quantization import LONGEST_INT8_SUM, quantize_weights, scale_and_offset
from ...precision import Precision
from ..target import Capabilities
from .amx_tiling import Candidate, candidates
from .batched_matmul import build_batched_matmul
from .epilogue import Epilogue, Part, Position
from .isa import arithmetic, named
from .kernel import Kernel, KernelRequest, Parameters
from .left_rows import MatrixRows, Rows
from .operands import Reduction, Result
from .packing import as_operand, pack_weights
from .signature import build_kernel, input_index
from .tiling import Product
from .vector_math import Vector, fma
from .vector_memory import Index, flat_view, load


def build_matmul(request: KernelRequest, capabilities: Capabilities, threads: int) -> Kernel:
    """The kernel of a matmul group: [..., K] · constant [K, N] in the request's precision, with its epilogue."""
    anchor = request.group.anchor.value
    leading = dims_of(anchor.args[0])[:-1]
    weights = constant_value(anchor.args[1])
    rows = MatrixRows(product_of(leading), len(weights))
    return build_product(request, capabilities, threads, weights[None, None], rows)


def build_product(request: KernelRequest, capabilities: Capabilities, threads: int, weights: np.ndarray,
                  rows: Rows) -> Kernel:
    """The kernel of a product of gathered rows with constant weights.

    weights : float32 [groups, taps, depth, columns of a group].
    """
    groups, taps, depth, columns = weights.shape
    way, schedules = request.pick(ways_to_multiply(request, capabilities, threads, rows, columns, groups))
    unit, rows, tasks = way.arithmetic, way.rows, way.tasks
    epilogue, scaling, operand = prepare(request, capabilities, weights)
    whole = _whole_taps(operand, tasks.reading(rows.reduction, unit))
    packed = pack_weights(whole, tasks.schedule.packed_columns(columns, unit.lanes), unit)
    constants = (packed, *(with_slack(a, unit.lanes) for a in scaling))
    data = input_index(request, request.group.anchor.value.args[0])
    qparams = request.inputs[data].qparams

    def emit(parameters: Parameters) -> None:
        source = named("x", flat_view(parameters.inputs[data]))
        opened = rows.open(tasks, unit, source, qparams.zero_point if qparams else 0)
        results = _Results(epilogue, parameters.constants[1:len(constants)], unit.lanes)
        tasks.emit(unit, parameters.constants[0], opened, results)

    macs = rows.count * groups * taps * depth * columns
    return replace(build_kernel(request, unit, epilogue, constants, macs, emit), schedules=schedules)


@dataclass(frozen=True)
class _Results:
    """Accumulators made float32 with ``scaling`` and finished by an epilogue (see ``operands.Results``)."""

    epilogue: Epilogue
    scaling: Sequence[tirx.Buffer]
    lanes: int

    @property
    def together(self) -> int:
        return self.epilogue.together

    def store(self, results: Sequence[Result]) -> None:
        self.epilogue.emit_all([Part(dequantize(acc, self.scaling, column, self.lanes), Position(row, column), valid)
                                for acc, row, column, valid in results])

    def fetch(self, row: Index, column: Index, number: int) -> None:
        self.epilogue.fetch(Position(row, column), number)


def ways_to_multiply(request: KernelRequest, capabilities: Capabilities, threads: int, rows: Rows, columns: int,
                     groups: int = 1) -> Iterator[Candidate]:
    """The ways to compute a product of rows with constant weights, the least predicted time first.

    columns : of a group.
    """
    unit = arithmetic(request.precision, capabilities)
    product = Product(rows.count, columns, rows.reduction.steps(unit), groups, request.typical,
                      rows.distance * unit.operand_bytes)
    return candidates(product, rows, unit, capabilities, threads, rows.bytes_per_row(unit))


def prepare(request: KernelRequest, capabilities: Capabilities,
            weights: np.ndarray) -> tuple[Epilogue, tuple[np.ndarray, ...], np.ndarray]:
    """The epilogue of a group with constant weights [groups, taps, depth, columns], the per-channel constants that turn
    its accumulators into float32 (none but in INT8), and the weights as the multiply-add reads them."""
    if request.precision is not Precision.INT8:
        return Epilogue(request, capabilities, request.group.anchor), (), as_operand(weights, request.precision)
    groups, taps, depth, columns = weights.shape
    if taps * depth > LONGEST_INT8_SUM:
        raise PlanError("the reduction is too long for INT8: a 32-bit accumulator could overflow",
                        layer=request.group.name, found=taps * depth, expected=f"at most {LONGEST_INT8_SUM}",
                        hint="keep this layer in bf16 or fp32")
    epilogue = Epilogue(request, capabilities, request.group.anchor, take_bias=True)
    by_channel = weights.transpose(1, 2, 0, 3).reshape(taps, depth, groups * columns)
    quantized, scales = quantize_weights(by_channel, per_channel=request.per_channel)
    data = request.inputs[input_index(request, request.group.anchor.value.args[0])].qparams
    assert data is not None, "lowering gives INT8 groups u8 data"
    scale, offset = scale_and_offset(quantized, scales, data, epilogue.bias, request.correction, epilogue.rounding)
    operand = quantized.reshape(taps, depth, groups, columns).transpose(2, 0, 1, 3)
    return epilogue, (scale, offset), operand


def _whole_taps(weights: np.ndarray, reduction: Reduction) -> np.ndarray:
    """Weights [groups, taps, depth, columns] in the taps of a reduction, with zeros for what it has beyond."""
    groups, taps, depth, columns = weights.shape
    in_taps = weights.reshape(groups, reduction.count, taps * depth // reduction.count, columns)
    return np.pad(in_taps, ((0, 0), (0, 0), (0, max(reduction.depth - in_taps.shape[2], 0)), (0, 0)))


def dequantize(acc: Vector, scaling: Sequence[tirx.Buffer], column: Index, lanes: int) -> Vector:
    """An accumulator vector as float32; ``scaling`` is (scale, offset) in INT8 (see ``scale_and_offset``) and empty
    otherwise."""
    if not scaling:
        return acc
    scale, offset = (load(buffer, column, lanes) for buffer in scaling)
    if str(scaling[1].dtype) == "int32":
        sums = T.Cast(f"int32x{lanes}", acc) if str(acc.ty.dtype).startswith("float32") else acc
        return T.Cast(f"float32x{lanes}", sums + offset) * scale
    return fma(acc if str(acc.ty.dtype).startswith("float32") else T.Cast(f"float32x{lanes}", acc), scale, offset)


def with_slack(values: np.ndarray, lanes: int) -> np.ndarray:
    """Per-channel values that may be read as whole vectors from any channel on."""
    return np.concatenate([values, np.zeros(lanes, values.dtype)])


__all__ = ["build_batched_matmul", "build_matmul", "build_product", "dequantize", "prepare", "ways_to_multiply",
           "with_slack"]
