"""Multiply-adds that TIR cannot express, as LLVM functions that a kernel imports and LLVM inlines."""

from __future__ import annotations

# TVM's code generator has no bfloat type, so the operands of the instruction travel as 32-bit integers.
DOT_BF16_NAME = "narrowcast_dot_bf16"
DOT_BF16 = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @narrowcast_dot_bf16(<16 x float> %acc, <16 x i32> %a, <16 x i32> %b) alwaysinline {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %acc, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
"""

# As tdpfp16ps multiplies, for rows that fill no tile: products of pairs are added up in float32.
DOT_FP16_NAME = "narrowcast_dot_fp16"
_PAIRS = {half: ", ".join(f"i32 {i}" for i in range(first, 32, 2)) for first, half in enumerate(("even", "odd"))}
DOT_FP16 = f"""
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define <16 x float> @narrowcast_dot_fp16(<16 x float> %acc, <16 x i32> %a, <16 x i32> %b) alwaysinline {{
  %x = bitcast <16 x i32> %a to <32 x half>
  %y = bitcast <16 x i32> %b to <32 x half>
  %x_even = shufflevector <32 x half> %x, <32 x half> poison, <16 x i32> <{_PAIRS["even"]}>
  %y_even = shufflevector <32 x half> %y, <32 x half> poison, <16 x i32> <{_PAIRS["even"]}>
  %x_odd = shufflevector <32 x half> %x, <32 x half> poison, <16 x i32> <{_PAIRS["odd"]}>
  %y_odd = shufflevector <32 x half> %y, <32 x half> poison, <16 x i32> <{_PAIRS["odd"]}>
  %a_even = fpext <16 x half> %x_even to <16 x float>
  %b_even = fpext <16 x half> %y_even to <16 x float>
  %a_odd = fpext <16 x half> %x_odd to <16 x float>
  %b_odd = fpext <16 x half> %y_odd to <16 x float>
  %first = call <16 x float> @llvm.fma.v16f32(<16 x float> %a_even, <16 x float> %b_even, <16 x float> %acc)
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %a_odd, <16 x float> %b_odd, <16 x float> %first)
  ret <16 x float> %r
}}
"""

DOT_WORDS_NAME = "narrowcast_dot_words"
_DOT_WORDS = """
declare <{lanes} x i32> @llvm.x86.{instruction}(<{words} x i16>, <{words} x i16>)
define <{lanes} x i32> @narrowcast_dot_words(<{lanes} x i32> %acc, <{bytes} x i8> %x, <{bytes} x i16> %w)
    alwaysinline {{
  %pairs = bitcast <{bytes} x i8> %x to <{words} x i16>
  %even = and <{words} x i16> %pairs, splat (i16 255)
  %odd = lshr <{words} x i16> %pairs, splat (i16 8)
  %w_even = shufflevector <{bytes} x i16> %w, <{bytes} x i16> poison, <{words} x i32> <{low}>
  %w_odd = shufflevector <{bytes} x i16> %w, <{bytes} x i16> poison, <{words} x i32> <{high}>
  %p = call <{lanes} x i32> @llvm.x86.{instruction}(<{words} x i16> %even, <{words} x i16> %w_even)
  %q = call <{lanes} x i32> @llvm.x86.{instruction}(<{words} x i16> %odd, <{words} x i16> %w_odd)
  %first = add <{lanes} x i32> %acc, %p
  %r = add <{lanes} x i32> %first, %q
  ret <{lanes} x i32> %r
}}
"""


def dot_words(lanes: int) -> str:
    """Four u8 · s16 products added into each of 8 or 16 sums by vpmaddwd, which is exact: the even bytes times the
    first half of the weights, the odd ones times the second."""
    words = 2 * lanes
    low, high = (", ".join(f"i32 {i}" for i in range(first, first + words)) for first in (0, words))
    instruction = {8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[lanes]
    return _DOT_WORDS.format(lanes=lanes, words=words, bytes=2 * words, low=low, high=high, instruction=instruction)
