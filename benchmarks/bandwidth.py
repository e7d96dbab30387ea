"""Bytes a second that all threads together read from memory."""

from __future__ import annotations

import functools

import numpy as np
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from narrowcast.backends.cpu.isa import named
from narrowcast.backends.cpu.vector_math import splat
from narrowcast.backends.cpu.vector_memory import load, store
from narrowcast.backends.executable import use_threads
from narrowcast.backends.target import Target

_BYTES = 2**29  # More than any last-level cache.
_ACCUMULATORS, _LANES = 8, 16


def _reader(threads: int) -> tvm.tirx.PrimFunc:
    """``func(x, sums)``: every thread adds up its part of ``x``, float32."""
    step = _ACCUMULATORS * _LANES
    rounds = _BYTES // 4 // (threads * step)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("read")
        T.func_attr({"tirx.noalias": True})
        x = T.arg("x", T.buffer((_BYTES // 4,), "float32"))
        sums = T.arg("sums", T.buffer((threads * _LANES,), "float32"))
        with T.parallel(threads) as thread:
            named("thread", thread)
            accumulators = [named(f"acc{i}", T.alloc_buffer((_LANES,), "float32")) for i in range(_ACCUMULATORS)]
            for acc in accumulators:
                store(acc, 0, splat(0.0, _LANES), _LANES)
            with T.serial(rounds) as i:
                for j, acc in enumerate(accumulators):
                    at = (thread * rounds + i) * step + j * _LANES
                    store(acc, 0, load(acc, 0, _LANES) + load(x, at, _LANES), _LANES)
            total = load(accumulators[0], 0, _LANES)
            for acc in accumulators[1:]:
                total = total + load(acc, 0, _LANES)
            store(sums, thread * _LANES, total, _LANES)
    return builder.get().with_attr("global_symbol", "read")


@functools.cache
def bandwidth(target: Target, rounds: int = 10) -> float:
    """Bytes a second: the best of ``rounds`` sums of an array that no cache holds."""
    use_threads(target.threads)
    module = tvm.compile(tvm.IRModule({"read": _reader(target.threads)}), target.tvm_target()).mod
    x = tvm.runtime.tensor(np.zeros(_BYTES // 4, np.float32))
    sums = tvm.runtime.empty((target.threads * _LANES,), "float32")
    return _BYTES / min(module.time_evaluator("read", tvm.cpu(), number=1, repeat=rounds)(x, sums).results)
