"""The order of statements in the sources: constants and loggers come before the first function or class."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("benchmarks", "demo", "docs", "ledger", "packages", "services")

LATER = (
    "services/cli/frame/options.py",
    "services/generation/drafting/draft_tree/candidates.py",
    "services/generation/drafting/lookahead.py",
    "services/generation/target/config/layer_specs.py",
    "services/generation/target/families.py",
)
"""Files that still have constants after a function or a class. Remove a file from here once it has none; add none."""


def sources() -> Iterator[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return (str(path.relative_to(ROOT)) for path in sorted(found))


def late_constants(text: str) -> list[str]:
    """Names that are assigned after the first function or class, although their values need neither."""
    late: list[str] = []
    defined: set[str] = set()
    for statement in ast.parse(text).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if defined:
                names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
                assigned = {name.id for name in names if isinstance(name.ctx, ast.Store)}
                needed = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
                if needed & defined:
                    defined |= assigned
                else:
                    late += sorted(assigned)
    return late


def test_constants_and_loggers_come_first() -> None:
    late = {path for path in sources() if late_constants((ROOT / path).read_text("utf-8"))}
    assert late == set(LATER)


@pytest.mark.parametrize(
    ("text", "late"),
    [
        ("A = 1\ndef f(): pass\n", []),
        ("def f(): pass\nA = 1\n", ["A"]),
        ("class C: pass\nA: int = 1\n", ["A"]),
        ("import logging\nclass C: pass\n_log = logging.getLogger(__name__)\n", ["_log"]),
        ("class C: pass\nA = C()\nB = [A]\n", []),
        ("def f(): pass\nA, B = 1, 2\n", ["A", "B"]),
        ("def f():\n    A = 1\n", []),
    ],
)
def test_a_constant_after_a_definition_that_it_does_not_need_is_late(text: str, late: list[str]) -> None:
    assert late_constants(text) == late
