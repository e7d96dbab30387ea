"""Models whose operators have impossible operands or attributes, by name: builder, class of the error, what it says."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from narrowcast.errors import ImportModelError, UnsupportedOperatorError

from .building import floats, image, ints, model, node, real
from .cases import Cases

_CONV = floats(4, 3, 3, 3)
_INF, _NAN = float("inf"), float("nan")


def _doubled(*first: onnx.NodeProto, times: int = 40, **weights: np.ndarray) -> onnx.ModelProto:
    """``v0`` joined to itself again and again."""
    nodes = [node("Concat", f"v{i},v{i}", f"v{i + 1}", axis=0) for i in range(times)]
    return model(*first, *nodes, node("Relu", f"v{times}"), **weights)


def _constants(count: int, elements: int) -> onnx.ModelProto:
    """The sum of ``count`` computed constants."""
    made = [node("ConstantOfShape", "s", f"c{i}", value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0]))
            for i in range(count)]
    sums = [node("Add", f"{'x' if i == 0 else f'a{i}'},c{i}", f"a{i + 1}") for i in range(count)]
    return model(*made, *sums, node("Relu", f"a{count}"), shape=(1,), s=ints(elements))


def _range(start: float, limit: float, delta: float, dtype: type = np.float32) -> onnx.ModelProto:
    return model(node("Range", "a,b,c"), a=np.asarray(start, dtype), b=np.asarray(limit, dtype),
                 c=np.asarray(delta, dtype))


def _quantize(scale: np.ndarray, zero: np.ndarray, **attributes: object) -> onnx.ModelProto:
    return model(node("QuantizeLinear", "x,s,z", "q", **attributes), node("DequantizeLinear", "q,s,z", **attributes),
                 s=scale, z=zero)


def _resize(scales: np.ndarray | None = None, sizes: np.ndarray | None = None, **attributes: object) -> onnx.ModelProto:
    weights = {"s": scales} if scales is not None else {"t": sizes}
    return image(node("Resize", "x,,s" if scales is not None else "x,,,t", **attributes), **weights)


def _of_a_function() -> onnx.ModelProto:
    """An operator on the boolean that a function of the model's own returns."""
    body = helper.make_function("own", "f", ["a"], ["b"], [helper.make_node("Greater", ["a", "a"], ["b"])],
                                [helper.make_opsetid("", 20)])
    graph = model(helper.make_node("f", ["x"], ["t"], domain="own"), node("PRelu", "t,s"), s=floats(1)).graph
    return helper.make_model(graph, functions=[body], ir_version=10,
                             opset_imports=[helper.make_opsetid("own", 1), helper.make_opsetid("", 20)])


