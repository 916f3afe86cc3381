"""What the pages name exists: commands with their options, links, files, Python, and the tests of lies and attacks."""

import ast
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

import kolm
from docs.configuration import service_settings
from docs.outputs import up
from services.cli.main import app
from services.generation.target.model_path import FolderKind
from services.runtime.settings import TomlTable
from tests import documented
from tests.documented import DOCUMENTS, ROOT

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
    assert documented.RUN | {up()} == set(documented.ALL)


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


FILES = [ROOT / name for name in DOCUMENTS if name != "CHANGELOG.md"]  # which tells what was
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
PLACES = {"/" + path for path in TRACKED} | {f"/{parent}/" for path in TRACKED for parent in Path(path).parents}
TOP = "|".join(sorted({re.escape(path.partition("/")[0]) for path in TRACKED if "/" in path}))


@pytest.mark.parametrize("document", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source_files_and_folders_exist(document: Path) -> None:
    """A source file may be named by the end of its path; a folder is named from the top."""
    text = document.read_text("utf-8")
    files = re.findall(r"`([\w./-]+\.(?:py|proto))`", text)
    folders = re.findall(rf"`((?:{TOP})/[\w./-]*)`", text)
    assert _missing([*files, *folders]) == []


def _missing(names: list[str]) -> list[str]:
    """Names that are the end of no path here."""
    ends = {"/" + name.rstrip("/") for name in names}
    return sorted(end for end in ends if not any(place.rstrip("/").endswith(end) for place in PLACES))


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
