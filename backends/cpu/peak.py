"""The machine's peak: multiply-adds per second of a loop that keeps everything in registers.

The same instruction as in the kernels, 24 independent accumulators per thread or 4 tiles, no memory: what a kernel's
rate is a share of.
"""

from __future__ import annotations

import functools

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from ...precision import Precision
from ..executable import use_threads
from ..target import Target
from ..tile_permission import request_tiles_for
from .amx import tiles_at_work
from .isa import Arithmetic, arithmetic, bind, named, tile_arithmetic
from .tiling import Columns, Schedule, Tiles
from .vector_math import splat
from .vector_memory import load, store

_ACCUMULATORS = 24
_STEPS = 40_000
_TILE_STEPS = 16
_ALL_TILES = Schedule(32, Columns.cut(32, 2, 16), 1, 1, tiles=Tiles(16, 2, _TILE_STEPS))


def peak_function(precision: Precision, target: Target) -> tvm.tirx.PrimFunc:
    """``func(out)``: every thread runs ``_STEPS`` times ``_ACCUMULATORS`` multiply-adds of what is in ``out`` (the
    compiler cannot know it) and stores their sum; of tiles ``_STEPS`` times one into each and nothing."""
    tiled = tile_arithmetic(precision, target.capabilities)
    if tiled is not None:
        return _peak_of_tiles(tiled, target)
    unit = arithmetic(precision, target.capabilities)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("peak")
        T.func_attr({"tirx.noalias": True})
        out = T.arg("out", T.buffer((target.threads * unit.lanes,), unit.sum))
        with T.parallel(target.threads) as thread, unit.helpers():
            named("thread", thread)
            accumulators = [
                named(f"acc{i}", T.alloc_buffer((unit.lanes,), unit.sum)) for i in range(_ACCUMULATORS)
            ]
            left = named("left", T.alloc_buffer((unit.panel,), unit.operand))
            right = named("right", T.alloc_buffer((unit.panel,), unit.weight))
            for acc in accumulators:
                store(acc, 0, splat(0, unit.lanes, unit.sum), unit.lanes)
            given = bind("given", out[thread * unit.lanes])
            store(left, 0, tirx.Broadcast(_cast(given, unit.operand), unit.panel), unit.panel)
            store(right, 0, tirx.Broadcast(_cast(given, unit.weight), unit.panel), unit.panel)
            with T.serial(_STEPS):
                for acc in accumulators:
                    product = unit.multiply_add(
                        load(acc, 0, unit.lanes), unit.broadcast(left, 0), unit.weights(right, 0)
                    )
                    store(acc, 0, product, unit.lanes)
            total = load(accumulators[0], 0, unit.lanes)
            for acc in accumulators[1:]:
                total = total + load(acc, 0, unit.lanes)
            store(out, thread * unit.lanes, total, unit.lanes)
    return builder.get().with_attr("global_symbol", "peak")


def _peak_of_tiles(unit: Arithmetic, target: Target) -> tvm.tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func():
        T.func_name("peak")
        T.arg("out", T.buffer((target.threads * unit.lanes,), unit.sum))
        with T.parallel(target.threads) as thread, tiles_at_work(unit, _ALL_TILES) as matrix:
            named("thread", thread)
            assert matrix is not None
            matrix.emit_peak(_STEPS)
    return builder.get().with_attr("global_symbol", "peak")


def _cast(value: tirx.Expr, dtype: str) -> tirx.Expr:
    return tirx.Cast(dtype, value)


@functools.lru_cache(maxsize=16)
def _peak_module(precision: Precision, target: Target) -> tvm.runtime.Module:
    return tvm.compile(tvm.IRModule({"peak": peak_function(precision, target)}), target.tvm_target()).mod


def peak_macs_per_second(precision: Precision, target: Target, rounds: int = 15) -> float:
    """Multiply-adds per second of all threads together: the best of ``rounds`` runs of about a millisecond."""
    tiled = tile_arithmetic(precision, target.capabilities)
    unit = tiled or arithmetic(precision, target.capabilities)
    out = tvm.runtime.tensor(np.zeros(target.threads * unit.lanes, unit.sum))
    macs = _ACCUMULATORS * unit.panel
    if tiled is not None:
        request_tiles_for(target)
        macs = _ALL_TILES.rows * _ALL_TILES.columns.vectors * _TILE_STEPS * unit.panel
    use_threads(target.threads)
    timer = _peak_module(precision, target).time_evaluator("peak", tvm.cpu(), number=1, repeat=rounds)
    seconds = min(timer(out).results)
    return target.threads * _STEPS * macs / seconds
