"""The graph language: how narrowcast builds, walks and rewrites Relax modules.

The *normal form* (verified by ``passes.VerifyNormalForm``) is an IRModule with one Relax function ``main``:

* its parameters are the model's inputs, under the user's names;
* its body is one dataflow block of bindings ``var = op(args)`` (A-normal: arguments are variables, constants,
  shapes and attributes, never nested calls), then the outputs: one tensor or a tuple of tensors;
* every binding's variable name is unique and is *the op's name*: the name of the layer in the user's model, with
  ``.N`` appended for the second and later op of one layer. Decisions, reasons and reports refer to it;
* weights are constants, floating point tensors are float32, the form is that of inference;
* a dim is a number, or an int64 expression over *symbols*: variables named after the user's dims ("batch"), each the
  plain dim of a parameter. Extents that only running tells (``operators.data_dependent``, ``operators.control``) are
  symbols too; ``main`` lists them as a last parameter, a shape, which no caller passes.

The *grouped form* (``passes.FuseGroups``) has a private function per fusion group; ``main`` calls them. The
binding's name in ``main`` is the name of the group's anchor, and of the tensor that the group computes. A group that
uses symbols takes them as one shape after its tensors; they have the names they have in ``main``.

Relax's own mutators rename variables; everything here keeps names. No pass writes into the caller's module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from .dims import Dim, as_dim, dim_text, equal_dims, simplified, symbols_in
from .errors import VerificationError

Expr: TypeAlias = tvm.ir.Expr
Constant = tvm.ir.GenericConst


def constant(array: np.ndarray) -> Expr:
    """A Relax constant that owns a copy of ``array``."""
    return relax.const(np.array(array, order="C"), str(array.dtype))


def constant_value(expr: Expr) -> np.ndarray:
    """The array of a Relax constant; VerificationError for any other expression."""
    if not isinstance(expr, Constant):
        raise VerificationError("a constant was required", found=type(expr).__name__)
    return expr.value.numpy()


def op_name(expr: Expr) -> str | None:
    """``"relax.nn.conv2d"`` for a call of that operator; None for anything else."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
        return expr.op.name
    return None


def shape_of(expr: Expr) -> tuple[int, ...]:
    """The static shape of a tensor expression; VerificationError where a dim is symbolic."""
    dims = expr.ty.shape
    if dims is None or not all(isinstance(d, tvm.tirx.IntImm) for d in dims):
        raise VerificationError("a static shape was required", found=str(expr.ty))
    return tuple(int(d) for d in dims)


def dims_of(expr: Expr) -> tuple[Dim, ...]:
    """The shape of a tensor expression: numbers, and expressions where a dim is symbolic. VerificationError where even
    the rank is unknown."""
    dims = expr.ty.shape
    if dims is None:
        raise VerificationError("a tensor of known rank was required", found=str(expr.ty))
    return tuple(as_dim(d) for d in dims)


def is_static(expr: Expr) -> bool:
    """Whether every dim of a tensor expression is a number."""
    return expr.ty.shape is not None and all(isinstance(d, int) for d in dims_of(expr))


def same_dims(a: Expr, b: Expr) -> bool:
    """Whether two tensor expressions have provably the same shape."""
    return equal_dims(dims_of(a), dims_of(b))


def tensors_of(func: relax.Function) -> list[relax.Var]:
    """The parameters that are tensors: all but the shape of symbols."""
    return [p for p in func.params if not isinstance(p.ty, relax.ShapeType)]


def shape_symbols(params: Iterable[relax.Var]) -> list[tirx.Var]:
    """The symbols that parameters give as a shape, in order."""
    return [v for p in params if isinstance(p.ty, relax.ShapeType) for v in p.ty.values]


def symbols_of(func: relax.Function) -> list[tirx.Var]:
    """The symbols of a function's parameters, in order."""
    return list(dict.fromkeys(s for p in func.params for d in _dims_in(p.ty) for s in symbols_in(d)))


