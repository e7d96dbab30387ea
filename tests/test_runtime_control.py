"""Loops and branches of which only running tells how they go, from ONNX to the saved program."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import narrowcast
from narrowcast import ImportModelError, ProgramError, UnsupportedOperatorError
from narrowcast.backends.target import Target
from narrowcast.frontends import onnx_running
from narrowcast.frontends.onnx import import_onnx
from narrowcast.operators.control import bodies_of
from narrowcast.passes import run_pipeline
from narrowcast.verification import kernel_agreement

from .frontends.onnx_models import EPS, computed, expected, graph, model, node, noise

TRUE = np.asarray(True)
Shape = Sequence[int | str]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, kind: int | None = None, shape: Shape = ()) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name) if kind is None else helper.make_tensor_value_info(name, kind, shape)


def loop(nodes: Sequence[onnx.NodeProto], states: str, outputs: str, initial: str, results: str, *, mark: str = "",
         types: Mapping[str, Shape] | None = None) -> onnx.NodeProto:
    """A Loop whose body reads i, c and ``states`` and gives ``outputs``, the condition first; ``types`` are shapes of
    outputs that are declared, and ``mark`` is in its names."""
    body = helper.make_graph(
        list(nodes), f"body{mark}",
        [value(f"i{mark}", INT64), value(f"c{mark}", BOOL), *(value(n) for n in states.split(",") if n)],
        [value(n, *((FLOAT, types[n]) if types and n in types else ())) for n in outputs.split(",")])
    return node("Loop", initial, results, body=body)


def choice(condition: str, yes: Sequence[onnx.NodeProto], no: Sequence[onnx.NodeProto],
           results: str = "y") -> onnx.NodeProto:
    """An If whose branches give z."""
    return node("If", condition, results, then_branch=graph(yes, {}, "z"), else_branch=graph(no, {}, "z"))


def scan(nodes: Sequence[onnx.NodeProto], initial: str, results: str, **attributes: object) -> onnx.NodeProto:
    """A Scan whose body reads the state s and the element e, and gives t and o: vectors."""
    body = helper.make_graph(list(nodes), "body", [value(n, FLOAT, [None]) for n in "se"],
                             [value(n, FLOAT, [None]) for n in "to"])
    return node("Scan", initial, results, body=body, num_scan_inputs=1, **attributes)


def agrees(proto: onnx.ModelProto, *feeds: Mapping[str, np.ndarray], terms: int = 8,
           **options: object) -> narrowcast.Program:
    """The program, which gives, as the reference evaluator does, what ONNX Runtime gives to the rounding of ``terms``
    sums."""
    program, imported = narrowcast.compile(proto, num_threads=1, **options), import_onnx(proto)
    for feed in feeds:
        wanted = expected(proto, feed)
        for found in (program.run([np.asarray(feed[s.name]) for s in program.inputs]), computed(imported, feed)):
            for got, want in zip(found, wanted, strict=True):
                assert got.shape == want.shape and got.dtype == want.dtype
                scale = float(np.abs(want).max(initial=0.0))
                np.testing.assert_allclose(got, want, rtol=0, atol=EPS * terms * scale)
    return program


SCALED = [node("Identity", "c", "goes"), node("Mul", "a,w", "m"), node("Add", "m,one", "out"),
          node("Identity", "out", "seen")]
SERIES = model([loop(SCALED, "a", "goes,out,seen", "n,true,x", "y,all", types={"seen": [3]})],
               {"x": [3], "n": ("int64", [])}, "y,all",
               {"true": TRUE, "w": noise(3, seed=5), "one": np.asarray(1, np.float32)})


def counted(*counts: int) -> list[dict[str, np.ndarray]]:
    return [{"x": noise(3), "n": np.asarray(n)} for n in counts]


def test_the_number_of_iterations_is_an_input() -> None:
    program = agrees(SERIES, *counted(0, 1, 2, 7), {"x": noise(3), "n": np.asarray(-3)})
    assert [s.shape for s in program.outputs] == [(3,), ("y.count", 3)]


def test_a_condition_that_the_body_computes() -> None:
    body = [node("Add", "a,x", "out"), node("ReduceSum", "out", "sum", keepdims=0), node("Less", "sum,limit", "goes"),
            node("Identity", "out", "seen")]
    proto = model([loop(body, "a", "goes,out,seen", "most,go,zero", "y,all")],
                  {"x": ["n"], "zero": ["n"], "limit": [], "most": ("int64", []), "go": ("bool", [])}, "y,all")
    agrees(proto, *({"x": np.ones(k, np.float32), "zero": np.zeros(k, np.float32), "go": np.asarray(True),
                     "limit": np.asarray(limit, np.float32), "most": np.asarray(most)}
                    for k, limit, most in ((3, -1, 9), (3, 5, 9), (1, 7, 9), (2, 100, 9))))
    program = narrowcast.compile(proto, num_threads=1)
    y, seen = program(np.ones(2, np.float32), np.zeros(2, np.float32), np.float32(9), np.int64(4), np.bool_(False))
    assert y.tolist() == [0, 0] and seen.shape == (0, 2)


def test_a_while_loop_without_a_limit() -> None:
    body = [node("Add", "a,a", "out"), node("ReduceMax", "out", "m", keepdims=0), node("Less", "m,limit", "goes")]
    proto = model([loop(body, "a", "goes,out", ",true,x", "y")], {"x": [2], "limit": []}, "y", {"true": TRUE})
    agrees(proto, *({"x": np.array([1, 3], np.float32), "limit": np.asarray(v, np.float32)} for v in (0, 6, 7, 1e6)))


def test_weights_and_tensors_around_a_loop() -> None:
    """A matrix product with a constant, packed once; a tensor of symbolic shape; and an extent alone."""
    body = [node("Identity", "c", "goes"), node("MatMul", "a,w", "m"), node("Tanh", "m", "t"), node("Add", "t,x", "s"),
            node("Reshape", "s,flat", "r"), node("Reshape", "r,sizes", "out")]
    nodes = [node("Shape", "x", "sizes"), node("Exp", "x", "e"),
             loop(body, "a", "goes,out", "n,true,e", "l"), node("Neg", "l")]
    proto = model(nodes, {"x": ["rows", 8], "n": ("int64", [])}, "y",
                  {"true": TRUE, "w": noise(8, 8, seed=1), "flat": np.array([-1])})
    agrees(proto, *({"x": noise(rows, 8), "n": np.asarray(n)} for rows, n in ((1, 1), (5, 3), (2, 0))), terms=64)


GROW = [node("Identity", "c", "goes"), node("Concat", "a,x", "out", axis=0),
        node("ReduceSum", "out", "seen", keepdims=0)]


@pytest.mark.parametrize("start", ["x", "nothing"])
def test_a_state_that_grows(start: str) -> None:
    proto = model([loop(GROW, "a", "goes,out,seen", f"n,true,{start}", "y,all", types={"seen": []})],
                  {"x": ["rows", 4], "n": ("int64", [])}, "y,all",
                  {"true": TRUE, "nothing": np.zeros((0, 4), np.float32)})
    agrees(proto, *({"x": noise(rows, 4), "n": np.asarray(n)} for rows, n in ((2, 3), (1, 1), (2, 0))), terms=64)


def test_a_state_that_is_empty_at_run_time_is_an_error_that_names_the_layer() -> None:
    """Nobody knew that it might be; a concatenation would have to write what its kernel takes for nothing."""
    nodes = [node("NonZero", "f", "places"), node("Transpose", "places", "p", perm=[1, 0]),
             node("GatherND", "f,p", "some"),
             loop([node("Identity", "c", "goes"), node("Concat", "a,f", "out", axis=0)], "a", "goes,out",
                  "n,true,some", "y")]
    nodes[-1].name = "growing"
    program = narrowcast.compile(model(nodes, {"f": [2], "n": ("int64", [])}, "y", {"true": TRUE}), num_threads=1)
    assert program(np.array([0, 3], np.float32), np.int64(2)).tolist() == [3, 0, 3, 0, 3]
    with pytest.raises(ProgramError, match=r"growing: extents found in 'growing' do not fit this layer[^$]*>= 1"):
        program(np.zeros(2, np.float32), np.int64(2))


TWO = [node("Identity", "c", "goes"), node("Concat", "a,x", "out", axis=0), node("Concat", "b,x", "more", axis=0),
       node("Add", "a,b", "ab"), node("ReduceSum", "ab", "seen", keepdims=0)]


def test_states_that_grow_together() -> None:
    proto = model([loop(TWO, "a,b", "goes,out,more,seen", "n,true,x,z", "p,q,all")],
                  {"x": ["rows", 4], "z": ["others", 4], "n": ("int64", [])}, "p,q,all", {"true": TRUE})
    program = agrees(proto, *({"x": noise(2, 4), "z": noise(2, 4, seed=1), "n": np.asarray(n)} for n in (1, 4)),
                     terms=64)
    with pytest.raises(ProgramError, match="extents differ that have to be equal"):
        program(noise(2, 4), noise(3, 4), np.int64(2))


def test_the_number_of_an_iteration_cuts_and_picks() -> None:
    """It is an extent, so that what it cuts has one; the last cut of a longer loop has fewer rows."""
    body = [node("Identity", "c", "goes"), node("Unsqueeze", "i,first", "from"), node("Add", "from,two", "to"),
            node("Slice", "x,from,to", "part"), node("Gather", "x,i", "row", axis=0), node("Mul", "part,row", "seen"),
            node("Cast", "i", "f", to=FLOAT), node("Add", "a,f", "out")]
    proto = model([loop(body, "a", "goes,out,seen", "n,true,zero", "y,all", types={"seen": [2, 4]})],
                  {"x": [6, 4], "n": ("int64", [])}, "y,all",
                  {"true": TRUE, "first": np.array([0]), "two": np.array([2]), "zero": np.zeros(2, np.float32)})
    program = agrees(proto, *({"x": noise(6, 4), "n": np.asarray(n)} for n in (1, 5)))
    with pytest.raises(ProgramError, match=r"different shapes[^$]*\[2, 4\], \[1, 4\]"):
        program(noise(6, 4), np.int64(6))


def test_values_that_cannot_be_stacked() -> None:
    body = [node("Identity", "c", "goes"), node("Concat", "a,x", "out", axis=0), node("Relu", "a", "seen")]
    proto = model([loop(body, "a", "goes,out,seen", "n,true,x", "y,all")], {"x": [2], "n": ("int64", [])}, "y,all",
                  {"true": TRUE})
    proto.graph.node[0].name = "growing"
    program = narrowcast.compile(proto, num_threads=1)
    assert program(noise(2), np.int64(1))[1].shape == (1, 2)
    with pytest.raises(ProgramError, match=r"growing: .*different shapes[^$]*\[2\], \[4\]"):
        program(noise(2), np.int64(2))


def test_a_loop_in_a_loop() -> None:
    """The inner one runs as often as the outer one has run; it reads what is around both."""
    inner = loop([node("Identity", "c2", "goes2"), node("Mul", "b,w", "m2"), node("Add", "m2,x", "out2")], "b",
                 "goes2,out2", "i,true,t", "out", mark="2")
    body = [node("Identity", "c", "goes"), node("Add", "a,x", "t"), inner, node("Identity", "out", "seen")]
    proto = model([loop(body, "a", "goes,out,seen", "n,true,x", "y,all")], {"x": ["rows", 4], "n": ("int64", [])},
                  "y,all", {"true": TRUE, "w": noise(4, seed=3)})
    agrees(proto, *({"x": noise(2, 4), "n": np.asarray(n)} for n in (1, 2, 4)), terms=64)


def test_a_branch_in_a_loop_in_a_branch() -> None:
    pick = choice("even", [node("Concat", "a,a", "z", axis=0)], [node("Slice", "a,from,to", "z")], "out")
    body = [node("Identity", "c", "goes"), node("Mod", "i,two", "rest"), node("Equal", "rest,null", "even"), pick]
    repeated = loop(body, "a", "goes,out", "n,true,x", "z")
    proto = model([choice("flag", [repeated], [node("Neg", "x", "z")])],
                  {"x": [4], "n": ("int64", []), "flag": ("bool", [])}, "y",
                  {"true": TRUE, "two": np.asarray(2), "null": np.asarray(0), "from": np.array([1]),
                   "to": np.array([2 ** 40])})
    agrees(proto, *({"x": noise(4), "n": np.asarray(n), "flag": np.asarray(flag)}
                    for n, flag in ((0, True), (1, True), (4, True), (4, False))))


def test_branches_of_different_shapes_and_what_reads_them() -> None:
    nodes = [choice("flag", [node("Concat", "x,x", "t0", axis=0), node("MatMul", "t0,w", "z")],
                    [node("Relu", "x", "z")], "t"), node("Exp", "t", "u"), node("MatMul", "u,w")]
    proto = model(nodes, {"x": ["n", 4], "flag": ("bool", [])}, "y", {"w": noise(4, 4, seed=1)})
    program = agrees(proto, *({"x": noise(3, 4), "flag": np.asarray(flag)} for flag in (True, False)), terms=64)
    assert [s.shape for s in program.outputs] == [("t.t.0", 4)]


def test_only_one_branch_runs() -> None:
    """The other would not end."""
    endless = loop([node("Add", "a,x", "out"), node("ReduceMin", "out", "m", keepdims=0),
                    node("Less", "m,top", "goes")], "a", "goes,out", ",true,x", "z")
    proto = model([choice("flag", [endless], [node("Neg", "x", "z")])], {"x": [2], "flag": ("bool", [])}, "y",
                  {"true": TRUE, "top": np.asarray(np.inf, np.float32)})
    program = narrowcast.compile(proto, num_threads=1)
    assert program(np.ones(2, np.float32), np.bool_(False)).tolist() == [-1, -1]


@pytest.mark.parametrize("attributes", [
    {}, {"scan_input_axes": [1]}, {"scan_input_directions": [1]}, {"scan_output_directions": [1]},
    {"scan_output_axes": [1]}, {"scan_input_axes": [-1], "scan_output_axes": [-1], "scan_output_directions": [1]},
])
def test_a_scan_over_a_symbolic_axis(attributes: dict[str, object]) -> None:
    is_last = "scan_input_axes" in attributes
    proto = model([scan([node("Add", "s,e", "t"), node("Mul", "t,e", "o")], "first,x", "last,y", **attributes)],
                  {"first": [3], "x": [3, "steps"] if is_last else ["steps", 3]}, "last,y")
    feeds = [{"first": noise(3), "x": noise(*((3, steps) if is_last else (steps, 3)))} for steps in (1, 2, 9)]
    program = agrees(proto, *feeds, terms=64)
    assert "steps" in program.outputs[1].shape


DECODE = [node("Identity", "c", "goes"), node("MatMul", "a,w", "q"), node("Concat", "b,q", "kv", axis=0),
          node("Transpose", "kv", "kt", perm=[1, 0]), node("MatMul", "q,kt", "s"), node("Softmax", "s", "p", axis=-1),
          node("MatMul", "p,kv", "o"), node("Add", "o,a", "out"), node("Identity", "out", "seen")]


@pytest.mark.parametrize("cache", ["cache", "nothing"])
def test_attention_to_a_cache_that_grows(cache: str) -> None:
    proto = model([loop(DECODE, "a,b", "goes,out,kv,seen", f"n,true,x,{cache}", "y,k,all", types={"seen": [1, 8]})],
                  {"x": [1, 8], "cache": ["past", 8], "n": ("int64", [])}, "y,k,all",
                  {"true": TRUE, "w": noise(8, 8, seed=2) / 3, "nothing": np.zeros((0, 8), np.float32)})
    agrees(proto, *({"x": noise(1, 8), "cache": noise(past, 8, seed=1), "n": np.asarray(n)}
                    for past, n in ((3, 4), (1, 1))), terms=256)


def test_tokens_are_chosen_until_the_last() -> None:
    body = [node("Gather", "table,a", "e", axis=0), node("Add", "e,h", "t"), node("MatMul", "t,w", "scores"),
            node("ArgMax", "scores", "best", axis=-1, keepdims=0), node("Equal", "best,last", "is"),
            node("Not", "is", "goes"), node("Identity", "best", "out"), node("Identity", "best", "seen")]
    proto = model([loop(body, "a", "goes,out,seen", "n,true,first", "y,all")], {"h": [8], "n": ("int64", [])}, "y,all",
                  {"true": TRUE, "table": noise(16, 8), "w": noise(8, 16, seed=4), "first": np.asarray(0),
                   "last": np.asarray(3)})
    agrees(proto, *({"h": noise(8, seed=seed), "n": np.asarray(12)} for seed in range(6)))


def test_convolutions_and_recurrent_layers_in_bodies() -> None:
    layers = [node("Conv", "a,k", "m", pads=[2, 2, 2, 2]), node("Relu", "m", "out"), node("Identity", "c", "goes")]
    proto = model([loop(layers, "a", "goes,out", "n,true,x", "y")], {"x": ["b", 4, 8, 8], "n": ("int64", [])}, "y",
                  {"true": TRUE, "k": noise(4, 4, 3, 3) / 5})
    agrees(proto, *({"x": noise(b, 4, 8, 8), "n": np.asarray(n)} for b, n in ((1, 2), (3, 1))), terms=256)
    layers = [node("LSTM", "a,w,r", "o", hidden_size=4), node("Squeeze", "o,second", "out"),
              node("Identity", "c", "goes")]
    proto = model([loop(layers, "a", "goes,out", "n,true,x", "y")], {"x": ["t", 1, 4], "n": ("int64", [])}, "y",
                  {"true": TRUE, "w": noise(1, 16, 4) / 3, "r": noise(1, 16, 4, seed=2) / 3, "second": np.array([1])})
    agrees(proto, *({"x": noise(t, 1, 4), "n": np.asarray(n)} for t, n in ((5, 2), (1, 1))), terms=256)


def test_a_saved_program_loads_without_pytorch(tmp_path: Path) -> None:
    program = narrowcast.compile(SERIES, num_threads=2)
    path, x = program.save(tmp_path / "series.nc"), noise(3)
    for n, wanted in ((n, program(x, np.int64(n))) for n in (0, 3)):
        assert all(map(np.array_equal, narrowcast.load(path)(x, np.int64(n)), wanted))
    code = ("import sys, numpy as np, narrowcast; p = narrowcast.load(sys.argv[1]); "
            "print(p(np.ones(3, np.float32), np.int64(4))[1].shape, 'torch' in sys.modules)")
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[-2] == "(4, 3) False"


def test_bodies_are_shown() -> None:
    program = narrowcast.compile(SERIES, num_threads=1)
    assert "def y_body(" in program.source("relax")
    assert "y.m" in program.source("tir", "y.m") or "def m" in program.source("tir", "y.m")
    assert program.source("asm")
    assert all("# A body of y:" in s.text for s in program.stages if s.name != "lower")


def test_layers_of_bodies_do_not_hide_others() -> None:
    """A layer around the branch is called as one inside it would be, and both sides have the same layers."""
    sides = [[node("MatMul", f"x,{w}", "m"), *more] for w, more in (("w", [node("Exp", "m", "z")]),
                                                                    ("v", [node("Concat", "m,m", "z", axis=0)]))]
    outer = node("MatMul", "t,w", "y.m")
    proto = model([choice("flag", *sides, "t"), outer], {"x": [2, 4], "flag": ("bool", [])}, "y.m",
                  {"w": noise(4, 4), "v": noise(4, 4, seed=1)})
    proto.graph.node[0].name, outer.name = "y", "y.m"
    proto.graph.node[1].name = "y.m"
    program = agrees(proto, *({"x": noise(2, 4), "flag": np.asarray(flag)} for flag in (True, False)), terms=64)
    macs = {d.op: d.macs for d in program.plan.decisions}
    assert macs["y.m"] == 16 * 16  # Rows are taken for 16 where only running tells.
    assert [n for n in ("y.m", "y.m_", "y.m__") if program.source("tir", n)] == ["y.m", "y.m_", "y.m__"]


def test_every_kernel_of_a_body_and_around_it_agrees() -> None:
    nodes = [node("Exp", "x", "e"), loop(SCALED, "a", "goes,out,seen", "n,true,e", "l,all"), node("Neg", "l"),
             node("ReduceSum", "all", "sum", keepdims=0)]
    proto = model(nodes, {"x": [3], "n": ("int64", [])}, "y,sum",
                  {"true": TRUE, "w": noise(3, seed=5), "one": np.asarray(1, np.float32)})
    program = agrees(proto, *counted(1, 5), terms=64)
    mod = run_pipeline(import_onnx(proto).mod)
    agreements = kernel_agreement(mod, program.plan, Target.parse("cpu", 1), [noise(3), np.asarray(4)])
    assert len(agreements) == 3 and all(a.ok for a in agreements)


def test_around_a_loop_precisions_are_decided() -> None:
    """The products before and after it are INT8, the loop computes in FP32; calibration runs through it."""
    nodes = [node("MatMul", "x,w", "e"), loop([node("Identity", "c", "goes"), node("Tanh", "a", "t"),
                                               node("Add", "t,e", "out")], "a", "goes,out", "n,true,e", "l"),
             node("MatMul", "l,w")]
    proto = model(nodes, {"x": [1, 64], "n": ("int64", [])}, "y", {"true": TRUE, "w": noise(64, 64, seed=1) / 8})
    samples = [{"x": noise(1, 64, seed=i), "n": np.asarray(i % 4)} for i in range(24)]
    program = narrowcast.compile(proto, precision="int8", data=samples, num_threads=1)
    precisions = {d.op: str(d.precision) for d in program.plan.decisions}
    assert (precisions["e"], precisions["l"], precisions["y"]) == ("int8", "fp32", "int8")
    exact = narrowcast.compile(proto, num_threads=1)
    for sample in samples[:4]:
        wanted = exact(sample)
        assert np.abs(program(sample) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_a_loop_under_a_budget() -> None:
    nodes = [node("MatMul", "x,w", "e"), loop([node("Identity", "c", "goes"), node("Tanh", "a", "out")], "a",
                                              "goes,out", "n,true,e", "l"), node("MatMul", "l,v")]
    proto = model(nodes, {"x": [1, 64], "n": ("int64", [])}, "y",
                  {"true": TRUE, "w": noise(64, 64, seed=1), "v": noise(64, 10, seed=2)})
    exact = narrowcast.compile(proto, num_threads=1)
    samples = [{"x": noise(1, 64, seed=i), "n": np.asarray(1 + i % 3)} for i in range(200)]
    data = [{**s, "labels": exact(s).argmax(1)} for s in samples]
    budget = narrowcast.AccuracyBudget(max_drop=0.2, data=data, metric="top1")
    program = narrowcast.compile(proto, accuracy_budget=budget, num_threads=1)
    assert program.report.drop is not None and program.report.drop <= 0.2
    assert {d.op: str(d.precision) for d in program.plan.decisions}["l"] == "fp32"


def test_a_loop_that_does_not_end_is_the_users_to_interrupt() -> None:
    body = [node("Identity", "c", "goes"), node("Mul", "a,x", "out")]
    proto = model([loop(body, "a", "goes,out", "n,true,x", "y")], {"x": [2], "n": ("int64", [])}, "y", {"true": TRUE})
    program = narrowcast.compile(proto, num_threads=1)
    started = time.monotonic()
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        program(np.ones(2, np.float32), np.int64(2 ** 62))
    assert time.monotonic() - started < 30
    assert program(np.full(2, 2, np.float32), np.int64(3)).tolist() == [16, 16]


def test_branches_in_branches_take_no_time_that_doubles() -> None:
    inner = graph([node("Relu", "x", "z")], {}, "z")
    for _ in range(24):
        inner = graph([node("If", "flag", "z", then_branch=inner,
                            else_branch=graph([node("Concat", "x,x", "z", axis=0)], {}, "z"))], {}, "z")
    proto = model(list(inner.node), {"x": ["n"], "flag": ("bool", [])}, "z")
    imported, x = import_onnx(proto), noise(3)
    assert [computed(imported, {"x": x, "flag": np.asarray(f)})[0].size for f in (True, False)] == [3, 6]


def test_bodies_may_not_be_translated_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops whose first iterations have bodies of their own double with every level, in the program too."""
    monkeypatch.setattr(onnx_running, "MAX_TRANSLATED", 500)
    body = [node("Identity", "c0", "goes0"), node("Concat", "a0,x", "out0", axis=0)]
    for level in range(12):
        inner = loop(body, f"a{level}", f"goes{level},out{level}", "n,true,nothing", f"l{level + 1}", mark=str(level))
        body = [node("Identity", f"c{level + 1}", f"goes{level + 1}"), inner,
                node("Concat", f"a{level + 1},l{level + 1}", f"out{level + 1}", axis=0)]
    proto = model([loop(body, "a12", "goes12,out12", "n,true,nothing", "y", mark="12")],
                  {"x": ["rows"], "n": ("int64", [])}, "y", {"true": TRUE, "nothing": np.zeros(0, np.float32)})
    with pytest.raises(UnsupportedOperatorError, match="takes more than 500 nodes"):
        import_onnx(proto)


