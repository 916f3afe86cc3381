"""Rules for the sources that no linter has."""

from __future__ import annotations

import ast
import re
import subprocess

from tests.documented import ROOT

_LISTED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in _LISTED.split("\0") if (ROOT / name).is_file()
         and name.endswith((".py", ".md", ".toml", ".yaml", ".html", ".js"))}  # fmt: skip
PYTHON = {name: text for name, text in TEXTS.items() if name.endswith(".py") and not name.startswith("protos/gen/")}


def test_a_docstring_begins_with_what_it_is_about() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, text in PYTHON.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if re.match(r"(Of|Whose|Those|That)\b", node.value.value)
    ]
    assert found == []


def test_random_examples_of_unit_tests_are_a_share_of_the_profile_s() -> None:
    """A number of their own would go against the profile: `tests.examples` makes a share of it."""
    unit = {name: text for name, text in PYTHON.items() if name.startswith("tests/unit/")}
    assert [name for name, text in unit.items() if re.search(r"max_examples=\d", text)] == []


def test_nothing_tells_people_to_install_a_distribution_that_is_not_published() -> None:
    """Its name on a package index may be a stranger's by then; a file that `make wheels` has made is kolm's."""
    told = re.compile(r"pip install (-\S+ )*['\"]?kolm(?!_)")
    assert [name for name, text in TEXTS.items() if name != "CHANGELOG.md" and told.search(text)] == []