def _dims_in(ty: Expr) -> Iterator[Dim]:
    """All extents inside a type."""
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _dims_in(field)
    elif isinstance(ty, relax.ShapeType):
        yield from (as_dim(v) for v in ty.values or ())
    elif isinstance(ty, relax.TensorType) and ty.shape is not None:
        yield from (as_dim(d) for d in ty.shape)


def simple_type(ty: Expr) -> Expr:
    """A type with its symbolic extents in their simplest form."""
    if isinstance(ty, relax.TupleType):
        fields = [simple_type(f) for f in ty.fields]
        return ty if all(a.same_as(b) for a, b in zip(fields, ty.fields, strict=True)) else relax.TupleType(fields)
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return ty
    dims = [as_dim(d) for d in ty.shape]
    simple = [simplified(d) for d in dims]
    if all(isinstance(d, int) or d.same_as(s) for d, s in zip(dims, simple, strict=True)):
        return ty
    return relax.TensorType(simple, ty.dtype)


def dtype_of(expr: Expr) -> str:
    """The element type of a tensor expression, such as ``"float32"``."""
    return str(expr.ty.dtype)


def bindings_of(func: relax.Function) -> list[relax.VarBinding]:
    """The bindings of a function in normal form, in order."""
    return [b for block in func.body.blocks for b in block.bindings]


def outputs_of(func: relax.Function) -> list[relax.Var]:
    """The variables a function in normal form returns, in order."""
    result = func.body.body
    bound = {b.var: b.value for b in bindings_of(func)}
    while result in bound and isinstance(bound[result], (relax.Var, relax.Tuple)):
        result = bound[result]
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


class GraphBuilder:
    """Builds a function in normal form; unlike ``relax.BlockBuilder`` it keeps the names it is given.

    ``emit`` infers the type, makes the name unique and returns the variable; ``finish`` returns the function.
    """

    def __init__(self, inputs: Sequence[relax.Var]) -> None:
        self.inputs = list(inputs)
        self._found: list[tirx.Var] = []
        self._normalizer = relax.BlockBuilder()
        self._bindings: list[relax.VarBinding] = []
        self._names = {v.name for v in inputs}
        self._tried: dict[str, int] = {}  # Of each name so many are known to be taken.

    def emit(self, value: Expr, name: str) -> relax.Var:
        """Bind ``value`` to a fresh variable called ``name`` (``name.1``, ``name.2`` … where taken)."""
        value = self._normalizer.normalize(value)
        ty = simple_type(value.ty)
        if not ty.same_as(value.ty):
            value = relax.Call(value.op, value.args, value.attrs, value.ty_args)
            relax.expr._update_type(value, ty)
        var = relax.DataflowVar(self.unique(name), ty)
        self._bindings.append(relax.VarBinding(var, value))
        return var

    def rebind(self, binding: relax.VarBinding, value: Expr) -> relax.Var:
        """Bind ``value`` under the name of ``binding``. Where it is the binding's own value the binding is taken over
        as it is: what reads its variable does not change, and no type is inferred again."""
        if not value.same_as(binding.value) or binding.var.name in self._names:
            return self.emit(value, binding.var.name)
        self._names.add(binding.var.name)
        self._bindings.append(binding)
        return binding.var

    def match(self, value: relax.Var, ty: Expr, name: str) -> relax.Var:
        """Bind ``value`` to a fresh variable of a type whose new symbols get their extents from it."""
        var = relax.DataflowVar(self.unique(name), ty)
        self._bindings.append(relax.MatchCast(var, value, ty))
        return var

    def found(self, name: str) -> tirx.Var:
        """A new symbol for an extent that only running tells."""
        self._found.append(tirx.Var(self.unique(name), "int64"))
        return self._found[-1]

    def parameter(self, name: str, ty: Expr) -> relax.Var:
        """A further input of the function."""
        self.inputs.append(relax.Var(self.unique(name), ty))
        return self.inputs[-1]

    def tensor_with(self, symbol: tirx.Var) -> relax.Var:
        """The first tensor that has a symbol as an extent; VerificationError where there is none."""
        for var in (*self.inputs, *(b.var for b in self._bindings)):
            if isinstance(var.ty, relax.TensorType) and any(symbol.same_as(d) for d in var.ty.shape):
                return var
        raise VerificationError("a symbolic dim is not the dim of a tensor", found=symbol.name)

    @contextmanager
    def attempt(self) -> Iterator[Callable[[], None]]:
        """What is bound inside is forgotten where the function that this gives is called."""
        names, tried, counts = set(self._names), dict(self._tried), (len(self._bindings), len(self._found))

        def forget() -> None:
            self._names, self._tried = names, tried
            del self._bindings[counts[0]:], self._found[counts[1]:]

        yield forget

    def unique(self, name: str) -> str:
        """``name``, or ``name.N`` with the smallest free N; the result is taken from then on."""
        n = self._tried.get(name, 0)
        while (candidate := f"{name}.{n}" if n else name) in self._names:
            n += 1
        self._tried[name] = n + 1
        self._names.add(candidate)
        return candidate

    def holds(self, bindings: Sequence[relax.VarBinding]) -> bool:
        """Whether these bindings, no others, are bound."""
        return len(bindings) == len(self._bindings) and all(map(relax.VarBinding.same_as, bindings, self._bindings))

    def finish(
        self, outputs: Sequence[relax.Var], *, as_tuple: bool = False, attrs: Mapping[str, object] | None = None
    ) -> relax.Function:
        """The function that returns ``outputs`` (a tuple when there are several, or when asked for)."""
        value = relax.Tuple(list(outputs)) if as_tuple or len(outputs) != 1 else outputs[0]
        value = self._normalizer.normalize(value)
        result = relax.Var("output", value.ty)
        block = relax.DataflowBlock([*self._bindings, relax.VarBinding(result, value)])
        body = self._normalizer.normalize(relax.SeqExpr([block], result))
        inputs = self.inputs
        if self._found:
            shape = relax.Var("found", relax.ShapeType([*shape_symbols(inputs), *self._found]))
            inputs = [*(p for p in inputs if not isinstance(p.ty, relax.ShapeType)), shape]
        func = relax.Function(inputs, body, ret_ty=result.ty)
        return func.with_attrs(dict(attrs)) if attrs else func


