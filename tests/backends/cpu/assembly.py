"""What assembly contains: counts of instructions, and the innermost loops."""

from __future__ import annotations

import re
from collections import Counter

_INSTRUCTION = re.compile(r"^\t(?:\{\w+\}\s+)?([a-z]\w*)(?:\s+(.*))?$")
_LABEL = re.compile(r"^([.\w$]+):")


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
    """The lines of every loop that contains no other: from a label to the first jump back to it, where neither another
    such jump nor the end of the function is between."""
    lines = assembly.splitlines()
    labels = {match.group(1): i for i, line in enumerate(lines) if (match := _LABEL.match(line))}
    jumps = [(labels[target], i) for i, line in enumerate(lines)
             if (match := re.match(r"^\tj\w+\s+(\S+)$", line)) and (target := match.group(1)) in labels
             and labels[target] < i]
    return [lines[start:stop + 1] for start, stop in jumps
            if not any(start <= other and last < stop for other, last in jumps)]


def loops_with(assembly: str, instruction: str) -> list[list[str]]:
    """The innermost loops that contain an instruction, named as ``instructions`` does."""
    return [loop for loop in innermost_loops(assembly) if instructions("\n".join(loop))[instruction]]


def spills(loop: list[str]) -> list[str]:
    """The vector instructions of a loop that touch the stack."""
    return [line for line in loop if re.match(r"^\t(?:\{\w+\}\s+)?v", line) and re.search(r"\(%r[sb]p[,)]", line)]
