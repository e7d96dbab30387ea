"""What a user sees of the graph after a pass."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest
import tvm
from tvm import relax

from narrowcast import ir
from narrowcast.passes import run_pipeline
from narrowcast.stages import Node, Stage, stage_of, stages_from_json, stages_to_json


@pytest.fixture(scope="module")
def mod() -> tvm.IRModule:
    """x [2, 300] -> relu(x @ W), and its halves."""
    x = relax.Var("x", relax.TensorType((2, 300), "float32"))
    builder = ir.GraphBuilder([x])
    weight = ir.constant(np.full((300, 4), 0.125, np.float32))
    act = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, weight), 'a "quoted" layer')), "act")
    halves = builder.emit(relax.op.split(act, 2, axis=1), "halves")
    return ir.with_main(tvm.IRModule(), builder.finish([builder.emit(relax.TupleGetItem(halves, 1), "right")]))


def test_nodes(mod: tvm.IRModule) -> None:
    stage = stage_of("import", mod)
    assert [(n.name, n.op, n.inputs) for n in stage.nodes] == [
        ('a "quoted" layer', "relax.matmul", ("x",)), ("act", "relax.nn.relu", ('a "quoted" layer',)),
        ("halves", "relax.split", ("act",)), ("right", "TupleGetItem", ("halves",))]
    assert str(stage) == stage.text and "R.matmul" in stage.text and "float32" in stage.nodes[0].type
    assert len(stage.text) < 4000, "weights are left out"


def test_grouped_form_shows_the_groups(mod: tvm.IRModule) -> None:
    seen: list[Stage] = []
    run_pipeline(mod, observe=lambda name, m: seen.append(stage_of(name, m)))
    assert [s.name for s in seen][-2:] == ["FuseGroups", "VerifyGroupedForm"]
    first = seen[-1].nodes[0]
    assert first.name == 'a "quoted" layer' and not first.op.startswith("relax.")


def test_graph(mod: tvm.IRModule) -> None:
    graph = stage_of("import", mod).to_graph()
    assert nx.is_directed_acyclic_graph(graph)
    assert list(nx.topological_sort(graph)) == ["x", 'a "quoted" layer', "act", "halves", "right"]
    assert graph.nodes["act"]["op"] == "relax.nn.relu"


def test_json_is_the_graph(mod: tvm.IRModule) -> None:
    stage = stage_of("import", mod)
    raw = json.loads(stage.to_json())
    assert raw["name"] == "import" and raw["text"] == stage.text
    assert set(nx.node_link_graph(raw, edges="edges").edges) == set(stage.to_graph().edges)


def test_dot_quotes_names() -> None:
    lines = Stage("s", "", (Node('a"b', "op", ("x",), "T"),)).to_dot().splitlines()
    assert lines[0] == 'digraph "s" {' and lines[-1] == "}"
    assert r'  "a\"b" [label="a\"b\nop\nT"];' in lines and r'  "x" -> "a\"b";' in lines


def test_stages_round_trip(mod: tvm.IRModule) -> None:
    stages = (stage_of("import", mod), Stage("empty", "", ()))
    assert stages_from_json(stages_to_json(stages)) == stages