Rewrite = Callable[[GraphBuilder, relax.VarBinding, Expr], Expr]


def rewrite(func: relax.Function, visit: Rewrite) -> relax.Function:
    """Rebuild ``func`` binding by binding.

    ``visit(builder, binding, value)`` gets the old binding and its value with the arguments already replaced by the
    rebuilt ones. It returns the variable or constant that stands for the binding from now on; it may emit any
    number of bindings. Returning ``value`` itself (the call) emits it under the old name. Bindings that stay as they
    are keep their variables; where all do the result is ``func`` itself.
    """
    builder = GraphBuilder(func.params)
    replaced: dict[relax.Var, Expr] = {}
    bindings, outputs = op_bindings(func), outputs_of(func)
    as_tuple = isinstance(func.ret_ty, relax.TupleType)
    for binding in bindings:
        value = substitute(binding.value, replaced)
        result = visit(builder, binding, value)
        if not isinstance(result, (relax.Var, Constant)):
            result = builder.rebind(binding, result)
        if not result.same_as(binding.var):
            replaced[binding.var] = result
    if not replaced and builder.holds(bindings):
        return func
    results = [substitute(v, replaced) for v in outputs]
    results = [
        r if isinstance(r, relax.Var) else builder.emit(r, v.name) for r, v in zip(results, outputs, strict=True)
    ]
    return builder.finish(results, as_tuple=as_tuple, attrs=func.attrs)


def op_bindings(func: relax.Function) -> list[relax.VarBinding]:
    """The bindings that compute something: all but the one that names the outputs."""
    last = func.body.body
    return [b for b in bindings_of(func) if not (b.var.same_as(last) and isinstance(b.value, (relax.Var, relax.Tuple)))]


