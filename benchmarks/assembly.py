"""What assembly contains: counts of instructions, and the innermost loops of sums."""

from __future__ import annotations

import re
from collections import Counter

_INSTRUCTION = re.compile(r"^\t(?:\{\w+\}\s+)?([a-z]\w*)(?:\s+(.*))?$")
_LABEL = re.compile(r"^([.\w$]+):")
_JUMP = re.compile(r"^\tj\w+\s+(\S+)$")
_WRITE = re.compile(r"^\t(?:v?mov|vpmov|vextract|vcvtps2ph)\w*\s.*\)$")


def instructions(assembly: str) -> Counter[str]:
    """How often every instruction occurs; ``vpdpbusd ymm`` names the widest register among its operands."""
    found: Counter[str] = Counter()
    for line in assembly.splitlines():
        if match := _INSTRUCTION.match(line):
            name, operands = match.group(1), match.group(2) or ""
            width = next((w for w in ("zmm", "ymm", "xmm") if f"%{w}" in operands), "")
            found[f"{name} {width}".strip()] += 1
    return found


def innermost_loops(assembly: str) -> list[list[str]]:
    """The lines of every loop that contains no other: from a label to a jump back to it."""
    lines = assembly.splitlines()
    labels = {match.group(1): i for i, line in enumerate(lines) if (match := _LABEL.match(line))}
    jumps = [(labels[match.group(1)], i) for i, line in enumerate(lines)
             if (match := _JUMP.match(line)) and labels.get(match.group(1), i) < i]
    return [lines[start:stop + 1] for start, stop in jumps
            if not any(start <= other and last < stop for other, last in jumps)]


def sums_by(assembly: str, instruction: str) -> list[list[str]]:
    """The innermost loops that multiply by an instruction, named as ``instructions`` does, and write nothing but what
    they spill. A sum that is unrolled altogether has no such loop."""
    return [loop for loop in innermost_loops(assembly) if instructions("\n".join(loop))[instruction]
            and not any(_WRITE.match(line) and "(%rsp)" not in line for line in loop)]


def spills(loop: list[str]) -> tuple[list[str], set[str]]:
    """What a loop's vector instructions write to places on the stack, and the places that they read. Arrays on the
    stack do not count: they are addressed with an index."""
    touching = [line for line in loop if re.match(r"^\t(?:\{\w+\}\s+)?v", line) and "(%rsp)" in line]
    written = [line for line in touching if _WRITE.match(line)]
    return written, {place for line in touching if line not in written for place in re.findall(r"-?\d*\(%rsp\)", line)}
