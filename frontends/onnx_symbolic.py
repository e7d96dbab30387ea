"""Evaluates ONNX nodes on arrays whose elements are expressions over symbols: what is computed from shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import tirx

from ..dims import analyzer_of, as_dim, is_equal_dim, simplified
from ..errors import ImportModelError
from .limits import MAX_SYMBOLIC
from .onnx_constants import evaluate
from .onnx_ops import OnnxNode, normal_dtype
from .symbolic_array import (
    Element,
    Inexact,
    Ratio,
    SymbolicArray,
    elements_of,
    is_expression,
    known_array,
    map_elements,
)

Known = np.ndarray | SymbolicArray | None

# Inputs that are moved; the others say where to.
_MOVES: dict[str, Callable[[int], range]] = {
    **dict.fromkeys(("Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose", "Expand", "Tile",
                     "Split", "GatherND", "GatherElements", "Identity", "Compress"), lambda count: range(1)),
    "Concat": range,
}
_INTEGERS = ("int32", "int64")


def evaluate_symbolic(node: onnx.NodeProto, resolved: OnnxNode,
                      inputs: Sequence[Known]) -> tuple[np.ndarray | SymbolicArray, ...] | None:
    """The results of ``node`` on known inputs some of which have symbols; None where they are no such arrays, or have
    too many elements."""
    if sum(v.size for v in inputs if v is not None) > MAX_SYMBOLIC:
        return None
    try:
        if node.op_type in _MOVES:
            return _moved(node, resolved, inputs)
        function = _FUNCTIONS.get(node.op_type)
        return None if function is None else (function(resolved, inputs),)
    except Inexact:
        return None


def _moved(node: onnx.NodeProto, resolved: OnnxNode,
           inputs: Sequence[Known]) -> tuple[np.ndarray | SymbolicArray, ...] | None:
    """Numbers that stand for the elements are moved in their place."""
    places = _MOVES[node.op_type](len(inputs))
    if any(isinstance(v, SymbolicArray) and i not in places for i, v in enumerate(inputs)):
        return None
    elements: list[Element] = []
    numbered: list[np.ndarray | None] = []
    dtype = ""
    for i, value in enumerate(inputs):
        if i in places and value is not None:
            flat = elements_of(value).reshape(-1)
            numbered.append(np.arange(len(elements), len(elements) + flat.size, dtype=np.int64).reshape(value.shape))
            elements.extend(flat)
            dtype = dtype or str(value.dtype)
        else:
            numbered.append(value if isinstance(value, np.ndarray) else None)
    results = evaluate(node, resolved.opset, numbered, resolved.label, MAX_SYMBOLIC * 8)
    return tuple(known_array([elements[i] for i in r.reshape(-1)], r.shape, dtype) for r in results)


def _dtype(inputs: Sequence[Known], index: int = 0) -> str:
    value = inputs[index]
    if value is None:
        raise Inexact
    return normal_dtype(value.dtype) or str(value.dtype)


def _given(inputs: Sequence[Known]) -> list[np.ndarray | SymbolicArray]:
    return [v for v in inputs if v is not None]


def _arithmetic(integers: Callable[[Any, Any], Element], floats: Callable[[Ratio, Ratio], Element]) -> _Function:
    """A function of two integers, and of two ratios."""

    def apply(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
        dtype = _dtype(inputs)
        if dtype in _INTEGERS:
            function = integers
        elif dtype == "float32":
            def function(a: Any, b: Any) -> Element:
                return floats(Ratio.of(a), Ratio.of(b))
        else:
            raise Inexact
        return reduce(lambda a, b: map_elements(function, (a, b), dtype), _given(inputs))

    return apply


_Function = Callable[[OnnxNode, Sequence[Known]], "np.ndarray | SymbolicArray"]


def _add_ratios(a: Ratio, b: Ratio) -> Ratio:
    return Ratio(as_dim(a.numerator) * b.denominator + as_dim(b.numerator) * a.denominator,
                 a.denominator * b.denominator)


def _negative(a: Ratio) -> Ratio:
    return Ratio(0 - as_dim(a.numerator), a.denominator)


def _divide_ratios(a: Ratio, b: Ratio) -> Element:
    """By a number, or by what the dividend is a multiple of."""
    if isinstance(b.numerator, int):
        if b.numerator == 0:
            raise Inexact
        sign = 1 if b.numerator > 0 else -1
        return Ratio(as_dim(a.numerator) * b.denominator * sign, a.denominator * abs(b.numerator))
    for factor in (1, 2, 3, 4, 8, 16, 32):
        if is_equal_dim(as_dim(a.numerator) * b.denominator, factor * b.numerator * a.denominator):
            return float(factor)
        if is_equal_dim(factor * as_dim(a.numerator) * b.denominator, b.numerator * a.denominator):
            return 1.0 / factor
    raise Inexact


def _is_non_negative(value: Any) -> bool:
    return value >= 0 if isinstance(value, int) else bool(analyzer_of(value).can_prove(value >= 0))


def _divide(a: Any, b: Any) -> Element:
    """Towards zero."""
    if isinstance(b, int) and b == 0:
        raise Inexact
    if not is_expression(a) and not is_expression(b):
        return a // b if (a < 0) == (b < 0) else -(-a // b)
    if _is_non_negative(a) and _is_non_negative(b):
        return tirx.floordiv(a, b)
    return tirx.truncdiv(a, b)


def _modulo(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
    if _dtype(inputs) not in _INTEGERS or node.attribute("fmod", 0):
        raise Inexact
    return map_elements(lambda a, b: tirx.floormod(a, b) if is_expression(a) or is_expression(b) else a % b,
                        _given(inputs), _dtype(inputs))


def _least(a: Any, b: Any) -> Element:
    return tirx.min(a, b) if is_expression(a) or is_expression(b) else min(a, b)


def _greatest(a: Any, b: Any) -> Element:
    return tirx.max(a, b) if is_expression(a) or is_expression(b) else max(a, b)


def _inexact(a: Ratio, b: Ratio) -> Element:
    raise Inexact


def _unary(integers: Callable[[Any], Element], floats: Callable[[Ratio], Element]) -> _Function:
    def apply(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
        dtype = _dtype(inputs)
        if dtype in _INTEGERS:
            return map_elements(integers, inputs[:1], dtype)  # type: ignore[arg-type]
        if dtype != "float32":
            raise Inexact
        return map_elements(lambda e: floats(Ratio.of(e)), inputs[:1], dtype)  # type: ignore[arg-type]

    return apply


def _floor(a: Ratio) -> Ratio:
    return Ratio(simplified(tirx.floordiv(a.numerator, a.denominator)) if is_expression(a.numerator)
                 else a.numerator // a.denominator, 1)


def _ceil(a: Ratio) -> Ratio:
    return _floor(Ratio(as_dim(a.numerator) + (a.denominator - 1), a.denominator))


def _magnitude(a: Any) -> Element:
    if _is_non_negative(a):
        return a
    raise Inexact


def _magnitude_of_ratio(a: Ratio) -> Element:
    _magnitude(as_dim(a.numerator))
    return a


def _cast(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
    source = _dtype(inputs)
    if node.op == "CastLike":
        target = node.dtype(1)
    else:
        target = normal_dtype(helper.tensor_dtype_to_np_dtype(node.attribute("to", 0))) or ""
    if target == "bool" and source in _INTEGERS:
        return map_elements(lambda e: _compare("NE", e, 0), inputs[:1], "bool")  # type: ignore[arg-type]
    if target not in (*_INTEGERS, "float32"):
        raise Inexact

    def convert(e: Any) -> Element:
        if target == "float32":
            return Ratio.of(tirx.Select(e, tirx.IntImm("int64", 1), tirx.IntImm("int64", 0))
                            if source == "bool" and is_expression(e) else e)
        if isinstance(e, Ratio):
            if not _is_non_negative(e.numerator):
                raise Inexact
            return _floor(e).numerator
        if source == "bool" and is_expression(e):
            return tirx.Select(e, tirx.IntImm("int64", 1), tirx.IntImm("int64", 0))
        return e if is_expression(e) else int(e)

    return map_elements(convert, inputs[:1], target)  # type: ignore[arg-type]


_COMPARISONS = {"Equal": "EQ", "Less": "LT", "Greater": "GT", "LessOrEqual": "LE", "GreaterOrEqual": "GE"}


def _compare(relation: str, a: Any, b: Any) -> Element:
    """True or false where that is provable, else the condition."""
    if isinstance(a, Ratio) or isinstance(b, Ratio):
        left, right = Ratio.of(a), Ratio.of(b)
        a, b = as_dim(left.numerator) * right.denominator, as_dim(right.numerator) * left.denominator
    if not is_expression(a) and not is_expression(b):
        return bool({"EQ": a == b, "NE": a != b, "LT": a < b, "GT": a > b, "LE": a <= b, "GE": a >= b}[relation])
    left, right = (e if is_expression(e) else tirx.IntImm("int64", int(e)) for e in (a, b))
    condition, opposite = (getattr(tirx, name)(left, right) for name in (relation, _OPPOSITES[relation]))
    analyzer = analyzer_of(left, right)
    if analyzer.can_prove(condition):
        return True
    return False if analyzer.can_prove(opposite) else condition


_OPPOSITES = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}


def _comparison(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
    if _dtype(inputs) not in (*_INTEGERS, "float32"):
        raise Inexact
    return map_elements(lambda a, b: _compare(_COMPARISONS[node.op], a, b), _given(inputs), "bool")


def _logic(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
    def apply(a: Any, b: Any = None) -> Element:
        if node.op == "Not":
            return tirx.Not(a) if is_expression(a) else not a
        absorbing = node.op == "Or"
        for one, other in ((a, b), (b, a)):
            if not is_expression(one):
                return absorbing if bool(one) is absorbing else other
        return (tirx.Or if absorbing else tirx.And)(a, b)

    return map_elements(apply, _given(inputs), "bool")


def _where(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
    dtype = _dtype(inputs, 1)

    def choose(condition: Any, a: Any, b: Any) -> Element:
        if not is_expression(condition):
            return a if condition else b
        if dtype not in _INTEGERS:
            raise Inexact
        return tirx.Select(condition, *(e if is_expression(e) else tirx.IntImm("int64", int(e)) for e in (a, b)))

    return map_elements(choose, _given(inputs), dtype)


def _reduction(function: Callable[[Any, Any], Element]) -> _Function:
    """Over all elements of integers: what models do with shapes."""

    def apply(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray | SymbolicArray:
        value = inputs[0]
        axes = node.integers(1, "axes", "axes")
        if not isinstance(value, SymbolicArray) or value.dtype not in _INTEGERS or not value.elements.size:
            raise Inexact
        rank = len(value.shape)
        if not axes and node.attribute("noop_with_empty_axes", 0):
            return value
        if axes and len(node.axes(axes, rank)) != rank:
            raise Inexact
        result = reduce(function, value.elements.reshape(-1))
        return known_array([result], (1,) * rank if node.attribute("keepdims", 1) else (), value.dtype)

    return apply


def _measured(node: OnnxNode, inputs: Sequence[Known]) -> np.ndarray:
    """The shape of a known array is known."""
    if inputs[0] is None:
        raise ImportModelError(f"{node.op}: input 0 is missing", layer=node.label)
    shape = inputs[0].shape
    if node.op == "Size":
        return np.asarray(math.prod(shape), np.int64)
    return np.asarray(shape[slice(node.attribute("start", 0), node.attribute("end"))], np.int64)


_FUNCTIONS: dict[str, _Function] = {
    "Add": _arithmetic(lambda a, b: a + b, _add_ratios),
    "Sum": _arithmetic(lambda a, b: a + b, _add_ratios),
    "Sub": _arithmetic(lambda a, b: a - b, lambda a, b: _add_ratios(a, _negative(b))),
    "Mul": _arithmetic(lambda a, b: a * b, lambda a, b: Ratio(as_dim(a.numerator) * b.numerator,
                                                              a.denominator * b.denominator)),
    "Div": _arithmetic(_divide, _divide_ratios),
    "Min": _arithmetic(_least, _inexact),
    "Max": _arithmetic(_greatest, _inexact),
    "Mod": _modulo,
    "Neg": _unary(lambda a: 0 - a, _negative),
    "Abs": _unary(_magnitude, _magnitude_of_ratio),
    "Floor": _unary(lambda a: a, _floor),
    "Ceil": _unary(lambda a: a, _ceil),
    "Cast": _cast,
    "CastLike": _cast,
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(("And", "Or", "Not"), _logic),
    "Where": _where,
    "ReduceProd": _reduction(lambda a, b: a * b),
    "ReduceSum": _reduction(lambda a, b: a + b),
    "ReduceMax": _reduction(_greatest),
    "ReduceMin": _reduction(_least),
    "Shape": _measured,
    "Size": _measured,
}