def substitute(expr: Expr, replaced: Mapping[relax.Var, Expr]) -> Expr:
    """``expr`` with variables replaced (one level: normal form has no nesting but tuples)."""
    if isinstance(expr, relax.Var):
        return replaced.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        fields = [substitute(f, replaced) for f in expr.fields]
        return expr if all(a.same_as(b) for a, b in zip(fields, expr.fields, strict=True)) else relax.Tuple(fields)
    if isinstance(expr, relax.TupleGetItem):
        source = substitute(expr.tuple_value, replaced)
        return expr if source.same_as(expr.tuple_value) else relax.TupleGetItem(source, expr.index)
    if isinstance(expr, relax.Call) and not is_number(expr):
        args = [substitute(a, replaced) for a in expr.args]
        if all(a.same_as(b) for a, b in zip(args, expr.args, strict=True)):
            return expr
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
    return expr


def uses_of(func: relax.Function) -> dict[relax.Var, list[relax.VarBinding]]:
    """For every variable the op bindings that read it, in order (a binding that reads it twice is listed once)."""
    uses: dict[relax.Var, list[relax.VarBinding]] = {}
    for binding in op_bindings(func):
        for var in dict.fromkeys(variables_of(binding.value)):
            uses.setdefault(var, []).append(binding)
    return uses


def variables_of(expr: Expr) -> Iterable[relax.Var]:
    """The tensor (and tuple) variables an expression of normal form reads, in order; symbols are none."""
    if isinstance(expr, relax.Var):
        if not is_number(expr):
            yield expr
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from variables_of(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from variables_of(expr.tuple_value)
    elif isinstance(expr, relax.Call) and not is_number(expr):
        for arg in expr.args:
            yield from variables_of(arg)


def without_dead_code(func: relax.Function) -> relax.Function:
    """``func`` without the bindings that no output depends on, be it by an extent that only running tells; inputs stay,
    read or not."""
    live, finders = set(outputs_of(func)), finders_of(func)
    for binding in reversed(op_bindings(func)):
        if binding.var in live:
            live.update(variables_of(binding.value))
            if finders:
                live.update(finders[s] for s in symbols_used(binding.value) if s in finders)
    return rewrite(func, lambda builder, binding, value: value if binding.var in live else binding.var)


def finders_of(func: relax.Function) -> dict[tirx.Var, relax.Var]:
    """What computes the extents that only running tells: by symbol, the binding that is the first to name it."""
    if not shape_symbols(func.params):
        return {}
    known = {s for p in tensors_of(func) for s in symbols_used(p)}
    finders: dict[tirx.Var, relax.Var] = {}
    for binding in op_bindings(func):
        for symbol in symbols_used(binding.value):
            if symbol not in known:
                finders.setdefault(symbol, binding.var)
    return finders


def bind_dims(mod: tvm.IRModule, extents: Mapping[str, int]) -> tvm.IRModule:
    """A new module that is ``mod``, in normal or grouped form, with the symbols named in ``extents`` replaced by
    numbers."""
    if not extents:
        return mod
    symbols: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}
    functions: dict[tvm.ir.GlobalVar, relax.Function] = {}
    for gv, func in mod.functions.items():
        if gv.name_hint != "main":
            symbols[gv] = tvm.ir.GlobalVar(gv.name_hint)
            functions[symbols[gv]] = _bound(func, extents, {})
            relax.expr._update_type(symbols[gv], functions[symbols[gv]].ty)
    return with_main(tvm.IRModule(functions, attrs=mod.attrs), _bound(mod["main"], extents, symbols))


