"""Reads ONNX files that may be broken or hostile: every fault is an ImportModelError, and nothing outside of the
model's folder is opened."""

from __future__ import annotations

import heapq
import math
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from ..errors import ImportModelError, UnsupportedOperatorError
from .limits import (
    MAX_CALLED,
    MAX_DEPTH,
    MAX_MODEL_BYTES,
    MAX_MULTIPLE,
    MAX_NAME,
    MAX_NODES,
    is_tensor_shape,
    unusable_names,
)
from .onnx_external import check_external_data, tensors_of, with_external_data

# Below this the operators have other attributes (broadcasting was one); ONNX's converter lifts such models.
OLDEST_OPSET, LIFTED_OPSET = 7, 13
_CONVERT_SECONDS = 60
# Of the onnx package the converter needs its compiled module alone: to import the rest takes five times as long.
_CONVERT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("onnx.onnx_cpp2py_export", sys.argv[1])
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
sys.stdout.buffer.write(compiled.version_converter.convert_version(sys.stdin.buffer.read(), int(sys.argv[2])))
"""


@dataclass(frozen=True)
class OnnxModel:
    """A model whose names, order and versions are checked.

    folder : where external data is; None for a model that does not come from a file.
    opsets : version by domain; the default domain is the empty string.
    """

    proto: onnx.ModelProto
    folder: Path | None
    opsets: Mapping[str, int]


def read_model(model: onnx.ModelProto | Path | str) -> OnnxModel:
    """Read and check a model.

    Raises ImportModelError: the file is missing, too large, truncated, or not a model; names are missing, unusable,
    given twice or form a cycle; a domain has no version; there is more of something than ``limits`` allows.
    """
    proto, folder = _load(model)
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ImportModelError("the model has no graph", found=f"IR version {proto.ir_version}",
                               expected="an ONNX model", hint="export the model again")
    opsets = opset_versions(proto.opset_import)
    check_size(proto)
    check_graph(proto.graph, ())
    for function in proto.functions:
        _check_function(function)
    check_external_data(tensors_of(proto.graph), folder)
    if 0 < opsets.get("", OLDEST_OPSET) < OLDEST_OPSET:
        proto = _lifted(proto)
        opsets = opset_versions(proto.opset_import)
        check_graph(proto.graph, ())
    return OnnxModel(proto, folder, opsets)


def _load(model: onnx.ModelProto | Path | str) -> tuple[onnx.ModelProto, Path | None]:
    if isinstance(model, onnx.ModelProto):
        return model, None
    if not isinstance(model, (str, Path)):
        raise ImportModelError("not an ONNX model", found=type(model).__name__, expected="a ModelProto or a path")
    path = Path(model)
    if not path.is_file():
        raise ImportModelError("the file does not exist", found=str(path), expected="the path of an .onnx file")
    if path.stat().st_size > MAX_MODEL_BYTES:
        raise ImportModelError("the file is larger than an ONNX file can be", found=f"{path.stat().st_size} bytes",
                               expected=f"at most {MAX_MODEL_BYTES}", hint="export it with external data")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except (DecodeError, RecursionError, ValueError) as error:
        raise ImportModelError("the file is not an ONNX model, or is truncated", found=str(path),
                               hint="compare its size and checksum with the original") from error
    except OSError as error:
        raise ImportModelError("the file cannot be read", found=f"{path}: {error.strerror}") from error
    return proto, path.parent


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Version by domain; ImportModelError where ONNX defines no such version or a domain has two."""
    versions: dict[str, int] = {}
    for entry in imports:
        check_text([entry.domain])
        domain = domain_of(entry.domain)
        if versions.setdefault(domain, entry.version) != entry.version:
            raise ImportModelError("an operator domain is imported in two versions", found=domain or "ai.onnx")
        if not 0 <= entry.version < 2 ** 31:
            raise ImportModelError("the operator set version is unknown",
                                   found=f"{domain or 'ai.onnx'} {entry.version}")
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= versions.get("", newest) <= newest:
        raise ImportModelError("the operator set version is unknown", found=versions[""], expected=f"1…{newest}",
                               hint="export with an older opset, or update the onnx package")
    return versions


