"""The tables of lies and of attacks: each row names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SEEN, TOLD = "| an operator who | its customer", "| an operator who | is told"


def rows(document: str, heading: str) -> dict[str, str]:
    """The table of lies in a document, or another: what was tried, and the rest of its row."""
    table = (ROOT / document).read_text("utf-8").partition(heading)[2].partition("\n\n")[0]
    return dict(line.removeprefix("| ").split(" | ", 1) for line in table.splitlines()[2:])


def test_every_lie_is_told_in_a_test_and_the_readme_has_some_of_them_word_for_word() -> None:
    seen = rows("docs/guarantees.md", SEEN)
    assert seen.keys() == rows("docs/guarantees.md", TOLD).keys()
    assert set() != rows("README.md", SEEN).items() <= seen.items()


ATTACKS = rows("docs/security.md", "| tried |")


@pytest.mark.parametrize("row", [*rows("docs/guarantees.md", TOLD).values(), *ATTACKS.values()])
def test_the_test_of_a_lie_or_an_attack_exists(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_readme_stays_a_page() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 170
