"""Imports go one way, the public names are the expected ones, and importing the package does not import PyTorch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import narrowcast

ROOT = Path(narrowcast.__file__).parent

# What every part of the package may import of the others; the packages' own modules are free to import each other.
LANGUAGE = {"errors", "precision", "dims", "ir", "requirements"}
ALLOWED: dict[str, set[str]] = {
    "_environment": set(),
    "errors": set(),
    "precision": {"errors"},
    "dims": {"errors"},
    "ir": {"dims", "errors"},
    "requirements": {"dims", "errors"},
    "operators": LANGUAGE,
    "frontends": {*LANGUAGE, "operators"},
    "passes": {*LANGUAGE, "operators"},
    "calibration": {*LANGUAGE, "operators"},
    "backends": {*LANGUAGE, "operators", "_environment"},
    "given": {*LANGUAGE, "operators"},
    "metrics": {"errors"},
    "budget": {"errors", "metrics"},
    "samples": {"errors", "ir"},
    "progress": set(),
    "timing": set(),
    "container": {"errors"},
    "report": set(),
    "stages": {"ir", "operators"},
    "assignment": LANGUAGE,
    "decisions": {*LANGUAGE, "assignment"},
    "planning": {*LANGUAGE, "assignment", "backends", "calibration", "given"},
    "search": {*LANGUAGE, "assignment", "backends", "budget", "decisions", "progress", "samples"},
    "verification": {*LANGUAGE, "backends", "calibration"},
    "program": {*LANGUAGE, "backends", "container", "report", "stages"},
    "compiler": {
        *LANGUAGE, "assignment", "backends", "budget", "calibration", "decisions", "frontends", "given", "passes",
        "planning", "program", "progress", "report", "samples", "search", "stages", "timing",
    },
    "__init__": {*LANGUAGE, "_environment", "budget", "compiler", "program"},
    "cli": {"__init__", "demo", "metrics", "progress"},
    "demo": {"__init__", "progress", "cli", "models", "timing"},
    "models": {"errors"},
}
# Imports for type checkers, which do not happen at run time.
TYPES_ONLY = {("errors", "precision")}

PUBLIC = [
    "AccuracyBudget", "BudgetError", "CompileError", "DataError", "Decision", "ImportModelError", "PlanError",
    "Precision", "PrecisionPlan", "Program", "ProgramError", "QParams", "Storage", "TargetError",
    "UnsupportedOperatorError", "VerificationError", "compile", "load",
]


def sources(folder: Path) -> Iterator[Path]:
    skipped = {".venv", "tests", "benchmarks", "fuzz", "build"}
    return (p for p in sorted(folder.rglob("*.py")) if not skipped & set(p.relative_to(ROOT).parts))


def imported_modules(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules of narrowcast that a file imports, as paths below the package: ``("backends", "target")``."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "narrowcast")
        elif isinstance(node, ast.ImportFrom):
            parts = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = package[: len(package) - (node.level - 1)]
            elif parts[:1] == ("narrowcast",):
                base, parts = (), parts[1:]
            else:
                continue
            yield from ((*base, *parts, a.name) for a in node.names)


def part_of(module: tuple[str, ...]) -> str:
    """The part a module belongs to; a name of the package itself (``from . import compile``) is ``__init__``'s."""
    return module[0] if module and module[0] in ALLOWED else "__init__"


def edges() -> set[tuple[str, str, str]]:
    """(importing part, imported part, importing file) of the whole package."""
    found = set()
    for path in sources(ROOT):
        relative = path.relative_to(ROOT)
        own = relative.parts[0].removesuffix(".py")
        found |= {(own, part_of(m), str(relative)) for m in imported_modules(path) if part_of(m) != own}
    return found


def test_every_part_has_its_place() -> None:
    assert {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in sources(ROOT)} == set(ALLOWED)


def test_imports_go_one_way() -> None:
    wrong = [(part, other, file) for part, other, file in sorted(edges())
             if other not in ALLOWED[part] and (part, other) not in TYPES_ONLY]
    assert wrong == []


def test_the_table_has_no_circle_but_the_command_lines() -> None:
    """cli and demo know each other (the demo is a command and prints the command line's table); nothing else does."""
    reach = {part: set(others) for part, others in ALLOWED.items()}
    for middle in ALLOWED:
        for part in ALLOWED:
            if middle in reach[part]:
                reach[part] |= reach[middle]
    assert {part for part in ALLOWED if part in reach[part]} == {"cli", "demo"}


def test_the_table_allows_nothing_that_is_not_there() -> None:
    """Packages may import all of the language; for single modules the table says what they do import."""
    present = {(part, other) for part, other, _ in edges()}
    packages = {part for part in ALLOWED if (ROOT / part).is_dir()}
    unused = {(part, other) for part, others in ALLOWED.items() if part not in packages for other in others - LANGUAGE
              if (part, other) not in present}
    assert unused == set()


@pytest.mark.parametrize(("line", "expected"), [
    ("from ..backends.target import Target", ("backends", "target", "Target")),
    ("from narrowcast.backends import target", ("backends", "target")),
    ("import narrowcast.backends.cpu", ("backends", "cpu")),
    ("def f():\n    from ..backends import costs", ("backends", "costs")),
])
def test_the_reader_sees_every_form_of_import(
    line: str, expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "passes").mkdir()
    path = tmp_path / "passes" / "wrong.py"
    path.write_text(line)
    assert list(imported_modules(path)) == [expected]
    assert part_of(expected) not in ALLOWED["passes"]


def test_public_names() -> None:
    assert sorted(narrowcast.__all__) == sorted(PUBLIC)
    assert all(getattr(narrowcast, name) is not None for name in PUBLIC)


def test_benchmarks_use_the_package_by_its_name() -> None:
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        relative = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                    if isinstance(n, ast.ImportFrom) and n.level > 1]
        assert relative == [], path.name


def test_importing_does_not_import_pytorch() -> None:
    code = "import sys, narrowcast; print('torch' in sys.modules, 'narrowcast.compiler' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]


def test_the_example_of_the_readme_uses_public_names() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    used = {n.attr for n in ast.walk(ast.parse(example))
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "nc"}
    assert used == {"AccuracyBudget", "compile", "load"} <= set(PUBLIC)
