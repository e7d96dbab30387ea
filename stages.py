"""What a user sees of the graph after each pass: its text, and its nodes for other programs to draw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import networkx as nx
import tvm
from tvm import relax

from .ir import op_bindings, op_name, variables_of
from .operators.control import bodies_of


@dataclass(frozen=True)
class Node:
    """One binding of ``main``: its name, what computes it, the names it reads and the type it has."""

    name: str
    op: str
    inputs: tuple[str, ...]
    type: str


@dataclass(frozen=True)
class Stage:
    """The graph after one pass. ``text`` is the module as TVMScript, weights left out."""

    name: str
    text: str
    nodes: tuple[Node, ...]

    def __str__(self) -> str:
        return self.text

    def to_graph(self) -> nx.DiGraph:
        """The graph for NetworkX: a node per binding and model input, with its ``op`` and ``type``; edges are reads."""
        graph: nx.DiGraph = nx.DiGraph(name=self.name)
        for node in self.nodes:
            graph.add_node(node.name, op=node.op, type=node.type)
        graph.add_edges_from((source, node.name) for node in self.nodes for source in node.inputs)
        return graph

    def to_json(self) -> str:
        """The graph in NetworkX's node-link form, and the text."""
        return json.dumps({"name": self.name, "text": self.text, **nx.node_link_data(self.to_graph(), edges="edges")})

    def to_dot(self) -> str:
        """The graph in Graphviz's language."""
        lines = [f"digraph {json.dumps(self.name)} {{", "  node [shape=box, fontname=monospace];"]
        for node in self.nodes:
            label = json.dumps(f"{node.name}\n{node.op}\n{node.type}")
            lines.append(f"  {json.dumps(node.name)} [label={label}];")
            lines += [f"  {json.dumps(source)} -> {json.dumps(node.name)};" for source in node.inputs]
        return "\n".join([*lines, "}"])


def stage_of(name: str, mod: tvm.IRModule) -> Stage:
    """The stage that shows ``mod``."""
    nodes = []
    for binding in op_bindings(mod["main"]):
        value = binding.value
        inputs = tuple(dict.fromkeys(v.name for v in variables_of(value)))
        nodes.append(Node(binding.var.name, _operation(value), inputs, str(binding.var.ty)))
    return Stage(name, "\n".join([mod.script(show_meta=False), *_bodies(mod)]), tuple(nodes))


def _bodies(mod: tvm.IRModule) -> Iterator[str]:
    """The texts of the bodies of loops and branches, those inside them included."""
    for func in mod.functions.values():
        bindings = op_bindings(func) if isinstance(func, relax.Function) else []
        for binding, body in ((b, body) for b in bindings for body in bodies_of(b.value)):
            yield f"# A body of {binding.var.name}:\n{body.mod.script(show_meta=False)}"
            yield from _bodies(body.mod)


def _operation(value: tvm.ir.Expr) -> str:
    name = op_name(value)
    if name == "relax.call_tir":
        return f"call_tir {value.args[0].name_hint}"
    if name is not None:
        return name
    if isinstance(value, relax.Call):
        return value.op.name_hint if isinstance(value.op, tvm.ir.GlobalVar) else str(value.op)
    return type(value).__name__


def stages_to_json(stages: Sequence[Stage]) -> str:
    """The stages as JSON text."""
    return json.dumps([asdict(s) for s in stages])


def stages_from_json(text: str) -> tuple[Stage, ...]:
    """The stages that ``stages_to_json`` wrote."""
    return tuple(
        Stage(s["name"], s["text"], tuple(Node(n["name"], n["op"], tuple(n["inputs"]), n["type"]) for n in s["nodes"]))
        for s in json.loads(text)
    )
