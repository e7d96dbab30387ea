"""Measured costs: what is measured, what is kept, and what happens to a broken file."""

import json
import os
import stat
import warnings
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from narrowcast.backends import costs
from narrowcast.backends.costs import CostTable, cost_key, default_path, random_buffers
from narrowcast.backends.cpu.kernel import Kernel
from narrowcast.backends.target import Target, host_model
from narrowcast.errors import TargetError, VerificationError

TARGET = Target.parse("cpu", threads=1)


def scale_kernel(size=256, factor=2.0, name="scale", work=1, extra=None):
    """``y = factor * x``, ``work`` times over; ``extra`` is evaluated first."""
    with IRBuilder() as builder, T.prim_func():
        T.func_name(name)
        T.func_attr({"tirx.noalias": True, "layer": name})
        x = T.arg("x0", T.buffer((size,), "float32"))
        y = T.arg("y0", T.buffer((size,), "float32"))
        if extra is not None:
            T.evaluate(extra)
        with T.serial(0, work) as step, T.serial(0, size) as i:
            T.buffer_store(y, x[i] * T.float32(factor) + T.Cast("float32", step), [i])
    return Kernel(builder.get(), (), size)


@pytest.fixture
def measured(monkeypatch):
    """The layers that are really measured."""
    layers = []
    buffers = costs.random_buffers
    monkeypatch.setattr(costs, "random_buffers", lambda k, e: layers.append(costs._layer(k)) or buffers(k, e))
    return layers


def test_more_work_costs_more(tmp_path):
    small, large = CostTable(tmp_path / "c.json").measure([scale_kernel(4096), scale_kernel(4096, work=64)], TARGET)
    assert small > 0 and 8 * small < large < 1e6, "64 times the work, whatever else the machine does"


def test_equal_code_is_measured_once_and_kept(tmp_path, measured):
    path = tmp_path / "deep" / "costs.json"
    kernels = [scale_kernel(name="a"), scale_kernel(name="b", factor=3.0), scale_kernel(size=512, name="c")]
    first = CostTable(path).measure(kernels, TARGET)
    assert measured == ["b", "c"] or measured == ["a", "c"]
    assert first[0] == first[1] != first[2]
    again = CostTable(path)
    assert len(again) == 2 and again.measure(kernels, TARGET) == first
    assert len(measured) == 2, "the second table read the first one's file"
    assert os.listdir(path.parent) == ["costs.json"], "no temporary file is left"


def test_the_key_leaves_out_names_and_values_and_nothing_else():
    key = cost_key(scale_kernel(), TARGET)
    assert cost_key(scale_kernel(name="other", factor=0.1), TARGET) == key
    others = {cost_key(scale_kernel(size=257), TARGET), cost_key(scale_kernel(work=2), TARGET),
              cost_key(scale_kernel(), Target(TARGET.cpu, 2)), cost_key(scale_kernel(), Target("haswell", 1))}
    assert len(others) == 4 and key not in others
    assert f"apache-tvm {tvm.__version__}" in key and "narrowcast" in key


def test_a_new_version_measures_anew(monkeypatch):
    key = cost_key(scale_kernel(), TARGET)
    monkeypatch.setattr(costs, "_version", lambda package: "99")
    assert cost_key(scale_kernel(), TARGET) != key


def test_slow_kernels_are_not_timed_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "_LIMIT_S", 1e-9)
    runs = []
    evaluator = tvm.runtime.Module.time_evaluator
    monkeypatch.setattr(tvm.runtime.Module, "time_evaluator",
                        lambda self, *names, **options: runs.append(options) or evaluator(self, *names, **options))
    CostTable(tmp_path / "c.json").measure([scale_kernel(), scale_kernel(64)], TARGET)
    assert runs == [{"number": 1, "repeat": 1}] * 2


