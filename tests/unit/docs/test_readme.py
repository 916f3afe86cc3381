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
from docs.outputs import FIRST_MINUTES, up
from docs.session import recorded
from services.cli.main import app
from services.generation.target.model_path import FolderKind
from services.runtime.settings import TomlTable
from tests import documented
from tests.documented import DOCUMENTS

ROOT = Path(__file__).parents[3]
KOLM: Any = typer.main.get_command(app)


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


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the pages name need not be here."""
    monkeypatch.setattr("services.generation.target.model_path._is_model", lambda path: True)
    monkeypatch.setattr(FolderKind, "check", lambda kind, folder: folder)
    monkeypatch.setattr(TomlTable, "read", lambda *arguments: TomlTable(None, "", {}))


@pytest.mark.parametrize("line", documented.ALL)
@pytest.mark.usefixtures("anywhere")
def test_every_kolm_command_is_one_that_its_own_parser_takes(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLM_LEDGER_DATA_DIR", "given by a file, or by the line itself")
    for words in documented.kolm_commands(line):
        command, rest = resolve(words)
        if words[0] == "serve":  # hands its flags to the service
            service_settings(f"services.{command.name}").load(rest, environment={})
        else:
            command.make_context(command.name, rest)


def test_every_kolm_command_is_run_by_a_test() -> None:
    started = {line.removeprefix("$ ") for line in (up(), recorded(FIRST_MINUTES.read_text("utf-8"))[0].line)}
    assert documented.RUN | started == set(documented.ALL)


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