_SIZES: Cases = {
    "operator on what a function returns": (_of_a_function, ImportModelError,
                                            "the_PRelu: .*types that the operator does not take"),
    "operator newer than the opset, on another type": (
        lambda: model(node("BitwiseNot", "c", "b"), node("Cast", "b", to=1), opset=14, c=floats(5)), ImportModelError,
        "the_BitwiseNot: .*types that the operator does not take"),
    "operator newer than the opset, with an input too many": (
        lambda: model(node("BitwiseNot", "c,c", "b"), node("Cast", "b", to=1), opset=14, c=ints(5)), ImportModelError,
        "the_BitwiseNot.*definition"),
    "input of a quadrillion elements": (lambda: model(node("Relu", "x"), shape=(2 ** 25, 2 ** 25)), ImportModelError,
                                        "x: .*(shape|elements|large)"),
    "input whose size overflows": (lambda: model(node("Relu", "x"), shape=(2 ** 40, 2 ** 40)), ImportModelError,
                                   "x: .*(shape|elements|large)"),
    "input of a hundred dimensions": (lambda: model(node("Relu", "x"), shape=(1,) * 100), ImportModelError, "x: "),
    "constant too large": (lambda: model(node("ConstantOfShape", "s"), s=ints(2 ** 40, 2 ** 20)), ImportModelError,
                           "the_ConstantOfShape.*impossible size"),
    "constant of a negative size": (lambda: model(node("ConstantOfShape", "s"), s=ints(-3, 4)), ImportModelError,
                                    "the_ConstantOfShape"),
    "constant whose size overflows": (lambda: model(node("ConstantOfShape", "s"), s=ints(2 ** 62, 4)), ImportModelError,
                                      "the_ConstantOfShape"),
    "many large constants": (lambda: _constants(40, 2 ** 25), ImportModelError, "the_ConstantOfShape.*impossible size"),
    "input doubled forty times": (lambda: _doubled(node("Relu", "x", "v0")), ImportModelError,
                                  "the_Concat.*impossible shape"),
    "constant doubled forty times": (lambda: _doubled(v0=floats(2, 3)), ImportModelError,
                                     "the_Concat.*impossible size"),
    "sum of nothing with a billion results": (lambda: model(node("ReduceSum", "x,a"), shape=(0, 2 ** 30), a=ints(0)),
                                              UnsupportedOperatorError, "the_ReduceSum"),
    "frames of a quintillion": (
        lambda: model(node("STFT", "x,s,,l"), shape=(1, 2 ** 20, 1), s=np.asarray(1), l=np.asarray(2 ** 14)),
        UnsupportedOperatorError, "the_STFT"),
    "window of a billion": (lambda: model(node("HannWindow", "n"), n=np.asarray(2 ** 30)), ImportModelError,
                            "the_HannWindow"),
    "range too long": (lambda: _range(0, 2 ** 50, 1, np.int64), ImportModelError, "the_Range.*impossible size"),
    "range that never ends": (lambda: _range(0, 9, 0, np.int64), ImportModelError, "the_Range"),
    "range of tiny steps": (lambda: _range(0, 1e30, 1e-30), ImportModelError, "the_Range"),
    "range to infinity": (lambda: _range(0, _INF, 1), ImportModelError, "the_Range"),
    "range of no numbers": (lambda: _range(_NAN, 1, 1), ImportModelError, "the_Range"),
    "constant tiled too often": (lambda: model(node("Tile", "w,r"), w=floats(8), r=ints(2 ** 40)), ImportModelError,
                                 "the_Tile.*impossible size"),
    "input tiled too often": (lambda: model(node("Tile", "x,r"), r=ints(2 ** 40, 2 ** 40)), ImportModelError,
                              "the_Tile.*impossible shape"),
    "negative repeats": (lambda: model(node("Tile", "x,r"), r=ints(-1, 2)), ImportModelError, "the_Tile.*repeats"),
    "expand too large": (lambda: model(node("Expand", "x,s"), s=ints(2 ** 50, 1, 1)), ImportModelError,
                         "the_Expand.*impossible shape"),
    "expand that does not broadcast": (lambda: model(node("Expand", "x,s"), s=ints(4, 4)), ImportModelError,
                                       "the_Expand"),
    "pad too wide": (lambda: model(node("Pad", "x,p"), p=ints(0, 2 ** 50, 0, 0)), ImportModelError,
                     "the_Pad.*(shape|widths)"),
    "pad whose width overflows": (lambda: model(node("Pad", "x,p"), p=ints(0, 2 ** 63 - 1, 0, 2 ** 63 - 1)),
                                  ImportModelError, "the_Pad"),
    "reflection wider than the input": (lambda: model(node("Pad", "x,p", mode="reflect"), p=ints(5, 5, 5, 5)),
                                        ImportModelError, "the_Pad"),
    "one hot of a trillion": (lambda: model(node("OneHot", "i,d,v"), kind=TensorProto.FLOAT, i=ints(1),
                                            d=ints(2 ** 40), v=real(0, 1)), ImportModelError, "the_OneHot"),
    "one hot of the input of a trillion": (
        lambda: model(node("OneHot", "x,d,v"), d=ints(2 ** 40), v=real(0, 1)), ImportModelError, "the_OneHot"),
    "one hot of a negative depth": (lambda: model(node("OneHot", "x,d,v"), d=ints(-4), v=real(0, 1)), ImportModelError,
                                    "the_OneHot.*depth"),
    "resize by a billion": (lambda: _resize(real(1, 1, 1e9, 1e9)), ImportModelError, "the_Resize"),
    "resize by infinity": (lambda: _resize(real(1, 1, _INF, 2)), ImportModelError, "the_Resize"),
    "resize by no number": (lambda: _resize(real(1, 1, _NAN, 2)), ImportModelError, "the_Resize"),
    "resize backwards": (lambda: _resize(real(1, 1, -2, 2)), ImportModelError, "the_Resize"),
    "resize to nothing": (lambda: _resize(real(1, 1, 1e-9, 2)), ImportModelError, "the_Resize"),
    "resize to a negative size": (lambda: _resize(sizes=ints(1, 3, -8, 8)), ImportModelError, "the_Resize"),
    "resize to an impossible size": (lambda: _resize(sizes=ints(1, 3, 2 ** 40, 2)), ImportModelError, "the_Resize"),
    "places of another batch": (lambda: image(node("GridSample", "x,g"), g=floats(2, 4, 4, 2)), ImportModelError,
                                "the_GridSample.*batch"),
    "places in another space": (lambda: image(node("GridSample", "x,g"), g=floats(1, 4, 4, 3)), ImportModelError,
                                "the_GridSample"),
    "identity of a trillion": (lambda: model(node("EyeLike", "x"), shape=(2 ** 15, 2 ** 15)), ImportModelError,
                               "the_EyeLike"),
    "depth to space in blocks of a trillion": (lambda: image(node("DepthToSpace", "x", blocksize=2 ** 40)),
                                               ImportModelError, "the_DepthToSpace"),
    "depth to space in blocks of nothing": (lambda: image(node("DepthToSpace", "x", blocksize=0)), ImportModelError,
                                            "the_DepthToSpace"),
    "space to depth in negative blocks": (lambda: image(node("SpaceToDepth", "x", blocksize=-2)), ImportModelError,
                                          "the_SpaceToDepth"),
}