def test_a_symbol_found_outside_and_one_found_inside_are_two() -> None:
    """Both would have the name of their layers, which is the same."""
    def some(x: str, y: str, mark: str) -> list[onnx.NodeProto]:
        places = helper.make_node("NonZero", [x], [f"p{mark}"], name="some")
        return [places, node("Squeeze", f"p{mark},first", f"q{mark}"), node("Gather", f"{x},q{mark}", y)]

    body = [*some("a", "s", "1"), node("ReduceSum", "s", "sum", keepdims=0), node("ReduceSum", "t", "all", keepdims=0),
            node("Sub", "sum,all", "d"), node("Mul", "a,half", "h"), node("Floor", "h", "out"),
            node("Identity", "c", "goes"), node("Add", "d,all", "seen")]
    nodes = [*some("x", "t", "0"), loop(body, "a", "goes,out,seen", "n,true,x", "y,all_seen")]
    proto = model(nodes, {"x": ["k"], "n": ("int64", [])}, "y,all_seen",
                  {"true": TRUE, "first": np.array([0]), "half": np.asarray(0.5, np.float32)})
    agrees(proto, {"x": np.array([0, 8, 1, 0, 3], np.float32), "n": np.asarray(3)})


def test_what_is_still_refused() -> None:
    ranks = [node("Identity", "c", "goes"), node("Unsqueeze", "a,first", "out")]
    cases: dict[str, tuple[onnx.NodeProto, str]] = {
        "rank": (loop(ranks, "a", "goes,out", "n,true,x", "y"), "a state whose rank changes"),
        "types": (choice("flag", [node("Identity", "x", "z")], [node("Shape", "x", "z")]), "different types"),
        "ranks": (choice("flag", [node("Identity", "x", "z")], [node("Unsqueeze", "x,first", "z")]), "different types"),
    }
    for layer, message in cases.values():
        proto = model([layer], {"x": [3], "n": ("int64", []), "flag": ("bool", [])}, "y",
                      {"true": TRUE, "first": np.array([0])})
        with pytest.raises(UnsupportedOperatorError, match=rf"\(1 node: y\).*{message}"):
            import_onnx(proto)


