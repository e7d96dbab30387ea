"""ONNX models into the normal form.

The nodes are translated one by one, in order, by the table in ``onnx_ops``. What is computed from shapes and constants
is known on the way, symbols apart, and evaluated at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax

from ..errors import CompileError, ImportModelError, UnsupportedOperatorError
from ..ir import GraphBuilder, constant, dim_text, dims_of, dtype_of, with_main
from .model import ImportedModel, Requirement
from .onnx_constants import MAX_CONSTANTS_BYTES, can_evaluate, evaluate, widened
from .onnx_inputs import bind_inputs
from .onnx_names import NodeNames
from .onnx_ops import OPERATORS, OnnxNode, Value, normal_dtype
from .onnx_reading import (
    array_of,
    attributes_of,
    check_graph,
    domain_of,
    label_of,
    opset_versions,
    read_model,
    sorted_nodes,
)
from .onnx_symbolic import evaluate_symbolic
from .onnx_types import result_types, type_name
from .symbolic_array import SymbolicArray, materialized

_NO_TRANSLATION = "no translation"


def import_onnx(model: onnx.ModelProto | Path | str, example_inputs: Sequence[np.ndarray] | None = None,
                dims: Mapping[str, int] | None = None) -> ImportedModel:
    """Translate an ONNX model into the normal form.

    Parameters
    ----------
    model : a model, or the path of its file; external data is read from the file's folder only.
    example_inputs : one array per input of the model, in order: their shapes are hints at the extents that symbolic
        dimensions usually have.
    dims : extents that fix symbolic dimensions, by name (``bind_inputs`` has the rules); the others stay symbolic.

    Floating point inputs, weights and results of other widths become float32. Results of operators whose inputs are
    known are computed, never emitted. Op names are the layers' names in PyTorch where an exporter recorded them, else
    the nodes' names.

    Raises
    ------
    ImportModelError : the model cannot be read or is inconsistent, or the example inputs do not fit.
    UnsupportedOperatorError : operators, or forms of them, that have no translation; all are listed.
    """
    source = read_model(model)
    signature = bind_inputs(source.proto.graph, example_inputs, dims)
    builder = GraphBuilder(signature.variables)
    functions = {(domain_of(f.domain), f.name): f for f in source.proto.functions}
    importer = _Importer(builder, source.folder, functions, NodeNames(source.proto.graph))
    scope = _Scope({v.name: v for v in signature.variables} | signature.values,
                   {t.name: t for t in source.proto.graph.initializer},
                   types={v.name: type_name(v.type.tensor_type.elem_type) for v in source.proto.graph.input})
    importer.run(source.proto.graph.node, scope, source.opsets, None)
    importer.raise_unsupported()
    names = [o.name for o in source.proto.graph.output]
    if not names:
        raise ImportModelError("the model has no outputs")
    results = [_as_variable(builder, importer.lookup(scope, n), n) for n in names]
    main = builder.finish(results, as_tuple=len(results) > 1)
    mod = with_main(tvm.IRModule(), main)
    if not relax.analysis.check_well_formed(mod):
        raise ImportModelError("the translated model is not well formed")
    return ImportedModel(mod, signature.specs, tuple(names), "onnx", hints=signature.hints,
                         requirements=tuple({str(r): r for r in importer.requirements}.values()))


def _as_variable(builder: GraphBuilder, value: Value | None, name: str) -> relax.Var:
    if isinstance(value, np.ndarray):
        dtype = normal_dtype(value.dtype)
        if dtype is None:
            raise UnsupportedOperatorError(f"an output of {value.dtype} elements is not supported", layer=name)
        return builder.emit(constant(value.astype(dtype)), name)
    if isinstance(value, SymbolicArray):
        return materialized(builder, name, value)
    if value is None:
        raise ImportModelError("an output of the model is not produced", found=name)
    return value


class _Unknown:
    """The result of an operator without translation: what depends on it is not translated either."""


_UNKNOWN = _Unknown()


@dataclass
class _Scope:
    """Values by name, and the element types that the model declares for them; initializers become arrays when they
    are read. ``None`` is an argument that is left out."""

    values: dict[str, Value | _Unknown | None]
    initializers: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    parent: _Scope | None = None
    types: dict[str, str | None] = field(default_factory=dict)

    def declared(self, name: str) -> str | None:
        """The element type that the model declares for ``name``, here or around; None where it is unknown."""
        if name in self.initializers:
            return type_name(self.initializers[name].data_type)
        if name in self.types or name in self.values:
            return self.types.get(name)
        return self.parent.declared(name) if self.parent is not None else None


@dataclass
class _Importer:
    """Translates nodes in a builder; collects what has no translation."""

    builder: GraphBuilder
    folder: Path | None
    functions: Mapping[tuple[str, str], onnx.FunctionProto]
    names: NodeNames
    unsupported: list[tuple[str, str, str]] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)
    caller: onnx.NodeProto | None = None
    constants_bytes: int = 0

    def lookup(self, scope: _Scope, name: str) -> Value | _Unknown | None:
        """The value called ``name`` in ``scope`` or around it; ImportModelError where there is none."""
        place: _Scope | None = scope
        while place is not None:
            if name in place.values:
                return place.values[name]
            if name in place.initializers:
                array = widened(array_of(place.initializers[name], self.folder))
                return place.values.setdefault(name, array)
            place = place.parent
        raise ImportModelError("a value is read that nothing produces", found=name)

    def run(self, nodes: Sequence[onnx.NodeProto], scope: _Scope, opsets: Mapping[str, int], name: str | None) -> None:
        """Translate ``nodes``; what they emit is called ``name``, or after each node where that is None."""
        for node in sorted_nodes(nodes):
            results = self._results(node, scope, opsets, name)
            types = _result_types(node, scope, opsets)
            for output, value, declared in zip(node.output, results, types, strict=False):
                if output and isinstance(value, np.ndarray):
                    scope.types[output] = declared or str(value.dtype)
                    scope.values[output] = widened(value)
                elif output:
                    scope.types[output], scope.values[output] = declared, value

    def _results(self, node: onnx.NodeProto, scope: _Scope, opsets: Mapping[str, int],
                 name: str | None) -> Sequence[Value | _Unknown | None]:
        label, key = label_of(node), (domain_of(node.domain), node.op_type)
        if key[0] not in opsets and key not in self.functions:
            raise ImportModelError("a node's operator domain has no version in the model", layer=label,
                                   found=key[0] or "ai.onnx", expected=sorted(d or "ai.onnx" for d in opsets))
        inputs = [self.lookup(scope, n) if n else None for n in node.input]
        known = [v for v in inputs if not isinstance(v, _Unknown)]
        if len(known) < len(inputs):
            if key not in OPERATORS and key not in self.functions and not _has_function(*key, opsets):
                self._report(node, _NO_TRANSLATION)
            return [_UNKNOWN] * len(node.output)
        opset = opsets.get(key[0], 1)
        try:
            results = self._translate(node, scope, opsets, OnnxNode(
                op=node.op_type, domain=key[0], opset=opset, name=name or self.names.of(node), label=label,
                inputs=tuple(known), outputs=tuple(node.output), attributes=attributes_of(node, self.folder),
                builder=self.builder, requirements=self.requirements,
                declared=tuple(scope.declared(n) if n else None for n in node.input)))
        except UnsupportedOperatorError as error:
            self._report(node, error.problem)
            return [_UNKNOWN] * len(node.output)
        except CompileError:
            raise
        except Exception as error:  # TVM's type inference raises its own errors for operands that do not fit.
            first = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise ImportModelError(f"{node.op_type}: the operands do not fit", layer=label, found=first) from error
        if len(results) < len(node.output) and any(node.output[len(results):]):
            raise ImportModelError(f"{node.op_type} has fewer results", layer=label, found=list(node.output),
                                   expected=len(results))
        return results

    def _translate(self, node: onnx.NodeProto, scope: _Scope, opsets: Mapping[str, int],
                   resolved: OnnxNode) -> Sequence[Value | _Unknown | None]:
        key = (resolved.domain, resolved.op)
        if key in self.functions:
            return self._call(node, self.functions[key], resolved)
        if resolved.domain == "":
            _check_node(node, resolved)
            if resolved.op == "Constant":
                return [_constant(resolved)]
            if resolved.op == "If":
                return self._branch(scope, opsets, resolved)
            arrays = [v for v in resolved.inputs if not isinstance(v, relax.Var)]
            if node.input and len(arrays) == len(resolved.inputs) and can_evaluate(node, resolved.opset):
                plain = [v for v in arrays if not isinstance(v, SymbolicArray)]
                if len(plain) == len(arrays):
                    return self._evaluate(node, resolved, plain)
                results = evaluate_symbolic(node, resolved, arrays)
                if results is not None:
                    return results
        if key not in OPERATORS:
            return self._call(node, _function_of(node, resolved), resolved)
        try:
            result = OPERATORS[key](resolved)
        except UnsupportedOperatorError:
            if not _has_function(*key, opsets):
                raise
            return self._call(node, _function_of(node, resolved), resolved)
        return result if isinstance(result, tuple) else (result,)

    def _evaluate(self, node: onnx.NodeProto, resolved: OnnxNode,
                  inputs: Sequence[np.ndarray | None]) -> Sequence[np.ndarray]:
        results = evaluate(node, resolved.opset, inputs, resolved.label)
        self.constants_bytes += sum(r.nbytes for r in results)
        if self.constants_bytes > MAX_CONSTANTS_BYTES:
            raise ImportModelError("the constants that are computed at import take too much memory",
                                   layer=resolved.label, expected=f"at most {MAX_CONSTANTS_BYTES} bytes")
        return results

    def _branch(self, scope: _Scope, opsets: Mapping[str, int],
                node: OnnxNode) -> Sequence[Value | _Unknown | None]:
        condition = node.known(0, "a condition")
        if condition.size != 1:
            raise node.fault("the condition is not one value", found=condition.shape)
        graph = node.attribute("then_branch" if condition.reshape(()) else "else_branch")
        if not isinstance(graph, onnx.GraphProto):
            raise node.fault("a branch is missing")
        check_graph(graph, _names(scope))
        inner = _Scope({}, {t.name: t for t in graph.initializer}, scope)
        self.run(graph.node, inner, opsets, None)
        return [self.lookup(inner, o.name) for o in graph.output]

    def _call(self, node: onnx.NodeProto, function: onnx.FunctionProto,
              resolved: OnnxNode) -> Sequence[Value | _Unknown | None]:
        """Translate the body of a function in place; all that it emits is named after the call."""
        if len(resolved.inputs) > len(function.input):
            raise resolved.fault("the function takes fewer arguments", found=len(resolved.inputs),
                                 expected=len(function.input))
        arguments = [*resolved.inputs, *[None] * (len(function.input) - len(resolved.inputs))]
        scope = _Scope(dict(zip(function.input, arguments, strict=True)),
                       types=dict(zip(function.input, resolved.declared, strict=False)))
        body = [_with_arguments(n, node, function) for n in function.node]
        opsets = {"": onnx.defs.onnx_opset_version(), **opset_versions(function.opset_import)}
        outermost, self.caller = self.caller, self.caller or node
        self.run(body, scope, opsets, resolved.name)
        self.caller = outermost
        wanted = zip(function.output, [*node.output, *[""] * len(function.output)], strict=False)
        return [self.lookup(scope, inner) if outer else None for inner, outer in wanted]

    def _report(self, node: onnx.NodeProto, reason: str) -> None:
        """Note what has no translation; what a function calls is noted as the call."""
        node = self.caller or node
        kind = f"{node.domain}.{node.op_type}" if domain_of(node.domain) else node.op_type
        self.unsupported.append((kind, label_of(node), reason))

    def raise_unsupported(self) -> None:
        """Raise one UnsupportedOperatorError that lists everything without translation, if there is any."""
        if not self.unsupported:
            return
        lines = []
        found = dict.fromkeys(self.unsupported)
        for (kind, reason), count in sorted(Counter((k, r) for k, _, r in found).items()):
            nodes = [label for k, label, r in found if (k, r) == (kind, reason)]
            shown = ", ".join(nodes[:5]) + (" …" if count > 5 else "")
            lines.append(f"- {kind} ({count} {'node' if count == 1 else 'nodes'}: {shown}): {reason}")
        raise UnsupportedOperatorError("the model has operators that are not supported:\n" + "\n".join(lines),
                                       hint="export these layers in another form, or leave them out of the model")


def _result_types(node: onnx.NodeProto, scope: _Scope, opsets: Mapping[str, int]) -> list[str | None]:
    domain = domain_of(node.domain)
    stated = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    return result_types(domain, node.op_type, opsets.get(domain, 1), stated,
                        [scope.declared(n) if n else None for n in node.input], len(node.output))


def _names(scope: _Scope | None) -> set[str]:
    return set() if scope is None else {*scope.values, *scope.initializers, *_names(scope.parent)}


def _check_node(node: onnx.NodeProto, resolved: OnnxNode) -> None:
    """The operator's own rules on attributes and numbers of inputs; nothing for an operator that ONNX lacks."""
    if resolved.op == "Constant" or any(isinstance(v, onnx.GraphProto) for v in resolved.attributes.values()):
        return
    try:
        schema = onnx.defs.get_schema(resolved.op, resolved.opset, "")
    except onnx.defs.SchemaError:
        return
    if schema.deprecated:
        return
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, {"": resolved.opset}
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise ImportModelError(f"{resolved.op} breaks the operator's definition", layer=resolved.label,
                               found=str(error).strip().splitlines()[0]) from error


