"""ONNX models into the normal form.

The nodes are translated one by one, in order, by the table in ``onnx_ops``. What is computed from shapes and constants
is known on the way, symbols apart, and evaluated at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax

from ..errors import CompileError, ImportModelError, UnsupportedOperatorError
from ..ir import GraphBuilder, constant, dtype_of, with_main
from ..requirements import Requirement, distinct, likely
from .limits import MAX_CONSTANTS_BYTES, MAX_GROWTH
from .model import ImportedModel
from .onnx_bodies import Open
from .onnx_constants import can_evaluate, evaluate, widened
from .onnx_control import CONTROL
from .onnx_functions import NO_TRANSLATION, function_of, has_function, with_arguments
from .onnx_inputs import Signature, bind_inputs
from .onnx_names import NodeNames
from .onnx_ops import OPERATORS, OnnxNode, TensorSequence, Value, normal_dtype
from .onnx_reading import (
    OnnxModel,
    array_of,
    attributes_of,
    check_definition,
    domain_of,
    label_of,
    opset_versions,
    read_model,
    reads_of,
    sorted_nodes,
)
from .onnx_scope import UNKNOWN, Captures, Place, Result, Scope, Unknown
from .onnx_symbolic import evaluate_symbolic
from .onnx_types import result_types, type_name, type_problem
from .onnx_widths import with_widths
from .symbolic_array import SymbolicArray, materialized

# Types that values of no other type have in normal form.
_EVIDENT = ("bool", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float64")


def import_onnx(model: onnx.ModelProto | Path | str, example_inputs: Sequence[np.ndarray] | None = None,
                dims: Mapping[str, int] | None = None) -> ImportedModel:
    """Translate an ONNX model into the normal form.

    Parameters
    ----------
    model : a model, or the path of its file; external data is read from the file's folder only.
    example_inputs : one array per input of the model, in order: their shapes are hints at the extents that symbolic
        dimensions usually have.
    dims : extents that fix symbolic dimensions, by name (``bind_inputs`` has the rules); the others stay symbolic.

    Floating point inputs, weights and results of other widths become float32; float64 inputs stay float64 through
    operators that move, compare and add up elements (``onnx_widths``). Results of operators whose inputs are
    known are computed, never emitted. Op names are the layers' names in PyTorch where an exporter recorded them, else
    the nodes' names.

    Raises
    ------
    ImportModelError : the model cannot be read or is inconsistent, or the example inputs do not fit.
    UnsupportedOperatorError : operators, or forms of them, that have no translation; all are listed.
    """
    source = read_model(model)
    same: dict[str, str | int] = {}
    while True:
        signature = bind_inputs(source.proto.graph, example_inputs, dims, same)
        imported = _translated(source, signature)
        found = dict(e for e in (r.as_equality() for r in imported.requirements) if e is not None)
        if not found:
            return imported
        same = {n: found.get(m, m) if isinstance(m, str) else m for n, m in same.items()} | found


def _translated(source: OnnxModel, signature: Signature) -> ImportedModel:
    """The model with these inputs."""
    builder = GraphBuilder(signature.variables)
    functions = {(domain_of(f.domain), f.name): f for f in source.proto.functions}
    importer = _Importer(builder, source.folder, functions, NodeNames(source.proto.graph))
    scope = Scope({v.name: v for v in signature.variables} | signature.values,
                   {t.name: t for t in source.proto.graph.initializer},
                   types={v.name: type_name(v.type.tensor_type.elem_type) for v in source.proto.graph.input})
    importer.run(source.proto.graph.node, Place(scope, source.opsets, None),
                 [o.name for o in source.proto.graph.output])
    importer.raise_unsupported()
    requirements = _checkable(importer.requirements, signature)
    names = [o.name for o in source.proto.graph.output]
    if not names:
        raise ImportModelError("the model has no outputs")
    results = [_as_variable(builder, importer.lookup(scope, n), n) for n in names]
    main = builder.finish(results, as_tuple=len(results) > 1)
    mod = with_main(tvm.IRModule(), main)
    if not relax.analysis.check_well_formed(mod):
        raise ImportModelError("the translated model is not well formed")
    return ImportedModel(mod, signature.specs, tuple(names), "onnx", hints=likely(signature.hints, requirements),
                         requirements=requirements)


def _checkable(requirements: Sequence[Requirement], signature: Signature) -> tuple[Requirement, ...]:
    """The requirements, none twice; UnsupportedOperatorError where one is on an extent that only running tells."""
    problems = [UnsupportedOperatorError("extents that only running tells are not known to fit", layer=r.layer,
                                         expected=r) for r in requirements if not r.symbols <= signature.hints.keys()]
    if problems:
        raise UnsupportedOperatorError.collect(problems)
    return distinct(requirements)


def _as_variable(builder: GraphBuilder, value: Result, name: str) -> relax.Var:
    if isinstance(value, np.ndarray):
        dtype = normal_dtype(value.dtype)
        if dtype is None:
            raise UnsupportedOperatorError(f"an output of {value.dtype} elements is not supported", layer=name)
        return builder.emit(constant(value.astype(dtype)), name)
    if isinstance(value, SymbolicArray):
        return materialized(builder, name, value)
    if isinstance(value, TensorSequence):
        raise UnsupportedOperatorError("an output that is a sequence is not supported", layer=name)
    if not isinstance(value, relax.Var):
        raise ImportModelError("an output of the model is not produced", found=name)
    return value


@dataclass
class _Importer:
    """Translates nodes in a builder; collects what has no translation."""

    builder: GraphBuilder
    folder: Path | None
    functions: Mapping[tuple[str, str], onnx.FunctionProto]
    names: NodeNames
    unsupported: list[tuple[str, str, UnsupportedOperatorError]] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)
    caller: onnx.NodeProto | None = None
    weights_bytes: int = 0
    constants_bytes: int = 0
    unrolled: int = 0
    translated: int = 0
    running: int = 0
    decided: dict[str, Open] = field(default_factory=dict)

    def lookup(self, scope: Scope, name: str) -> Result:
        """The value called ``name`` in ``scope`` or around it; ImportModelError where there is none."""
        if name in scope.values:
            return scope.values[name]
        if name in scope.initializers:
            array = widened(array_of(scope.initializers[name], self.folder))
            self.weights_bytes += array.nbytes
            return scope.values.setdefault(name, array)
        if scope.parent is None:
            raise ImportModelError("a value is read that nothing produces", found=name)
        value = self.lookup(scope.parent, name)
        return value if scope.captures is None else scope.captures(value)

    def run(self, nodes: Sequence[onnx.NodeProto], place: Place, results: Iterable[str]) -> None:
        """Translate ``nodes``, whose ``results`` are read."""
        scope, read = place.scope, set(results).union(*(reads_of(n) for n in nodes))
        for node in sorted_nodes(nodes):
            values = self._results(node, place, read)
            types = _result_types(node, place)
            for output, value, declared in zip(node.output, values, types, strict=False):
                if output and isinstance(value, np.ndarray):
                    scope.types[output] = declared or str(value.dtype)
                    scope.values[output] = widened(value)
                elif output:
                    scope.types[output], scope.values[output] = declared, value

    def _results(self, node: onnx.NodeProto, place: Place, read: Collection[str]) -> Sequence[Result]:
        label, key = self._label(node), (domain_of(node.domain), node.op_type)
        if key[0] not in place.opsets and key not in self.functions:
            raise ImportModelError("a node's operator domain has no version in the model", layer=label,
                                   found=key[0] or "ai.onnx", expected=sorted(d or "ai.onnx" for d in place.opsets))
        inputs = [self.lookup(place.scope, n) if n else None for n in node.input]
        known = [v for v in inputs if not isinstance(v, Unknown)]
        if len(known) < len(inputs):
            if not self._is_translated(*key, place.opsets):
                self._report(node, UnsupportedOperatorError(NO_TRANSLATION))
            return [UNKNOWN] * len(node.output)
        try:
            results = self._translate(node, place, OnnxNode(
                op=node.op_type, domain=key[0], opset=place.opsets.get(key[0], 1),
                name=place.name or self.names.of(node), label=label, inputs=tuple(known), outputs=_outputs(node, read),
                attributes=attributes_of(node, self.folder), builder=self.builder, requirements=self.requirements,
                declared=tuple(place.scope.declared(n) if n else None for n in node.input)))
        except UnsupportedOperatorError as error:
            self._report(node, error)
            return [UNKNOWN] * len(node.output)
        except CompileError:
            raise
        except Exception as error:  # TVM's type inference raises its own errors for operands that do not fit.
            first = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise ImportModelError(f"{node.op_type}: the operands do not fit", layer=label, found=first) from error
        if any(name in read for name in node.output[len(results):]):
            raise ImportModelError(f"{node.op_type} has fewer results", layer=label, found=list(node.output),
                                   expected=len(results))
        return results

    def _label(self, node: onnx.NodeProto) -> str:
        """What errors call a node: in the body of a function, after the call that the model has."""
        return label_of(node) if self.caller is None else f"{label_of(self.caller)}.{label_of(node)}"

    def _is_translated(self, domain: str, op: str, opsets: Mapping[str, int]) -> bool:
        return ((domain, op) in OPERATORS or (domain, op) in self.functions or (domain == "" and op in CONTROL)
                or has_function(domain, op, opsets))

    def _translate(self, node: onnx.NodeProto, place: Place, resolved: OnnxNode) -> Sequence[Result]:
        key = (resolved.domain, resolved.op)
        if key in self.functions:
            return self._call(node, self.functions[key], resolved)
        if resolved.domain == "":
            _check_node(node, resolved, is_called=self.caller is not None)
            if resolved.op == "Constant":
                return [_constant(resolved)]
            if resolved.op in CONTROL:
                return CONTROL[resolved.op](self, resolved, place)
            if (results := self._known(node, resolved)) is not None:
                return results
        if key not in OPERATORS:
            return self._call(node, function_of(node, resolved), resolved)
        try:
            result = OPERATORS[key](with_widths(resolved))
        except UnsupportedOperatorError:
            if not has_function(*key, place.opsets):
                raise
            return self._call(node, function_of(node, resolved), resolved)
        return result if isinstance(result, tuple) else (result,)

    def _known(self, node: onnx.NodeProto, resolved: OnnxNode) -> Sequence[Value] | None:
        """The results of a node whose inputs are known; None where they are not."""
        known = [v for v in resolved.inputs if v is None or isinstance(v, (np.ndarray, SymbolicArray))]
        elements = sum(v.size for v in known if isinstance(v, np.ndarray))
        if not node.input or len(known) < len(resolved.inputs) or not can_evaluate(node, resolved.opset, elements):
            return None
        arrays = [v for v in known if not isinstance(v, SymbolicArray)]
        return self._evaluate(node, resolved, arrays) if len(arrays) == len(known) else \
            evaluate_symbolic(node, resolved, known)

    def _evaluate(self, node: onnx.NodeProto, resolved: OnnxNode,
                  inputs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray]:
        limit = MAX_CONSTANTS_BYTES + MAX_GROWTH * self.weights_bytes - self.constants_bytes
        results = evaluate(node, resolved.opset, inputs, resolved.label, limit)
        self.constants_bytes += sum(r.nbytes for r in results)
        return results

    def body(self, graph: onnx.GraphProto, place: Place, arguments: Sequence[Result],
             captures: Captures | None = None) -> list[Result]:
        """The results of a subgraph that is given ``arguments``; it sees the values around it, or what ``captures``
        makes of them."""
        inner = Scope(dict(zip((v.name for v in graph.input), arguments, strict=False)),
                      {t.name: t for t in graph.initializer}, place.scope,
                      {v.name: type_name(v.type.tensor_type.elem_type) for v in graph.input}, captures)
        results = [o.name for o in graph.output]
        self.run(graph.node, replace(place, scope=inner), results)
        return [self.lookup(inner, name) for name in results]

    def _call(self, node: onnx.NodeProto, function: onnx.FunctionProto, resolved: OnnxNode) -> Sequence[Result]:
        """Translate the body of a function in place; all that it emits is named after the call."""
        if len(resolved.inputs) > len(function.input):
            raise resolved.fault("the function takes fewer arguments", found=len(resolved.inputs),
                                 expected=len(function.input))
        if len(node.output) > len(function.output):
            raise resolved.fault("the function has fewer results", found=list(node.output),
                                 expected=len(function.output))
        arguments = [*resolved.inputs, *[None] * (len(function.input) - len(resolved.inputs))]
        scope = Scope(dict(zip(function.input, arguments, strict=True)),
                      types=dict(zip(function.input, resolved.declared, strict=False)))
        body = [with_arguments(n, node, function) for n in function.node]
        opsets = {"": onnx.defs.onnx_opset_version(), **opset_versions(function.opset_import)}
        outermost, self.caller = self.caller, self.caller or node
        self.run(body, Place(scope, opsets, resolved.name), function.output)
        self.caller = outermost
        wanted = zip(function.output, [*node.output, *[""] * len(function.output)], strict=False)
        return [self.lookup(scope, inner) if outer else None for inner, outer in wanted]

    def _report(self, node: onnx.NodeProto, error: UnsupportedOperatorError) -> None:
        """Note what has no translation; what a function calls is noted as the call."""
        node = self.caller or node
        kind = f"{node.domain}.{node.op_type}" if domain_of(node.domain) else node.op_type
        self.unsupported.append((kind, label_of(node), error))

    def raise_unsupported(self) -> None:
        """Raise one UnsupportedOperatorError that lists everything without translation, if there is any."""
        if not self.unsupported:
            return
        lines = []
        found = dict.fromkeys((kind, label, error.problem) for kind, label, error in self.unsupported)
        for (kind, reason), count in sorted(Counter((k, r) for k, _, r in found).items()):
            nodes = [label for k, label, r in found if (k, r) == (kind, reason)]
            shown = ", ".join(nodes[:5]) + (" …" if count > 5 else "")
            lines.append(f"- {kind} ({count} {'node' if count == 1 else 'nodes'}: {shown}): {reason}")
        hints = dict.fromkeys(e.hint for _, _, e in self.unsupported if e.hint is not None)
        raise UnsupportedOperatorError("the model has operators that are not supported:\n" + "\n".join(lines),
                                       hint="; or ".join([*hints, "export these layers in another form, or leave them "
                                                                  "out of the model"]))


def _outputs(node: onnx.NodeProto, read: Collection[str]) -> tuple[str, ...]:
    """The names of a node's outputs, empty for those that nothing reads."""
    count = max((i + 1 for i, name in enumerate(node.output) if name), default=0)
    return tuple(name if name in read else "" for name in node.output[:count])