def test_progress_counts_compiling_and_timing(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "_MODULE_KERNELS", 2)
    monkeypatch.setattr(costs, "_TURN_KERNELS", 2)
    table, seen = CostTable(tmp_path / "c.json"), []
    table.measure([scale_kernel(64)], TARGET)
    sizes = (64, 128, 256, 512, 128)
    table.measure([scale_kernel(s) for s in sizes], TARGET, lambda done, total: seen.append((done, total)))
    assert seen == [(2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]
    assert table.measure([], TARGET) == []


def test_costs_of_another_cpu_model_are_not_ours(monkeypatch):
    """Machines with one home directory and one LLVM name may still be different models."""
    monkeypatch.setattr(costs, "host_model", lambda: "EPYC 1")
    first = cost_key(scale_kernel(), TARGET)
    assert "/EPYC 1/" in first and first == cost_key(scale_kernel(name="other"), TARGET)
    monkeypatch.setattr(costs, "host_model", lambda: "EPYC 2")
    assert cost_key(scale_kernel(), TARGET) != first


def test_the_cpu_model_is_that_of_the_system():
    listed = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert f": {host_model()}\n" in listed or ("model name" not in listed and not host_model())


@pytest.mark.parametrize("text", [
    "", "not json", "[]", '{"format": 1}', '{"format": 0, "microseconds": {}}',
    '{"format": 1, "microseconds": {"a": "x"}}',
    '{"format": 1, "microseconds": {"a": NaN}}', '{"format": 1, "microseconds": {"a": -1}}',
    '{"format": 1, "microseconds": [1]}', "\ud800",
])
def test_a_broken_file_is_ignored_with_a_warning_and_rebuilt(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.warns(UserWarning, match="not usable and is ignored"):
        table = CostTable(path)
    assert len(table) == 0
    cost, = table.measure([scale_kernel()], TARGET)
    assert list(json.loads(path.read_text())["microseconds"].values()) == [cost]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(CostTable(path)) == 1


def test_costs_of_other_processes_are_kept(tmp_path):
    path = tmp_path / "costs.json"
    one, other = CostTable(path), CostTable(path)
    one.measure([scale_kernel(64)], TARGET)
    other.measure([scale_kernel(128)], TARGET)
    assert len(CostTable(path)) == 2


@pytest.mark.parametrize("blocked", ["a file where the folder should be", "a folder where the file should be"])
def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, blocked):
    path = tmp_path / "cache" / "costs.json"
    if blocked.startswith("a file"):
        path.parent.write_text("")
    else:
        path.mkdir(parents=True)
    with pytest.warns(UserWarning):
        cost, = CostTable(path).measure([scale_kernel()], TARGET)
    assert cost > 0
    assert not blocked.startswith("a folder") or os.listdir(path.parent) == ["costs.json"]


def test_the_default_file_is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "narrowcast" / "costs.json"
    for unusable in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert default_path() == Path.home() / ".cache" / "narrowcast" / "costs.json"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    CostTable().measure([scale_kernel()], TARGET)
    assert stat.S_ISREG((tmp_path / "narrowcast" / "costs.json").stat().st_mode)


@pytest.mark.parametrize(("extra", "fault"), [
    (tvm.tirx.call_packed("runtime.config_threadpool", tvm.tirx.Var("unbound", "int32")), "does not compile"),
    (tvm.tirx.call_packed("narrowcast.tests.no_such_function"), "does not run"),
])
def test_a_kernel_that_does_not_compile_or_run_is_named(tmp_path, extra, fault):
    kernels = [scale_kernel(), scale_kernel(name="encoder.3.conv", extra=extra), scale_kernel(64)]
    with pytest.raises(VerificationError, match=rf"^encoder\.3\.conv: the kernel {fault}\n  found: \w"):
        CostTable(tmp_path / "c.json").measure(kernels, TARGET)


def test_a_target_that_is_not_this_machine_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Target, "runs_here", lambda self: False)
    with pytest.raises(TargetError, match="only be measured on the target itself"):
        CostTable(tmp_path / "c.json").measure([scale_kernel()], TARGET)


def test_random_buffers_are_seeded_and_fit_their_types():
    dtypes = ("float32", "uint16", "uint8", "int8", "int32", "int64", "bool")
    with IRBuilder() as builder, T.prim_func():
        T.func_name("all_types")
        for i, dtype in enumerate(dtypes):
            T.arg(f"x{i}", T.buffer((3, 50_000), dtype))
        T.arg("scalar", T.buffer((), "float32"))
        T.evaluate(T.int32(0))
    kernel = Kernel(builder.get(), (), 0)
    *first, scalar = (b.numpy() for b in random_buffers(kernel))
    again = [b.numpy() for b in random_buffers(kernel)]
    assert [str(a.dtype) for a in first] == list(dtypes) and scalar.shape == ()
    assert all(a.shape == (3, 50_000) and np.array_equal(a, b) for a, b in zip(first, again, strict=False))
    floats, bits, unsigned, signed, *indices, flags = first
    brain = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(brain).all() and np.abs(brain - floats).max() <= 2.0**-7 * np.abs(floats).max()
    assert (unsigned.min(), unsigned.max(), signed.min(), signed.max()) == (0, 255, -127, 127)
    assert not any(i.any() for i in indices) and 0 < flags.mean() < 1