def test_a_state_that_changes_its_element_type_is_a_fault() -> None:
    body = [node("Identity", "c", "goes"), node("Shape", "a", "out")]
    proto = model([loop(body, "a", "goes,out", "n,true,x", "y")], {"x": [3], "n": ("int64", [])}, "y", {"true": TRUE})
    with pytest.raises(ImportModelError, match="a state changes its element type"):
        import_onnx(proto)


def test_bodies_go_through_the_passes() -> None:
    """Inside, a bias and an activation join their product, as outside."""
    body = [node("Identity", "c", "goes"), node("MatMul", "a,w", "m"), node("Add", "m,one", "b"),
            node("Relu", "b", "out")]
    proto = model([loop(body, "a", "goes,out", "n,true,x", "y")], {"x": [2, 4], "n": ("int64", [])}, "y",
                  {"true": TRUE, "w": noise(4, 4), "one": np.ones(4, np.float32)})
    grouped = run_pipeline(import_onnx(proto).mod)
    (group,) = [f for gv, f in grouped.functions.items() if gv.name_hint != "main" and f.attrs["group"] == "opaque"]
    (inner,) = bodies_of(group.body.blocks[0].bindings[0].value)
    assert sorted(f.attrs["group"] for gv, f in inner.mod.functions.items() if gv.name_hint != "main") == [
        "matmul", "opaque"]
