"""Changes of an ONNX model that leave it a message that parses: wrong values in right places."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

INTEGERS = (0, 1, -1, 2, 3, -2, 5, 7, 16, 255, 1000, 65_536, 2 ** 24, 2 ** 31 - 1, 2 ** 31, -2 ** 31, 2 ** 32, 2 ** 40,
            2 ** 62, 2 ** 63 - 1, -2 ** 63)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
STRINGS = ("", "SAME_UPPER", "VALID", "NOTSET", "linear", "nearest", "cubic", "reflect", "edge", "wrap", "ij,jk->ik",
           "...ii->...i", "a" * 70, "bidirectional", "reverse", "add", "max", "\0", "[/]", "tanh", "LEFT")
DIMENSIONS = (0, 1, 2, 3, 5, 8, 64, 1000, -1, 2 ** 31, 2 ** 62)

Random = random.Random
Mutation = Callable[[onnx.ModelProto, Random], None]


def mutate(model: onnx.ModelProto, rng: Random) -> None:
    """Change ``model`` in place, in one to four places."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        rng.choice(MUTATIONS)(model, rng)


def graft(model: onnx.ModelProto, other: onnx.ModelProto, rng: Random) -> None:
    """Put nodes of ``other`` behind those of ``model``; they read what is there."""
    names = _names(model.graph)
    weights = {t.name: t for t in other.graph.initializer}
    for node in _some(other.graph.node, rng):
        added = model.graph.node.add()
        added.CopyFrom(node)
        for i, name in enumerate(added.input):
            if name in weights and name not in names:
                model.graph.initializer.add().CopyFrom(weights[name])
            elif name not in names and names:
                added.input[i] = rng.choice(names)
        taken = set(names)
        for i, name in enumerate(added.output):
            if name in taken:
                added.output[i] = f"{name}_{rng.randrange(10 ** 6)}"
        if added.output:
            model.graph.output.add(name=added.output[0])
        names = _names(model.graph)


def _some(items: Sequence[Any], rng: Random) -> list[Any]:
    if not items:
        return []
    start = rng.randrange(len(items))
    return list(items)[start:start + rng.randrange(1, 4)]


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph and what is nested in its nodes."""
    found = [model.graph]
    for graph in found:
        found += [g for n in graph.node for a in n.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]
        if len(found) > 50:
            break
    return found


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for g in _graphs(model) for n in g.node] + [n for f in model.functions for n in f.node]


def _names(graph: onnx.GraphProto) -> list[str]:
    produced = [name for node in graph.node for name in node.output if name]
    return [*(v.name for v in graph.input), *(t.name for t in graph.initializer), *produced]


def _integer(rng: Random, near: int = 0) -> int:
    value = rng.choice((rng.choice(INTEGERS), near + rng.randrange(-3, 4), rng.randrange(-8, 9)))
    return min(max(value, -2 ** 63), 2 ** 63 - 1)


def _change_attribute(model: onnx.ModelProto, rng: Random) -> None:
    attributes = [a for n in _nodes(model) for a in n.attribute]
    if not attributes:
        return
    a = rng.choice(attributes)
    if a.type == AttributeProto.INT:
        a.i = _integer(rng, a.i)
    elif a.type == AttributeProto.FLOAT:
        a.f = rng.choice(FLOATS)
    elif a.type == AttributeProto.STRING:
        a.s = rng.choice(STRINGS).encode()
    elif a.type == AttributeProto.INTS:
        _change_list(a.ints, rng, lambda near: _integer(rng, near))
    elif a.type == AttributeProto.FLOATS:
        _change_list(a.floats, rng, lambda _: rng.choice(FLOATS))
    elif a.type == AttributeProto.TENSOR:
        _change_tensor(a.t, rng)


def _change_list(values: Any, rng: Random, make: Callable[[Any], Any]) -> None:
    kind = rng.randrange(4)
    if kind == 0 or not values:
        values.append(make(0))
    elif kind == 1:
        del values[rng.randrange(len(values))]
    else:
        index = rng.randrange(len(values))
        values[index] = make(values[index])


def _add_attribute(model: onnx.ModelProto, rng: Random) -> None:
    """One that the operator's definition has, of a type that it may not have."""
    nodes = _nodes(model)
    if not nodes:
        return
    node = rng.choice(nodes)
    try:
        names = list(onnx.defs.get_schema(node.op_type).attributes)
    except onnx.defs.SchemaError:
        names = []
    name = rng.choice(names or ["axis"])
    value = rng.choice((_integer(rng), [_integer(rng) for _ in range(rng.randrange(5))], rng.choice(FLOATS),
                        rng.choice(STRINGS)))
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value, attr_type=_kind(value))])


def _kind(value: object) -> int:
    return {int: AttributeProto.INT, list: AttributeProto.INTS, float: AttributeProto.FLOAT,
            str: AttributeProto.STRING}[type(value)]


def _drop_attribute(model: onnx.ModelProto, rng: Random) -> None:
    nodes = [n for n in _nodes(model) if n.attribute]
    if nodes:
        node = rng.choice(nodes)
        del node.attribute[rng.randrange(len(node.attribute))]


def _change_weight(model: onnx.ModelProto, rng: Random) -> None:
    tensors = [t for g in _graphs(model) for t in g.initializer]
    if tensors:
        _change_tensor(rng.choice(tensors), rng)


def _change_tensor(tensor: TensorProto, rng: Random) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        _change_list(tensor.dims, rng, lambda _: rng.choice(DIMENSIONS))
    elif kind == 1:
        tensor.data_type = rng.randrange(0, 28)
    elif kind == 2:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(("data", "link", "../secret", "/etc/hostname", "")))
        tensor.external_data.add(key=rng.choice(("offset", "length")), value=str(_integer(rng)))
    else:
        _change_values(tensor, rng)