_INDICES: Cases = {
    "gather out of range": (lambda: model(node("Gather", "x,i"), i=ints(5)), ImportModelError, "the_Gather.*range"),
    "gather far out of range": (lambda: model(node("Gather", "x,i"), i=ints(-2 ** 63)), ImportModelError,
                                "the_Gather.*range"),
    "gather of constants out of range": (
        lambda: model(node("Gather", "w,i", "c"), node("Add", "x,c"), w=floats(3), i=ints(1, -9)), ImportModelError,
        "the_Gather"),
    "gather by real numbers": (lambda: model(node("Gather", "x,i"), i=real(0.5)), ImportModelError, "the_Gather"),
    "gather elements out of range": (lambda: model(node("GatherElements", "x,i", axis=1), i=ints(3, 0)[None]),
                                     ImportModelError, "the_GatherElements.*range"),
    "gather elements beyond another axis": (lambda: model(node("GatherElements", "x,i"), i=np.zeros((2, 9), np.int64)),
                                            ImportModelError, "the_GatherElements"),
    "gather nd out of range": (lambda: model(node("GatherND", "x,i"), i=ints(0, 3)[None]), ImportModelError,
                               "the_GatherND.*range"),
    "gather nd of too many indices": (lambda: model(node("GatherND", "x,i"), i=ints(0, 0, 0)[None]), ImportModelError,
                                      "the_GatherND"),
    "gather nd with negative batch axes": (lambda: model(node("GatherND", "x,i", batch_dims=-1), i=ints(0)[None]),
                                           ImportModelError, "the_GatherND"),
    "gather nd with other batches": (lambda: model(node("GatherND", "x,i", batch_dims=1), i=np.zeros((7, 1), np.int64)),
                                     ImportModelError, "the_GatherND"),
    "scatter out of range": (lambda: model(node("ScatterND", "x,i,u"), i=ints(2)[None], u=floats(1, 3)),
                             ImportModelError, "the_ScatterND.*range"),
    "scatter of too few updates": (lambda: model(node("ScatterND", "x,i,u"), i=ints(0, 1)[:, None], u=floats(1, 3)),
                                   ImportModelError, "the_ScatterND"),
    "scatter of updates of another shape": (lambda: model(node("ScatterND", "x,i,u"), i=ints(0)[None], u=floats(1, 2)),
                                            ImportModelError, "the_ScatterND"),
    "scatter elements of too few updates": (
        lambda: model(node("ScatterElements", "x,i,u"), i=np.zeros((2, 3), np.int64), u=floats(1, 3)),
        ImportModelError, "the_ScatterElements"),
    "scatter by an unknown reduction": (
        lambda: model(node("ScatterND", "x,i,u", reduction="frob"), i=ints(0)[None], u=floats(1, 3)), ImportModelError,
        "the_ScatterND"),
    "axis out of range": (lambda: model(node("Softmax", "x", axis=5)), ImportModelError, "the_Softmax.*axis"),
    "axis far out of range": (lambda: model(node("Concat", "x,x", axis=-2 ** 63)), ImportModelError,
                              "the_Concat.*axis"),
    "axis twice": (lambda: model(node("ReduceSum", "x,a"), a=ints(0, -2)), ImportModelError, "the_ReduceSum.*twice"),
    "reduction over an axis that is not there": (lambda: model(node("ReduceMax", "x,a"), a=ints(2)), ImportModelError,
                                                 "the_ReduceMax.*axis"),
    "argmax over an axis that is not there": (lambda: model(node("ArgMax", "x", axis=-7)), ImportModelError,
                                              "the_ArgMax.*axis"),
    "permutation with a repeat": (lambda: model(node("Transpose", "x", perm=[0, 0])), ImportModelError,
                                  "the_Transpose.*twice"),
    "permutation that is too short": (lambda: model(node("Transpose", "x", perm=[0])), ImportModelError,
                                      "the_Transpose"),
    "permutation out of range": (lambda: model(node("Transpose", "x", perm=[0, 2])), ImportModelError,
                                 "the_Transpose.*axis"),
    "flatten beyond the rank": (lambda: model(node("Flatten", "x", axis=7)), ImportModelError, "the_Flatten.*axis"),
    "squeeze of what is not 1": (lambda: model(node("Squeeze", "x,a"), a=ints(0)), ImportModelError,
                                 "the_Squeeze.*(1|differ)"),
    "unsqueeze at one place twice": (lambda: model(node("Unsqueeze", "x,a"), a=ints(0, 0)), ImportModelError,
                                     "the_Unsqueeze.*twice"),
    "unsqueeze to a thousand dimensions": (lambda: model(node("Unsqueeze", "x,a"), a=ints(*range(1000))),
                                           ImportModelError, "the_Unsqueeze"),
    "reshape to another size": (lambda: model(node("Reshape", "x,s"), s=ints(4, 4)), ImportModelError,
                                "the_Reshape.*elements"),
    "reshape with two unknowns": (lambda: model(node("Reshape", "x,s"), s=ints(-1, -1)), ImportModelError,
                                  "the_Reshape.*shape"),
    "reshape to a negative extent": (lambda: model(node("Reshape", "x,s"), s=ints(-6, -1)), ImportModelError,
                                     "the_Reshape.*shape"),
    "reshape whose size overflows": (lambda: model(node("Reshape", "x,s"), s=ints(2 ** 62, 2 ** 62)), ImportModelError,
                                     "the_Reshape"),
    "reshape that copies too much": (lambda: model(node("Reshape", "x,s"), s=ints(0, 0, 0)), ImportModelError,
                                     "the_Reshape.*copies"),
    "reshape by a matrix of real numbers": (lambda: model(node("Reshape", "x,s"), s=real(3, 2)), ImportModelError,
                                            "the_Reshape"),
    "slice in steps of 0": (lambda: model(node("Slice", "x,a,b,c,d"), a=ints(0), b=ints(2), c=ints(0), d=ints(0)),
                            ImportModelError, "the_Slice.*step"),
    "slice with fewer ends": (lambda: model(node("Slice", "x,a,b"), a=ints(0, 0), b=ints(2)), ImportModelError,
                              "the_Slice"),
    "slice of an axis twice": (lambda: model(node("Slice", "x,a,b,c"), a=ints(0, 0), b=ints(1, 1), c=ints(0, -2)),
                               ImportModelError, "the_Slice.*twice"),
    "slice by real numbers": (lambda: model(node("Slice", "x,a,b"), a=real(0.5), b=real(1.5)), ImportModelError,
                              "the_Slice"),
    "split that does not add up": (lambda: model(node("Split", "x,s", "y,z", axis=1), s=ints(1, 1)), ImportModelError,
                                   "the_Split"),
    "split into a negative part": (lambda: model(node("Split", "x,s", "y,z", axis=1), s=ints(4, -1)), ImportModelError,
                                   "the_Split"),
    "split into fewer parts": (lambda: model(node("Split", "x,s", "y,z", axis=1), s=ints(3)), ImportModelError,
                               "the_Split"),
    "split into no parts": (lambda: model(node("Split", "x", "y", num_outputs=0)), ImportModelError, "the_Split"),
    "split into a trillion parts": (lambda: model(node("Split", "x", "y", num_outputs=2 ** 40)), ImportModelError,
                                    "the_Split"),
    "k too large": (lambda: model(node("TopK", "x,k", "y,i"), k=ints(99)), ImportModelError, "the_TopK"),
    "k negative": (lambda: model(node("TopK", "x,k", "y,i"), k=ints(-1)), ImportModelError, "the_TopK"),
    "two ks": (lambda: model(node("TopK", "x,k", "y,i"), k=ints(1, 2)), ImportModelError, "the_TopK"),
    "sequence longer than its axis": (
        lambda: model(node("ReverseSequence", "x,s", batch_axis=0, time_axis=1), s=ints(99, 1)), ImportModelError,
        "the_ReverseSequence.*range"),
    "sequences of another batch": (
        lambda: model(node("ReverseSequence", "x,s", batch_axis=0, time_axis=1), s=ints(1, 1, 1, 1)), ImportModelError,
        "the_ReverseSequence"),
    "sequences along their batch": (
        lambda: model(node("ReverseSequence", "x,s", batch_axis=1, time_axis=1), s=ints(1, 1)), ImportModelError,
        "the_ReverseSequence"),
    "condition longer than its axis": (
        lambda: model(node("Compress", "x,c", axis=0), c=np.asarray([False, False, True])), ImportModelError,
        "the_Compress"),
    "position beyond the table": (
        lambda: model(node("RotaryEmbedding", "x,c,s,p"), opset=23, shape=(1, 2, 1, 4), c=floats(3, 2), s=floats(3, 2),
                      p=ints(7)[None]), ImportModelError, "the_RotaryEmbedding"),
}