def _bound(func: relax.Function, extents: Mapping[str, int],
           functions: Mapping[tvm.ir.GlobalVar, tvm.ir.GlobalVar]) -> relax.Function:
    replaced = {s: tirx.IntImm("int64", extents[s.name]) for s in symbols_of(func) if s.name in extents}
    params = []
    known: dict[Expr, Expr] = {}
    for param in func.params:
        ty = with_symbols(param.ty, replaced)
        if isinstance(ty, relax.ShapeType):
            rest = [v for v in ty.values if isinstance(v, tirx.Var)]
            params += [relax.Var(param.name, relax.ShapeType(rest))] if rest else []
        else:
            known[param] = relax.Var(param.name, ty)
            params.append(known[param])
    builder = GraphBuilder(params)
    for binding in op_bindings(func):
        value = with_symbols(substitute(binding.value, known), replaced)
        if isinstance(value, relax.Call) and value.op in functions:
            tensors = [a for a in value.args if not isinstance(a, relax.ShapeExpr)]
            shapes = [a.values for a in value.args if isinstance(a, relax.ShapeExpr)]
            rest = [v for values in shapes for v in values if isinstance(v, tirx.Var)]
            value = relax.Call(functions[value.op], [*tensors, *([relax.ShapeExpr(rest)] if rest else [])])
        known[binding.var] = builder.emit(value, binding.var.name)
    as_tuple = isinstance(func.ret_ty, relax.TupleType)
    return builder.finish([known[v] for v in outputs_of(func)], as_tuple=as_tuple, attrs=func.attrs)


def symbols_used(expr: Expr) -> list[tirx.Var]:
    """The symbols in a variable's type, or in the shapes, numbers and result type of a call, in order."""
    if isinstance(expr, relax.ShapeExpr):
        return list(dict.fromkeys(s for v in expr.values for s in symbols_in(as_dim(v))))
    if isinstance(expr, (relax.Call, relax.Tuple)) and not is_number(expr):
        parts = [*(expr.args if isinstance(expr, relax.Call) else expr.fields)]
        found = [s for p in parts for s in symbols_used(p)]
        return list(dict.fromkeys([*found, *(s for d in _dims_in(expr.ty) for s in symbols_in(d))]))
    if is_number(expr):
        return symbols_in(as_dim(expr))
    return list(dict.fromkeys(s for d in _dims_in(expr.ty) for s in symbols_in(d)))


def is_number(expr: Expr) -> bool:
    """Whether an argument is an extent or another scalar, not a tensor."""
    return isinstance(expr.ty, tvm.ir.PrimType)


def with_symbols(expr: Expr, replaced: Mapping[tirx.Var, Expr]) -> Expr:
    """A type, or the value of a binding of normal form, with symbols replaced by others or by numbers."""
    if not replaced:
        return expr

    def dim(value: Dim) -> Dim:
        used = {s: replaced[s] for s in symbols_in(as_dim(value)) if s in replaced}
        if not used:
            return value
        analyzer = Analyzer()
        for symbol, other in used.items():
            analyzer.bind(symbol, other)
        return as_dim(analyzer.simplify(value))

    if isinstance(expr, relax.TupleType):
        return relax.TupleType([with_symbols(f, replaced) for f in expr.fields])
    if isinstance(expr, relax.TensorType):
        return expr if expr.shape is None else relax.TensorType([dim(d) for d in expr.shape], expr.dtype)
    if isinstance(expr, relax.ShapeType):
        return relax.ShapeType([dim(v) for v in expr.values])
    if isinstance(expr, relax.ShapeExpr):
        return relax.ShapeExpr([dim(v) for v in expr.values])
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([with_symbols(f, replaced) for f in expr.fields])
    if isinstance(expr, relax.Call) and not is_number(expr):
        return relax.Call(expr.op, [with_symbols(a, replaced) for a in expr.args], expr.attrs, expr.ty_args)
    if not isinstance(expr, (relax.TupleGetItem, Constant)) and is_number(expr):
        value = dim(expr)
        return tirx.IntImm("int64", value) if isinstance(value, int) else value
    return expr


