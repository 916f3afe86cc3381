"""Commands in the documentation exist, with their options; its Python imports what there is; its links lead on."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import kolm
from docs.configuration import service_settings
from services.cli.main import app

ROOT = Path(__file__).parents[3]
KOLM: Any = typer.main.get_command(app)
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "demo/README.md", "ledger/README.md")
    for path in sorted(ROOT.glob(pattern))
]


def commands(document: str, program: str) -> list[str]:
    """Indented or fenced lines that run `program`, without prompt and comment; continued lines in one."""
    lines = re.sub(r" \\\n +", " ", (ROOT / document).read_text()).splitlines()
    pattern = re.compile(rf"^(?: {{4}}|\$ )({program} .*)$")
    return [found[1].split("  #")[0].strip() for line in lines if (found := pattern.match(line))]


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and what follows. typer brings its own click: a group is what has `commands`."""
    command = KOLM
    while hasattr(command, "commands"):
        assert words, f"{command.name} needs a subcommand"
        name, *words = words
        assert name in command.commands, f"no command {name}"
        command = command.commands[name]
    return command, words


@pytest.mark.parametrize("line", sorted({line for doc in DOCUMENTS for line in commands(doc, "kolm")}))
def test_every_kolm_command_exists_with_its_options(line: str) -> None:
    command, rest = resolve(shlex.split(line)[1:])
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if line.startswith("kolm serve "):  # hands its flags to the service
        known = {f"--{name.replace('_', '-')}" for name in service_settings(f"services.{command.name}").model_fields}
    assert [word for word in rest if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize("line", sorted({line for doc in DOCUMENTS for line in commands(doc, "make")}))
def test_every_make_target_exists(line: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert shlex.split(line)[1] in targets


PYTHON = {
    f"{document}:{place}": code
    for document in DOCUMENTS
    for place, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL))
}


@pytest.mark.parametrize("code", PYTHON.values(), ids=PYTHON)
def test_python_imports_what_there_is(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kolm":
            assert node.attr in kolm.__all__


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_within_the_repository_lead_somewhere(document: str) -> None:
    path = ROOT / document
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("line", sorted({line for doc in DOCUMENTS for line in commands(doc, "python")}))
def test_every_module_that_is_run_exists(line: str) -> None:
    assert importlib.util.find_spec(shlex.split(line)[2]) is not None