_WINDOWS: Cases = {
    "stride of zero": (lambda: image(node("Conv", "x,w", strides=[0, 1]), w=_CONV), ImportModelError,
                       "the_Conv.*strides"),
    "stride that overflows": (lambda: image(node("Conv", "x,w", strides=[2 ** 62, 2 ** 62], pads=[2 ** 62] * 4),
                                            w=_CONV), ImportModelError, "the_Conv"),
    "negative stride": (lambda: image(node("MaxPool", "x", kernel_shape=[2, 2], strides=[-1, 1])), ImportModelError,
                        "the_MaxPool.*strides"),
    "dilation of zero": (lambda: image(node("Conv", "x,w", dilations=[0, 0]), w=_CONV), ImportModelError,
                         "the_Conv.*dilations"),
    "dilation of a quintillion": (lambda: image(node("Conv", "x,w", dilations=[2 ** 62, 1]), w=_CONV), ImportModelError,
                                  "the_Conv"),
    "padding of a quintillion": (lambda: image(node("Conv", "x,w", pads=[2 ** 62] * 4), w=_CONV), ImportModelError,
                                 "the_Conv"),
    "negative padding": (lambda: image(node("Conv", "x,w", pads=[-4] * 4), w=_CONV), ImportModelError,
                         "the_Conv.*pads"),
    "padding of three numbers": (lambda: image(node("Conv", "x,w", pads=[1] * 3), w=_CONV), ImportModelError,
                                 "the_Conv"),
    "kernel of another shape": (lambda: image(node("Conv", "x,w", kernel_shape=[5, 5]), w=_CONV), ImportModelError,
                                "the_Conv.*kernel"),
    "kernel of nothing": (lambda: image(node("Conv", "x,w"), w=floats(4, 3, 0, 3)), ImportModelError, "the_Conv"),
    "weight of another rank": (lambda: image(node("Conv", "x,w"), w=floats(4, 3, 3)), ImportModelError, "the_Conv"),
    "zero groups": (lambda: image(node("Conv", "x,w", group=0), w=_CONV), ImportModelError, "the_Conv.*groups"),
    "negative groups": (lambda: image(node("Conv", "x,w", group=-1), w=_CONV), ImportModelError, "the_Conv.*groups"),
    "groups that do not divide": (lambda: image(node("Conv", "x,w", group=2), w=_CONV), ImportModelError,
                                  "the_Conv.*groups"),
    "wrong channels": (lambda: image(node("Conv", "x,w"), channels=5, w=_CONV), ImportModelError, "the_Conv.*channels"),
    "bias of another length": (lambda: image(node("Conv", "x,w,b"), w=_CONV, b=floats(7)), ImportModelError,
                               "the_Conv"),
    "kernel larger than the image": (lambda: image(node("Conv", "x,w"), size=2, w=floats(4, 3, 5, 5)), ImportModelError,
                                     "the_Conv"),
    "padding by an unknown rule": (lambda: image(node("Conv", "x,w", auto_pad="SAME_SIDEWAYS"), w=_CONV),
                                   ImportModelError, "the_Conv.*auto_pad"),
    "all of the result padded away": (lambda: image(node("ConvTranspose", "x,w", pads=[50] * 4), w=floats(3, 4, 3, 3)),
                                      ImportModelError, "the_ConvTranspose"),
    "transposed stride of a trillion": (
        lambda: image(node("ConvTranspose", "x,w", strides=[2 ** 40, 2 ** 40]), w=floats(3, 4, 3, 3)), ImportModelError,
        "the_ConvTranspose"),
    "transposed output of a trillion": (
        lambda: image(node("ConvTranspose", "x,w", output_shape=[2 ** 40, 2 ** 40]), w=floats(3, 4, 3, 3)),
        ImportModelError, "the_ConvTranspose"),
    "output padding of a trillion": (
        lambda: image(node("ConvTranspose", "x,w", output_padding=[2 ** 40, 0]), w=floats(3, 4, 3, 3)),
        ImportModelError, "the_ConvTranspose"),
    "pooling window of nothing": (lambda: image(node("MaxPool", "x", kernel_shape=[0, 0])), ImportModelError,
                                  "the_MaxPool.*kernel_shape"),
    "pooling window of a trillion": (lambda: image(node("AveragePool", "x", kernel_shape=[2 ** 40] * 2)),
                                     ImportModelError, "the_AveragePool"),
    "pooling window of two trillion paddings": (
        lambda: image(node("AveragePool", "x", kernel_shape=[2 ** 40] * 2, pads=[2 ** 39] * 4)), ImportModelError,
        "the_AveragePool"),
    "pooling window without a shape": (lambda: image(node("MaxPool", "x")), ImportModelError, "the_MaxPool"),
    "pooling padded beyond its window": (lambda: image(node("MaxPool", "x", kernel_shape=[2, 2], pads=[9] * 4)),
                                         ImportModelError, "the_MaxPool.*padding"),
    "pooling of a matrix": (lambda: model(node("MaxPool", "x", kernel_shape=[1])), UnsupportedOperatorError,
                            "the_MaxPool"),
    "neighbourhood of a trillion channels": (lambda: image(node("LRN", "x", size=2 ** 40)), ImportModelError,
                                             "the_LRN.*size"),
    "neighbourhood of no channels": (lambda: image(node("LRN", "x", size=0)), ImportModelError, "the_LRN.*size"),
}

