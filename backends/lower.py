"""Lowering: from the grouped graph and a plan to a Relax module of kernel calls.

The plan is obeyed; all that is decided here is which two groups one kernel computes. ``main`` of the lowered module
takes the model's inputs, then every packed constant; each fusion group is one ``call_tir``, or two groups together
where that is faster, each stand-alone cast another. Kernels that came out equal are shared.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax

from ..dims import Dim, as_dim, product_of, symbols_in, with_extents
from ..errors import PlanError, VerificationError
from ..ir import (
    MOVEMENT_KINDS,
    Constant,
    Expr,
    GraphBuilder,
    Group,
    constant_value,
    dims_of,
    dtype_of,
    finders_of,
    groups_of,
    op_bindings,
    op_name,
    outputs_of,
    symbols_of,
    symbols_used,
    tensors_of,
    with_main,
    with_symbols,
)
from ..operators.control import LOOP, Body, bodies_of, counts_of, divided, has_bodies, runs_on_host, shapes_of
from ..operators.data_dependent import attributes_of
from ..precision import FLOAT32, Decision, Precision, PrecisionPlan, Storage, readable
from ..requirements import Requirement
from . import host
from .cpu.cast import build_cast
from .cpu.emit import emit
from .cpu.expansion import gains, links
from .cpu.kernel import ChainRequest, Kernel, KernelRequest, buffer_dtype, output_buffers, output_shapes
from .functions import Functions
from .target import Capabilities

# What an extent that only running tells is taken for.
FOUND_EXTENT = 16


@dataclass(frozen=True)
class Lowered:
    """A lowered module.

    mod : IRModule with ``main``, a Relax function per body of a loop or branch, and one PrimFunc per distinct kernel.
    constants : the arrays ``main`` takes after the model's inputs, in order.
    functions : name of the PrimFunc that computes each group, by group name; views (``is_view``) have none. Groups of
        bodies are called ``loop.group``.
    kernels : the kernel of each group or chain, likewise, by the name of the group whose result it computes.
    macs : multiply-adds of each group that has a kernel, likewise, at the typical extents.
    casts : number of stand-alone casts.
    """

    mod: tvm.IRModule
    constants: tuple[np.ndarray, ...]
    functions: dict[str, str]
    kernels: dict[str, Kernel]
    macs: dict[str, int]
    casts: int


def request_for(
    group: Group,
    plan: PrecisionPlan,
    stored: Callable[[str], tuple[Storage, ...]],
    typical: tuple[tuple[str, int], ...] = (),
) -> KernelRequest:
    """What the plan asks of a group's kernel; ``stored`` gives all materialisations of a tensor, ``typical`` an extent
    for every symbol."""
    decision = plan[group.name]

    def required(index: int) -> Precision | Storage | None:
        if index in group.exact_inputs:
            return decision.precision
        moved = group.kind in MOVEMENT_KINDS and dtype_of(group.parameters[index]) == "float32"
        return decision.stores[0] if moved else None

    inputs = tuple(readable(stored(name), required(i)) for i, name in enumerate(group.inputs))
    return KernelRequest(
        group, decision.precision, inputs, decision.stores, decision.per_channel, decision.correction, typical,
        decision.schedule,
    )


def requests_for(
    mod: tvm.IRModule, plan: PrecisionPlan, typical: Mapping[str, int] | None = None
) -> list[KernelRequest]:
    """What the plan asks of every group that has a kernel, in order of execution; ``typical`` has an extent for every
    symbol, by name."""
    stored, extents = native_storages(mod, plan), tuple(sorted((typical or {}).items()))
    return [request_for(g, plan, stored, extents) for g in groups_of(mod) if has_kernel(g)]


def launches_for(mod: tvm.IRModule, plan: PrecisionPlan, capabilities: Capabilities, threads: int,
                 typical: Mapping[str, int] | None = None) -> list[KernelRequest | ChainRequest]:
    """What a program launches, in order of execution: the kernels of ``requests_for``, two at once where that takes
    less time."""
    requests, groups = requests_for(mod, plan, typical), groups_of(mod)
    by_name = {r.group.name: r for r in requests}
    readers = Counter([*(name for g in groups for name in g.inputs), *(v.name for v in outputs_of(mod["main"]))])
    chains: dict[str, ChainRequest] = {}
    for second in requests:
        for link, name in enumerate(second.group.inputs):
            first = by_name.get(name)
            if first is None or readers[name] != 1:
                continue
            chain = ChainRequest(first, second, link)
            if links(chain, capabilities) and gains(chain, capabilities, threads):
                chains[second.group.name] = chain
    inner = {chain.first.group.name for chain in chains.values()}
    return [chains.get(r.group.name, r) for r in requests if r.group.name not in inner]


def native_storages(mod: tvm.IRModule, plan: PrecisionPlan) -> Callable[[str], tuple[Storage, ...]]:
    """The function that gives all materialisations of a tensor under a plan. What no group computes, model inputs and
    fields of tuples, has its own type."""
    main = mod["main"]
    fields = (b.var for b in op_bindings(main) if isinstance(b.value, relax.TupleGetItem))
    own = {v.name: Storage(dtype_of(v)) for v in (*tensors_of(main), *fields)}

    def stored(name: str) -> tuple[Storage, ...]:
        return (own[name], *plan.casts.get(name, ())) if name in own else plan.stored(name)

    return stored


_VIEWS = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")


def is_view(group: Group) -> bool:
    """Whether the group only gives a tensor another shape: it has no kernel, its result shares the memory."""
    return group.kind in MOVEMENT_KINDS and all(op_name(b.value) in _VIEWS for b in group.bindings)


def has_kernel(group: Group) -> bool:
    """Whether code is emitted for the group: views need none, some operators run on the host."""
    return not is_view(group) and not runs_on_host(group.bindings[0].value)


def exact_plan(groups: Sequence[Group]) -> PrecisionPlan:
    """FP32 everywhere, every tensor in its own type: the plan of the body of a loop or branch."""
    return PrecisionPlan(tuple(
        Decision(g.name, g.kind, Precision.FP32, "runs inside a loop or branch",
                 tuple(Storage(dtype_of(v)) for v in outputs_of(g.function))) for g in groups))


def lower(
    mod: tvm.IRModule,
    plan: PrecisionPlan,
    capabilities: Capabilities,
    threads: int,
    *,
    typical: Mapping[str, int] | None = None,
    emit_launch: Callable[[KernelRequest | ChainRequest], Kernel] | None = None,
) -> Lowered:
    """Lower a module in grouped form.

    Raises PlanError where the plan is not one of this module, UnsupportedOperatorError where a group has no kernel.
    ``typical`` has an extent for every symbol, by name, that the kernels should be fast at. ``emit_launch`` replaces
    the kernel generator, so that a caller can keep kernels between plans.
    """
    groups = groups_of(mod)
    if [g.name for g in groups] != [d.op for d in plan.decisions]:
        raise PlanError(
            "the plan belongs to another module",
            found=f"{len(plan.decisions)} decisions",
            expected=f"one for each of {len(groups)} groups",
        )
    emit_launch = emit_launch or (lambda request: emit(request, capabilities, threads))
    extents = tuple(sorted((typical or {}).items()))
    lowering = _Lowering(mod, plan, groups, emit_launch, capabilities, threads, extents)
    func = lowering.run()
    return Lowered(with_main(lowering.library.builder.get(), func), tuple(lowering.constants), lowering.functions,
                   lowering.kernels, lowering.macs, lowering.casts)


@dataclass
class _Lowering:
    """One function of the lowered module: ``main``, or a body."""

    mod: tvm.IRModule
    plan: PrecisionPlan
    groups: list[Group]
    emit_launch: Callable[[KernelRequest | ChainRequest], Kernel]
    capabilities: Capabilities
    threads: int
    typical: tuple[tuple[str, int], ...]
    library: Functions = field(default_factory=Functions)
    values: dict[tuple[str, str], relax.Var] = field(default_factory=dict)
    fields: dict[str, list[relax.Var]] = field(default_factory=dict)
    constants: list[np.ndarray] = field(default_factory=list)
    constant_vars: list[relax.Var] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    macs: dict[str, int] = field(default_factory=dict)
    casts: int = 0

    def run(self) -> relax.Function:
        """The function, which takes the constants after the inputs."""
        main = self.mod["main"]
        self.builder = GraphBuilder(tensors_of(main))
        self.symbols = {s.name: s for s in symbols_of(main)}
        self.defined = {s for p in tensors_of(main) for s in symbols_used(p)}
        self.found: dict[str, list[tvm.tirx.Var]] = {}
        for symbol, var in finders_of(main).items():
            self.found.setdefault(var.name, []).append(symbol)
        self.graph_values = {b.var.name: b.var for b in op_bindings(main)}
        self._stored = native_storages(self.mod, self.plan)
        for param in tensors_of(main):
            self.values[param.name, str(param.ty.dtype)] = param
            self._cast_all(param.name, dims_of(param))
        groups = {g.name: g for g in self.groups}
        launches = launches_for(self.mod, self.plan, self.capabilities, self.threads, dict(self.typical))
        self.launches = {launch.result.group.name: launch for launch in launches}
        for binding in op_bindings(main):
            if isinstance(binding.value, relax.TupleGetItem):
                self._project(binding)
            else:
                self._call(groups[binding.var.name])
        return self._finish(main)

    def _call(self, group: Group) -> None:
        if has_kernel(group):
            if group.name in self.launches:  # Else its reader computes it.
                self._call_kernel(group, self.launches[group.name])
            return
        request = request_for(group, self.plan, self._stored, self.typical)
        if is_view(group):
            (source,) = (self.values[n, s.dtype] for n, s in zip(group.inputs, request.inputs, strict=True))
            (storage,) = request.outputs
            shape = dims_of(self.graph_values[group.name])
            self.values[group.name, storage.dtype] = self.builder.emit(relax.op.reshape(source, shape), group.name)
            self._cast_all(group.name, shape)
        else:
            self._call_host(group, request)

    def _call_kernel(self, group: Group, launch: KernelRequest | ChainRequest) -> None:
        kernel = self.emit_launch(launch)
        self.kernels[group.name] = kernel
        args = [self.values[name, s.dtype] for name, s in launch.reads]
        outputs = self._launch(kernel, group.name, args, self._types(group, launch.result))
        for request, macs in zip(launch.requests, kernel.parts or (kernel.macs,), strict=True):
            self.functions[request.group.name], self.macs[request.group.name] = self.last_function, macs
        if isinstance(group.function.ret_ty, relax.TupleType):
            self.fields[group.name] = outputs
            return
        for storage, var in zip(launch.result.outputs, outputs, strict=True):
            self.values[group.name, storage.dtype] = var
        self._cast_all(group.name, dims_of(outputs[0]))

    def _project(self, binding: relax.VarBinding) -> None:
        name, source = binding.var.name, binding.value.tuple_value.name
        var = self.fields[source][binding.value.index]
        self.values[name, str(var.ty.dtype)] = var
        self._cast_all(name, dims_of(var))

    def _call_host(self, group: Group, request: KernelRequest) -> None:
        """A call of what runs on the host; its results define the symbols that they have as extents."""
        call, ty = group.bindings[0].value, self.graph_values[group.name].ty
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        unknown = [relax.TensorType(None, str(t.dtype), ndim=len(t.shape)) for t in types]
        given = {p: self.values[name, s.dtype]
                 for p, name, s in zip(group.parameters, group.inputs, request.inputs, strict=True)}
        tensors = [self._constant(group.name, constant_value(a)) if isinstance(a, Constant) else given[a]
                   for a in call.args if not isinstance(a, relax.ShapeExpr)]
        needed = json.dumps(self._needed(group, types))
        about = [tvm.ir.StringImm(group.name), tvm.ir.StringImm(needed)]
        if has_bodies(call):
            args = [*about, *self._control(group, call, tensors)]
            result = relax.op.call_builtin_with_ctx(relax.ExternFunc(host.CONTROL), args,
                                                    ty_args=[relax.TupleType(unknown)])
        else:
            attributes = json.dumps(attributes_of(call), sort_keys=True)
            result = relax.call_pure_packed(
                host.FIND, *about, tvm.ir.StringImm(op_name(call)), tvm.ir.StringImm(attributes), *tensors,
                ty_args=[unknown[0] if len(unknown) == 1 else relax.TupleType(unknown)])
        self._match(group, self.builder.emit(result, f"{group.name}.found"), types)

    def _match(self, group: Group, result: relax.Var, types: list[relax.TensorType]) -> None:
        """Give the results of a call on the host their types."""
        parts = [result]
        if isinstance(result.ty, relax.TupleType):
            parts = [self.builder.emit(relax.TupleGetItem(result, i), f"{group.name}.found") for i in range(len(types))]
        matched = [self.builder.match(p, t, group.name) for p, t in zip(parts, types, strict=True)]
        self.defined.update(self.found.get(group.name, ()))
        if isinstance(group.function.ret_ty, relax.TupleType):
            self.fields[group.name] = matched
        else:
            self.values[group.name, str(types[0].dtype)] = matched[0]

    def _control(self, group: Group, call: relax.Call, tensors: list[relax.Var]) -> list[Expr]:
        """The arguments of what on the host runs a loop or a branch (``host._control``)."""
        is_loop, counts = op_name(call) == LOOP, counts_of(call)
        lowered = [self._body(group.name, b) for b in bodies_of(call)]
        functions = [a for function, text, _ in lowered for a in (function, tvm.ir.StringImm(text))]
        leading = len(tensors) - sum(counts)
        parts = divided(tensors[leading:], counts)
        for part, (_, _, constants) in zip(parts[-len(lowered):], lowered, strict=True):
            part += constants
        shapes = shapes_of(call)[counts[0]:] if is_loop else []
        dtypes = [str(t.dtype) for t in call.ty.fields[counts[0]:]] if is_loop else None
        return [tvm.ir.StringImm(json.dumps(list(map(len, parts)))), tvm.ir.StringImm(json.dumps(dtypes)), *functions,
                *tensors[:leading], *(t for part in parts for t in part), *map(self._known, shapes)]

    def _body(self, name: str, body: Body) -> tuple[tvm.ir.GlobalVar, str, list[relax.Var]]:
        """The function of a body, what the host is told of it, and its constants as parameters of this function."""
        main, groups, known = body.mod["main"], groups_of(body.mod), dict(self.typical)
        typical = tuple(sorted((s.name, known.get(s.name, FOUND_EXTENT)) for s in symbols_of(main)))
        inner = _Lowering(body.mod, exact_plan(groups), groups, self.emit_launch, self.capabilities, self.threads,
                          typical, self.library)
        function = self.library.add(inner.run(), f"{name}.body")
        self._take_over(name, inner)
        given = dict.fromkeys(s for p in tensors_of(main) for s in symbols_used(p))
        filled = [Requirement(">=", s, 1, name) for s in given if not inner.may_be_empty(s)]
        requirements = [*body.requirements, *filled]
        constants = [self._constant(f"{name}.body", array) for array in inner.constants]
        return function, host.body_text(requirements, body.places(requirements)), constants

    def _take_over(self, name: str, inner: _Lowering) -> None:
        """The kernels of a body, under names that nothing else has."""
        taken = {g.name for g in self.groups} | self.functions.keys()
        for group, function in inner.functions.items():
            own = f"{name}.{group}"
            while own in taken:
                own += "_"
            taken.add(own)
            self.functions[own], self.macs[own] = function, inner.macs[group]
            if group in inner.kernels:
                self.kernels[own] = inner.kernels[group]

    def _known(self, shape: Sequence[Dim]) -> relax.ShapeExpr:
        """A shape before its own symbols are found: 0 for the extents that depend on them."""
        own = {s: self.symbols[s.name] for d in shape for s in symbols_in(as_dim(d))}
        dims = [with_symbols(d, own) if not isinstance(d, int) else d for d in map(as_dim, shape)]
        return relax.ShapeExpr([d if set(symbols_in(as_dim(d))) <= self.defined else 0 for d in dims])

    def _needed(self, group: Group, types: Sequence[relax.TensorType]) -> list[tuple[int, int]]:
        """Where the symbols stand that a group finds and that must not be 0: which result, and which axis."""
        places = {as_dim(d): (i, axis) for i, t in reversed(list(enumerate(types)))
                  for axis, d in enumerate(t.shape) if isinstance(d, tvm.tirx.Var)}
        return [places[s] for s in self.found.get(group.name, ()) if not self.may_be_empty(s)]

    def may_be_empty(self, symbol: tvm.tirx.Var) -> bool:
        """Whether all that depends on a symbol is empty where it is 0: then no kernel has to know what a reduction of
        nothing is."""
        users = (g for g in self.groups if symbol.name in {s.name for s in g.symbols} and has_kernel(g))
        return all(_is_multiple(shape, symbol.name) for g in users for shape, _ in output_shapes(g.function))

    def _types(self, group: Group, request: KernelRequest) -> list[relax.TensorType]:
        """The types of a kernel's outputs in terms of the symbols of ``main``."""
        ty = self.graph_values[group.name].ty
        fields = ty.fields if isinstance(ty, relax.TupleType) else [ty] * len(request.outputs)
        return [relax.TensorType(list(f.shape), dtype) for f, (_, dtype) in zip(fields, output_buffers(request),
                                                                                 strict=True)]

    def _cast_all(self, name: str, shape: tuple[Dim, ...]) -> None:
        """Make the materialisations of ``name`` that the plan leaves to stand-alone casts."""
        for storage in self.plan.casts.get(name, ()):
            source = readable(tuple(s for s in self._stored(name) if (name, s.dtype) in self.values), None)
            kernel = build_cast(shape, source, storage, self.capabilities, self.threads, self.typical)
            (self.values[name, storage.dtype],) = self._launch(
                kernel,
                f"{name}.to_{storage.dtype}",
                [self.values[name, source.dtype]],
                [relax.TensorType(list(shape), buffer_dtype(storage))],
            )
            self.casts += 1

    def _launch(
        self, kernel: Kernel, name: str, args: list[relax.Var], types: list[relax.TensorType]
    ) -> list[relax.Var]:
        constants = [self._constant(name, array) for array in kernel.constants]
        symbols = [self.symbols[s.name] for s in kernel.symbols]
        function = self.library.kernel(kernel.func, name)
        self.last_function = function.name_hint
        call = relax.call_tir(function, [*args, *constants, *symbols], types if len(types) > 1 else types[0])
        result = self.builder.emit(call, name)
        if len(types) == 1:
            return [result]
        return [self.builder.emit(relax.TupleGetItem(result, i), f"{name}.{t.dtype}") for i, t in enumerate(types)]

    def _constant(self, name: str, array: np.ndarray) -> relax.Var:
        """A further parameter of ``main`` that holds ``array``."""
        var = relax.Var(self.builder.unique(f"{name}.constant"), relax.TensorType(array.shape, str(array.dtype)))
        self.constants.append(array)
        self.constant_vars.append(var)
        return var

    def _finish(self, main: relax.Function) -> relax.Function:
        results = []
        for var in outputs_of(main):
            dtype = str(var.ty.dtype)
            if (var.name, dtype) not in self.values:
                raise VerificationError(
                    "an output is not stored in its own type",
                    layer=var.name,
                    found=self._stored(var.name),
                    expected=FLOAT32,
                )
            results.append(self.values[var.name, dtype])
        # What the program is called with is checked by it; the constants are its own.
        attrs = {"num_input": len(self.builder.inputs)}
        self.builder.inputs += self.constant_vars
        return self.builder.finish(results, as_tuple=isinstance(main.ret_ty, relax.TupleType), attrs=attrs)


def _is_multiple(shape: Sequence[Dim], symbol: str) -> bool:
    """Whether a tensor of this shape is empty where the symbol is 0."""
    size = product_of(shape)
    return any(s.name == symbol for s in symbols_in(size)) and with_extents(size, {symbol: 0}) == 0