def _constant(node: OnnxNode) -> np.ndarray:
    dtypes = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for name, value in node.attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in dtypes:
            return np.asarray(value, dtypes[name])
    raise node.unsupported("without a dense numeric value")


def _has_function(domain: str, op: str, opsets: Mapping[str, int]) -> bool:
    """Whether ONNX defines the operator by a function of other operators."""
    try:
        schema: Any = onnx.defs.get_schema(op, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _function_of(node: onnx.NodeProto, resolved: OnnxNode) -> onnx.FunctionProto:
    """The function that ONNX defines the operator by; UnsupportedOperatorError where there is none."""
    if not _has_function(resolved.domain, resolved.op, {resolved.domain: resolved.opset}):
        depends = resolved.domain == "" and can_evaluate(node, resolved.opset)
        raise UnsupportedOperatorError(_NO_TRANSLATION + " for inputs that depend on the model's" * depends,
                                       layer=resolved.label)
    schema: Any = onnx.defs.get_schema(resolved.op, resolved.opset, resolved.domain)  # onnx types a part of it only
    function = onnx.FunctionProto()
    if schema.has_function:
        version = max([v for v in schema.function_opset_versions if v <= resolved.opset],
                      default=min(schema.function_opset_versions))
        function.ParseFromString(schema.get_function_with_opset_version(version))
        function.attribute_proto.extend(a.default_value for a in schema.attributes.values() if a.default_value.name)
        return function
    versions = schema.context_dependent_function_opset_versions
    version = max([v for v in versions if v <= resolved.opset], default=min(versions))
    types = [_type_of(v) for v in resolved.inputs]
    function.ParseFromString(
        schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types))
    return function


def _type_of(value: Value | None) -> bytes:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    dtype, shape = (dtype_of(value), dims_of(value)) if isinstance(value, relax.Var) else (value.dtype, value.shape)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(normal_dtype(dtype) or "float32"))
    extents = [d if isinstance(d, int) else dim_text(d) for d in shape]
    return helper.make_tensor_type_proto(kind, extents).SerializeToString()


def _with_arguments(node: onnx.NodeProto, call: onnx.NodeProto, function: onnx.FunctionProto) -> onnx.NodeProto:
    """``node`` of a function's body, with the attributes that it takes from the call or the defaults filled in."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    given = {a.name: a for a in [*function.attribute_proto, *call.attribute]}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            result.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            filled = result.attribute.add()
            filled.CopyFrom(given[attribute.ref_attr_name])
            filled.name = attribute.name
    return result