def _result_types(node: onnx.NodeProto, place: Place) -> list[str | None]:
    domain = domain_of(node.domain)
    stated = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    return result_types(domain, node.op_type, place.opsets.get(domain, 1), stated,
                        [place.scope.declared(n) if n else None for n in node.input], len(node.output))


def _check_node(node: onnx.NodeProto, resolved: OnnxNode, *, is_called: bool) -> None:
    """The operator's own rules on attributes, numbers of inputs and, where no function is called (whose types vary),
    their types; nothing for an operator that ONNX lacks."""
    if resolved.op in ("Constant", "SequenceMap", *CONTROL):
        return
    schema = _schema(resolved.op, resolved.opset)
    if schema is None or schema.deprecated:
        return
    check_definition(node, max(resolved.opset, schema.since_version), resolved.label)
    problem = None if is_called else type_problem(schema, [
        declared or _evident_type(value) for declared, value in
        zip(resolved.declared, resolved.inputs, strict=False)])
    if problem:
        raise resolved.fault("the operands are of types that the operator does not take", found=problem)


def _evident_type(value: Value | None) -> str | None:
    """The element type of what a function returned, where normal form has only one type for it."""
    dtype = dtype_of(value) if isinstance(value, relax.Var) and isinstance(value.ty, relax.TensorType) else None
    return dtype if dtype in _EVIDENT else None


def _schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """The operator's definition in an opset, the newest where the opset is older than the operator; None where ONNX has
    no such operator."""
    for version in (opset, onnx.defs.onnx_opset_version()):
        try:
            return onnx.defs.get_schema(op, version, "")
        except onnx.defs.SchemaError:
            continue
    return None


def _constant(node: OnnxNode) -> np.ndarray:
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for name, value in node.attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in dtypes:
            return np.asarray(value, dtypes[name])
    raise node.unsupported("without a dense numeric value")