def _change_values(tensor: TensorProto, rng: Random) -> None:
    try:
        array = np.array(numpy_helper.to_array(tensor))
    except Exception:
        return
    if not array.size or array.dtype.kind not in "fiub":
        return
    index = rng.randrange(array.size)
    if array.dtype.kind == "f":
        array.flat[index] = rng.choice(FLOATS)
    elif array.dtype.kind == "b":
        array.flat[index] = not array.flat[index]
    else:
        limits = np.iinfo(array.dtype)
        array.flat[index] = min(max(_integer(rng, int(array.flat[index])), limits.min), limits.max)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _change_input(model: onnx.ModelProto, rng: Random) -> None:
    """The extents, the rank or the element type of an input."""
    if not model.graph.input:
        return
    kind = rng.choice(model.graph.input).type.tensor_type
    if rng.randrange(3) == 0:
        kind.elem_type = rng.randrange(0, 28)
    elif kind.shape.dim and rng.randrange(3):
        dim = rng.choice(kind.shape.dim)
        if rng.randrange(4):
            dim.dim_value = rng.choice(DIMENSIONS)
        else:
            dim.dim_param = rng.choice(("n", "batch", "seq", "n + 1", "", "?", "-1"))
    elif kind.shape.dim and rng.randrange(2):
        del kind.shape.dim[rng.randrange(len(kind.shape.dim))]
    else:
        kind.shape.dim.add().dim_value = rng.choice(DIMENSIONS)


def _bind_input(model: onnx.ModelProto, rng: Random) -> None:
    """An input becomes a constant."""
    if len(model.graph.input) < 2:
        return
    index = rng.randrange(len(model.graph.input))
    value = model.graph.input[index]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    if any(not 0 <= d <= 64 for d in shape) or np.prod(shape, dtype=object) > 4096:
        return
    try:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = np.full(shape, rng.choice((0, 1, 2, 3, -1)), dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    except Exception:
        return
    if rng.randrange(4):
        del model.graph.input[index]


def _rewire(model: onnx.ModelProto, rng: Random) -> None:
    graph = rng.choice(_graphs(model))
    nodes = [n for n in graph.node if n.input]
    if nodes:
        node = rng.choice(nodes)
        names = [*_names(model.graph), "", "nowhere"]
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _change_arity(model: onnx.ModelProto, rng: Random) -> None:
    nodes = _nodes(model)
    if not nodes:
        return
    node = rng.choice(nodes)
    kind = rng.randrange(4)
    if kind == 0 and node.input:
        del node.input[rng.randrange(len(node.input))]
    elif kind == 1:
        node.input.append(rng.choice([*_names(model.graph), ""]))
    elif kind == 2 and node.output:
        del node.output[rng.randrange(len(node.output))]
    else:
        node.output.append(f"more_{rng.randrange(10 ** 6)}")


def _change_operator(model: onnx.ModelProto, rng: Random) -> None:
    nodes = _nodes(model)
    if nodes:
        node = rng.choice(nodes)
        node.op_type = rng.choice(_OPERATORS)
        if rng.randrange(2):
            del node.attribute[:]


def _change_opset(model: onnx.ModelProto, rng: Random) -> None:
    if model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((*range(1, 28), 0, -1, 2 ** 40))


def _move_node(model: onnx.ModelProto, rng: Random) -> None:
    """Drop one, or put a copy of it elsewhere."""
    nodes = rng.choice(_graphs(model)).node
    if not nodes:
        return
    index = rng.randrange(len(nodes))
    copy = onnx.NodeProto()
    copy.CopyFrom(nodes[index])
    if rng.randrange(2):
        del nodes[index]
    else:
        for i, name in enumerate(copy.output):
            copy.output[i] = f"{name}_{rng.randrange(10 ** 6)}"
    if rng.randrange(2):
        nodes.append(copy)


def _change_output(model: onnx.ModelProto, rng: Random) -> None:
    names = _names(model.graph)
    if names:
        model.graph.output.add(name=rng.choice(names))


def _branch(model: onnx.ModelProto, rng: Random) -> None:
    """The nodes move into a branch of an ``If``."""
    graph = model.graph
    if not graph.node or len(graph.output) < 1:
        return
    inner = onnx.GraphProto(name="branch")
    inner.node.extend(graph.node)
    inner.output.extend(graph.output)
    del graph.node[:]
    graph.initializer.append(numpy_helper.from_array(np.asarray(bool(rng.randrange(2))), "condition"))
    graph.node.append(helper.make_node("If", ["condition"], [o.name for o in graph.output], then_branch=inner,
                                       else_branch=inner))


def _call(model: onnx.ModelProto, rng: Random) -> None:
    """The nodes move into a function, which may call itself."""
    graph = model.graph
    if not graph.node or not graph.output:
        return
    captured = [*(v.name for v in graph.input), *(t.name for t in graph.initializer)]
    function = onnx.FunctionProto(name="f", domain="own", input=captured, output=[o.name for o in graph.output])
    function.opset_import.extend(model.opset_import)
    function.node.extend(graph.node)
    if rng.randrange(4) == 0:
        function.node.append(helper.make_node("f", captured, ["again"], domain="own"))
        function.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    del graph.node[:]
    graph.node.append(helper.make_node("f", captured, [o.name for o in graph.output], domain="own"))


_OPERATORS = sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain})
MUTATIONS: tuple[Mutation, ...] = (
    *(_change_attribute,) * 4, *(_change_weight,) * 4, *(_change_input,) * 2, *(_add_attribute,) * 2, _drop_attribute,
    *(_bind_input,) * 2, *(_rewire,) * 2, _change_arity, _change_operator, _change_opset, _move_node, _change_output,
    _branch, _call,
)