def domain_of(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _lifted(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in ``LIFTED_OPSET``.

    ONNX's converter believes what it reads and crashes where that is wrong: every node is checked before, and the
    converter runs in a process of its own.
    """
    for node in proto.graph.node:
        if graphs_of(node) or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
            raise UnsupportedOperatorError(f"{node.op_type} of an operator set below {OLDEST_OPSET} is not supported",
                                           layer=label_of(node))
        check_definition(node, opset_versions(proto.opset_import)[""], label_of(node))
    try:
        run = subprocess.run([sys.executable, "-I", "-S", "-c", _CONVERT, onnx.onnx_cpp2py_export.__file__,
                              str(LIFTED_OPSET)], capture_output=True, input=proto.SerializeToString(),
                             timeout=_CONVERT_SECONDS, check=True)
        return onnx.ModelProto.FromString(run.stdout)
    except (subprocess.SubprocessError, DecodeError) as error:
        said = (getattr(error, "stderr", None) or b"").decode("utf-8", "replace").strip().splitlines()
        raise ImportModelError("the model's operator set is too old to be converted", found=said[-1:] or str(error),
                               expected=f"opset {OLDEST_OPSET} or later", hint="export the model again") from error


def check_definition(node: onnx.NodeProto, opset: int, label: str) -> None:
    """The operator's own rules on attributes and numbers of inputs; ImportModelError where the node breaks them."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, {"": opset}
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise ImportModelError(f"{node.op_type} breaks the operator's definition", layer=label,
                               found=str(error).strip().splitlines()[0]) from error


def check_graph(graph: onnx.GraphProto, outer: Collection[str]) -> None:
    """Names are unique, all are produced somewhere and ``outer`` has the rest; ImportModelError otherwise."""
    check_text([v.name for v in (*graph.input, *graph.output)] + [t.name for t in graph.initializer])
    check_text(d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim)
    problems: list[ImportModelError] = []
    inputs, weights = [v.name for v in graph.input], [t.name for t in graph.initializer]
    known = set(outer) | set(inputs) | set(weights)
    for kind, names in (("input", inputs), ("initializer", weights)):
        problems += [ImportModelError(f"an {kind} is given twice, or has no name", found=n) for n in _repeated(names)]
    if graph.sparse_initializer:
        problems.append(UnsupportedOperatorError("sparse initializers are not supported"))
    produced = _check_nodes(graph.node, known, problems)
    problems += [ImportModelError("an output of the model is not produced", found=v.name) for v in graph.output
                 if v.name not in produced and v.name not in known]
    if problems:
        raise ImportModelError.collect(problems)


def _check_nodes(nodes: Sequence[onnx.NodeProto], known: Collection[str], problems: list[ImportModelError]) -> set[str]:
    """The names that ``nodes`` produce; what is wrong with these and those that they read is added to ``problems``."""
    produced: set[str] = set()
    for node in nodes:
        for name in filter(None, node.output):
            if name in produced or name in known:
                problems.append(ImportModelError("a result is produced twice", layer=label_of(node), found=name))
            produced.add(name)
    for node in nodes:
        if not node.op_type:
            problems.append(ImportModelError("a node has no operator", layer=label_of(node)))
        problems += [ImportModelError("a node reads a value that nothing produces", layer=label_of(node), found=name)
                     for name in node.input if name and name not in produced and name not in known]
    return produced


def _check_function(function: onnx.FunctionProto) -> None:
    """What ``check_graph`` checks, for a function."""
    problems = [ImportModelError("an argument of a function is given twice, or has no name", layer=function.name,
                                 found=n) for n in _repeated(list(function.input))]
    produced = _check_nodes(function.node, set(function.input), problems)
    problems += [ImportModelError("a result of a function is not produced", layer=function.name, found=n)
                 for n in function.output if n not in produced and n not in function.input]
    if problems:
        raise ImportModelError.collect(problems)


def check_text(names: Iterable[str | bytes]) -> None:
    """ImportModelError for a name that is not text, or not one that can be shown."""
    unusable = unusable_names(names)
    if unusable:
        raise ImportModelError("a name is unusable", found=ascii(unusable[0]),
                               expected=f"at most {MAX_NAME} characters of UTF-8 that can be printed",
                               hint="the file may be damaged: compare it with the original")


def check_size(proto: onnx.ModelProto) -> None:
    """The nodes that are left when all functions are called in place are not too many; ImportModelError otherwise."""
    check_text([text for f in proto.functions for text in (f.domain, f.name, *f.input, *f.output)])
    functions = {(domain_of(f.domain), f.name): f for f in proto.functions}
    if len(functions) != len(proto.functions):
        raise UnsupportedOperatorError("functions that are defined twice, overloaded or not, are not supported",
                                       found=", ".join(_repeated([f.name for f in proto.functions])[:5]))
    sizes: dict[tuple[str, str], int] = {}
    own = 0

    def size(nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        nonlocal own
        if depth > MAX_DEPTH:
            raise ImportModelError("functions or branches are nested too deeply", expected=f"at most {MAX_DEPTH} deep")
        total = 0
        for node in nodes:
            own += 1
            check_text([node.name, node.op_type, node.domain, *node.input, *node.output,
                        *(a.name for a in node.attribute)])
            key = domain_of(node.domain), node.op_type
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node, depth + 1)
            total += sizes.get(key, 1) + sum(size(g.node, depth + 1) for g in graphs_of(node))
        return total

    total = size(proto.graph.node, 0)
    if total > min(MAX_NODES, MAX_CALLED + MAX_MULTIPLE * own):
        raise ImportModelError("the model has too many nodes", found=f"{total}, functions called in place",
                               expected=f"at most {MAX_NODES}, and {MAX_MULTIPLE} times those in the file")


def graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The subgraphs among a node's attributes."""
    return [g for a in node.attribute
            for g in ([a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs)]


def _repeated(names: list[str]) -> list[str]:
    seen: set[str] = set()
    repeated = []
    for name in names:
        if not name or name in seen:
            repeated.append(name)
        seen.add(name)
    return repeated


def label_of(node: onnx.NodeProto) -> str:
    """What a node is called in errors: its name, or that of its first result."""
    return node.name or next(filter(None, node.output), "") or node.op_type or "a node without name"


def sorted_nodes(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes in an order in which everything is produced before it is read; the given one where that is such.

    Raises ImportModelError, naming the nodes, where there is a cycle.
    """
    given = list(nodes)
    producer = {name: i for i, node in enumerate(given) for name in node.output if name}
    readers: list[list[int]] = [[] for _ in given]
    missing = []
    for i, node in enumerate(given):
        sources = {producer[name] for name in reads_of(node) if name in producer}
        missing.append(len(sources))
        for source in sources:
            readers[source].append(i)
    ready = [i for i, count in enumerate(missing) if count == 0]
    result: list[onnx.NodeProto] = []
    while ready:
        first = heapq.heappop(ready)
        result.append(given[first])
        for reader in readers[first]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(result) < len(given):
        waiting = [label_of(n) for n, count in zip(given, missing, strict=True) if count]
        raise ImportModelError("the graph has a cycle", found=", ".join(waiting[:5]), expected="an acyclic graph")
    return result


def reads_of(node: onnx.NodeProto) -> set[str]:
    """The names that a node reads, those that its subgraphs take from outside included."""
    names = {n for n in node.input if n}
    for graph in graphs_of(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        own |= {name for n in graph.node for name in n.output}
        names |= {r for n in graph.node for r in reads_of(n)} - own
        names |= {v.name for v in graph.output} - own
    return names


def array_of(tensor: TensorProto, folder: Path | None) -> np.ndarray:
    """The array of a tensor, its external data included.

    Raises ImportModelError: unknown element type, dimensions that do not fit the data, data outside of the folder.
    """
    where = f"tensor {tensor.name}" if tensor.name else "a tensor"
    if tensor.data_type == TensorProto.STRING:
        raise UnsupportedOperatorError(f"{where} holds strings, which are not supported")
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError) as error:
        raise ImportModelError(f"{where} has an unknown element type", found=tensor.data_type) from error
    if any(d < 0 for d in tensor.dims):
        raise ImportModelError(f"{where} has a negative dimension", found=list(tensor.dims))
    if not is_tensor_shape(tensor.dims):
        raise ImportModelError(f"{where} has an impossible shape", found=f"{len(tensor.dims)} dimensions, "
                               f"{math.prod(tensor.dims)} elements")
    if tensor.HasField("segment"):
        raise UnsupportedOperatorError(f"{where} is stored in segments, which are not supported")
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor = with_external_data(tensor, folder, where)
    expected = -(-math.prod(tensor.dims) * _bits(dtype) // 8)
    if tensor.HasField("raw_data") and len(tensor.raw_data) != expected:
        raise ImportModelError(f"{where} has data of the wrong length", found=f"{len(tensor.raw_data)} bytes",
                               expected=f"{expected} bytes for {list(tensor.dims)} of {dtype}")
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ImportModelError(f"{where} has data that do not fit its dimensions", found=list(tensor.dims)) from error


def _bits(dtype: np.dtype) -> int:
    """How many bits an element of a tensor takes in a file."""
    packed = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}
    return packed.get(str(dtype), 8 * dtype.itemsize)


def attributes_of(node: onnx.NodeProto, folder: Path | None) -> dict[str, Any]:
    """Attributes by name: strings as ``str``, lists as tuples, tensors as arrays, graphs as they are."""
    result: dict[str, Any] = {}
    for attribute in node.attribute:
        kinds = onnx.AttributeProto
        if attribute.name in result or attribute.ref_attr_name:
            problem = "is given twice" if attribute.name in result else "refers to a function's argument"
            raise ImportModelError(f"the attribute {attribute.name} {problem}", layer=label_of(node))
        if attribute.type == kinds.TENSOR:
            result[attribute.name] = array_of(attribute.t, folder)
            continue
        if attribute.type not in (kinds.FLOAT, kinds.INT, kinds.STRING, kinds.FLOATS, kinds.INTS, kinds.STRINGS,
                                  kinds.GRAPH):
            raise UnsupportedOperatorError(f"the attribute {attribute.name} is of a kind that is not supported",
                                           layer=label_of(node), found=kinds.AttributeType.Name(attribute.type))
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, (str, int, float, onnx.GraphProto)):
            value = tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
        result[attribute.name] = value
    return result