def with_main(mod: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    """A module that is ``mod`` with ``main`` replaced: a new one, or ``mod`` where that is its ``main`` already."""
    if "main" in mod and main.same_as(mod["main"]):
        return mod
    functions = {gv: f for gv, f in mod.functions.items() if gv.name_hint != "main"}
    functions[tvm.ir.GlobalVar("main")] = main.with_attr("global_symbol", "main")
    return tvm.IRModule(functions, attrs=mod.attrs)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a network.

    shape : extents; where one is symbolic, the symbol's name, or an expression of such (outputs only), as text.
    dtype : the element type, "float32", "int64" …
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @classmethod
    def of(cls, expr: Expr, name: str) -> TensorSpec:
        """The description of a tensor expression."""
        return cls(name, tuple(d if isinstance(d, int) else dim_text(d) for d in dims_of(expr)), dtype_of(expr))

    @property
    def is_static(self) -> bool:
        """Whether every extent is a number."""
        return all(isinstance(d, int) for d in self.shape)


@dataclass(frozen=True)
class Group:
    """A fusion group: the unit of decision, of cost, of code and of the report.

    name : the anchor's op name, which is also the name of the tensor the group computes.
    kind : what its anchor is, one of ``GROUP_KINDS``.
    function : the private Relax function; its constants (weights, biases) are inside its body.
    inputs : names of the tensors it reads, one for each of ``parameters``: other groups or model inputs.
    """

    name: str
    kind: str
    function: relax.Function
    inputs: tuple[str, ...]

    @property
    def parameters(self) -> list[relax.Var]:
        """The tensors that the function takes."""
        return tensors_of(self.function)

    @property
    def symbols(self) -> list[tirx.Var]:
        """The symbols that the function uses, in the order in which it takes them."""
        return shape_symbols(self.function.params)

    @property
    def bindings(self) -> list[relax.VarBinding]:
        return op_bindings(self.function)

    @property
    def anchor(self) -> relax.VarBinding:
        """The anchor's binding: the first op of the body that is not part of the prologue."""
        return next(b for b in self.bindings if b.var.name == self.name)

    @property
    def exact_inputs(self) -> tuple[int, ...]:
        """Indices of the parameters that the anchor itself multiplies: they must be stored in exactly the group's
        precision. Empty for kinds without multiply-adds; groups with an epilogue read all other parameters from
        whatever is stored."""
        if self.kind not in COMPUTE_KINDS:
            return ()
        data = self.anchor.value.args[: 3 if self.kind == "attention" else 2]
        return tuple(i for i, p in enumerate(self.parameters) if any(p.same_as(a) for a in data))


# Kinds whose anchor multiplies and adds: these are decided between the precisions.
COMPUTE_KINDS = ("conv", "depthwise", "matmul", "batched_matmul", "attention", "recurrent")
# Kinds that compute in FP32 whatever they read and write.
FLOAT_KINDS = ("softmax", "layer_norm", "rms_norm", "pool", "reduce", "elementwise")
# Kinds that only move elements: what they write has the storage of what they read.
MOVEMENT_KINDS = ("movement",)
# Everything else: float32 storage, code through TVM's legalization (or a kernel of its own).
OPAQUE_KINDS = ("opaque",)
# Kinds that elementwise ops join, and that write any storages; what a recurrent layer computes is a tuple of float32.
EPILOGUE_KINDS = tuple(kind for kind in COMPUTE_KINDS if kind != "recurrent") + FLOAT_KINDS
# Kinds of one op, which may compute a tuple.
SINGLE_KINDS = (*OPAQUE_KINDS, "recurrent")
GROUP_KINDS = COMPUTE_KINDS + FLOAT_KINDS + MOVEMENT_KINDS + OPAQUE_KINDS


def groups_of(mod: tvm.IRModule) -> list[Group]:
    """The fusion groups of a module in grouped form, in execution order."""
    groups = []
    for binding in op_bindings(mod["main"]):
        call = binding.value
        if isinstance(call, relax.TupleGetItem):
            continue
        function = mod[call.op]
        groups.append(
            Group(
                name=binding.var.name,
                kind=str(function.attrs["group"]),
                function=function,
                inputs=tuple(arg.name for arg in call.args if isinstance(arg, relax.Var)),
            )
        )
    return groups