_ALGEBRA: Cases = {
    "shapes that do not broadcast": (lambda: model(node("Add", "x,w"), w=floats(7)), ImportModelError, "the_Add.*fit"),
    "numbers of two types": (lambda: model(node("Add", "x,w"), w=ints(1, 2, 3)), ImportModelError, "the_Add"),
    "logic of numbers": (lambda: model(node("And", "x,x")), ImportModelError, "the_And.*types"),
    "matrices that do not fit": (lambda: model(node("MatMul", "x,w"), w=floats(4, 5)), ImportModelError,
                                 "the_MatMul.*fit"),
    "matrix of no dimensions": (lambda: model(node("MatMul", "x,w"), w=np.float32(3)), ImportModelError, "the_MatMul"),
    "product of what is no matrix": (lambda: model(node("Gemm", "x,w"), w=floats(3)), ImportModelError,
                                     "the_Gemm.*matri"),
    "addend that does not fit": (lambda: model(node("Gemm", "x,w,c"), w=floats(3, 4), c=floats(5)), ImportModelError,
                                 "the_Gemm"),
    "addend larger than the product": (lambda: model(node("Gemm", "x,w,c"), w=floats(3, 4), c=floats(9, 2, 4)),
                                       ImportModelError, "the_Gemm"),
    "statistics that do not fit": (lambda: model(node("BatchNormalization", "x,a,a,a,a"), a=floats(7)),
                                   ImportModelError, "the_BatchNormalization.*fit"),
    "scale that does not fit": (lambda: model(node("LayerNormalization", "x,a"), a=floats(7)), ImportModelError,
                                "the_LayerNormalization"),
    "normalization of an axis that is not there": (
        lambda: model(node("LayerNormalization", "x,a", axis=9), a=floats(3)), ImportModelError,
        "the_LayerNormalization.*axis"),
    "no normalization groups": (lambda: image(node("GroupNormalization", "x,a,a", num_groups=0), a=floats(3)),
                                ImportModelError, "the_GroupNormalization.*groups"),
    "normalization groups that do not divide": (
        lambda: image(node("GroupNormalization", "x,a,a", num_groups=2), a=floats(2)), ImportModelError,
        "the_GroupNormalization.*groups"),
    "norm of order 7": (lambda: model(node("LpNormalization", "x", p=7)), ImportModelError, "the_LpNormalization"),
    "weights of a recurrent layer that do not fit": (
        lambda: model(node("LSTM", "x,w,r", hidden_size=4), shape=(5, 1, 3), w=floats(1, 16, 9), r=floats(1, 16, 4)),
        ImportModelError, "the_LSTM.*fit"),
    "recurrent layer of a trillion": (
        lambda: model(node("LSTM", "x,w,r", hidden_size=2 ** 40), shape=(5, 1, 3), w=floats(1, 16, 3),
                      r=floats(1, 16, 4)), ImportModelError, "the_LSTM"),
    "recurrent layer that goes sideways": (
        lambda: model(node("LSTM", "x,w,r", hidden_size=4, direction="sideways"), shape=(5, 1, 3),
                      w=floats(1, 16, 3), r=floats(1, 16, 4)), ImportModelError, "the_LSTM"),
    "state of another batch": (
        lambda: model(node("LSTM", "x,w,r,,,h", hidden_size=4), shape=(5, 1, 3), w=floats(1, 16, 3),
                      r=floats(1, 16, 4), h=floats(1, 9, 4)), ImportModelError, "the_LSTM"),
    "heads that do not divide": (
        lambda: model(node("Attention", "x,x,x", q_num_heads=5, kv_num_heads=5), shape=(1, 2, 8), opset=23),
        ImportModelError, "the_Attention"),
    "no heads": (
        lambda: model(node("Attention", "x,x,x", q_num_heads=0, kv_num_heads=0), shape=(1, 2, 8), opset=23),
        ImportModelError, "the_Attention"),
    "division of constants by zero": (
        lambda: model(node("Div", "a,b", "c"), node("Reshape", "x,c"), a=ints(1), b=ints(0)), ImportModelError, "the_"),
    "division of integers by zero": (
        lambda: model(node("Div", "x,b"), kind=TensorProto.INT64, b=ints(0)), ImportModelError, "the_Div"),
    "shift sideways": (lambda: model(node("BitShift", "x,x", direction="SIDEWAYS"), kind=TensorProto.UINT8),
                       ImportModelError, "the_BitShift.*direction"),
    "cast to an unknown type": (lambda: model(node("Cast", "x", to=99)), ImportModelError, "the_Cast"),
    "cast to no type": (lambda: model(node("Cast", "x", to=0)), ImportModelError, "the_Cast"),
    "cast to strings": (lambda: model(node("Cast", "x", to=TensorProto.STRING)), UnsupportedOperatorError,
                        "the_Cast"),
    "equation with an unknown letter": (lambda: model(node("Einsum", "x", equation="ij->ijk")), ImportModelError,
                                        "the_Einsum.*equation"),
    "equation with too many terms": (lambda: model(node("Einsum", "x", equation="ij,jk->ik")), ImportModelError,
                                     "the_Einsum.*equation"),
    "equation of signs": (lambda: model(node("Einsum", "x", equation="->.,;")), ImportModelError,
                          "the_Einsum.*equation"),
    "equation of a hundred thousand letters": (lambda: model(node("Einsum", "x", equation="i" * 100_000)),
                                               ImportModelError, "the_Einsum.*equation"),
    "equation whose product is a trillion": (
        lambda: model(node("Einsum", "x,x,x,x", equation="ab,cd,ef,gh->abcdefgh"), shape=(2 ** 10, 2 ** 10)),
        ImportModelError, "the_Einsum"),
    "scale of zero": (lambda: _quantize(real(0), np.zeros(1, np.uint8)), ImportModelError, "the_QuantizeLinear.*scale"),
    "negative scale": (lambda: _quantize(real(-1), np.zeros(1, np.uint8)), ImportModelError,
                       "the_QuantizeLinear.*scale"),
    "scale that is no number": (lambda: _quantize(real(_NAN), np.zeros(1, np.uint8)), ImportModelError,
                                "the_QuantizeLinear.*scale"),
    "infinite scale": (lambda: _quantize(real(_INF), np.zeros(1, np.uint8)), ImportModelError,
                       "the_QuantizeLinear.*scale"),
    "scales that do not fit": (lambda: _quantize(floats(7), np.zeros(7, np.uint8)), ImportModelError,
                               "the_QuantizeLinear.*scale"),
    "zero points that do not fit": (lambda: _quantize(floats(3), np.zeros(2, np.uint8)), ImportModelError,
                                    "the_QuantizeLinear"),
    "zero point of real numbers": (lambda: _quantize(real(1), real(0)), ImportModelError,
                                   "the_QuantizeLinear"),
    "blocks that do not divide": (
        lambda: _quantize(floats(2, 2), np.zeros((2, 2), np.uint8), axis=1, block_size=7), ImportModelError,
        "the_QuantizeLinear"),
    "scan of a trillion inputs": (
        lambda: model(node("Scan", "x,x", "y", num_scan_inputs=2 ** 40, body=_BODY)), ImportModelError, "the_Scan"),
    "scan of a trillion inputs by batches": (
        lambda: model(node("Scan", ",x,x", "y", num_scan_inputs=2 ** 31 - 1, body=_BODY), opset=8), ImportModelError,
        "the_Scan"),
    "boxes that are none": (
        lambda: model(node("NonMaxSuppression", "x,s,k"), shape=(1, 5, 2), s=floats(1, 1, 5), k=ints(3)),
        ImportModelError, "the_NonMaxSuppression"),
    "scores of other boxes": (
        lambda: model(node("NonMaxSuppression", "x,s,k"), shape=(1, 5, 4), s=floats(1, 1, 7), k=ints(3)),
        ImportModelError, "the_NonMaxSuppression"),
    "loop of a trillion steps": (
        lambda: model(node("Loop", "m,,x", "y", body=_BODY), m=ints(2 ** 40)), UnsupportedOperatorError, "the_Loop"),
}

_BODY = helper.make_graph(
    [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["v"], ["w"])], "body",
    [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in
     (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [2, 3]))],
    [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in
     (("on", TensorProto.BOOL, []), ("w", TensorProto.FLOAT, [2, 3]))])

OPERANDS: Cases = {**_SIZES, **_INDICES, **_WINDOWS, **_ALGEBRA}
