"""Names in the pages exist, references in the sources resolve, and generated code matches its sources."""

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import AfterValidator, BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

import kolm
from docs import lies
from docs.configuration import PAGE as CONFIGURATION
from docs.configuration import page, service_settings
from docs.heads import PAGE as HEADS
from docs.heads import page as heads_page
from docs.outputs import up
from services.cli.main import app
from services.http.completions import ChatFields, TextFields
from services.http.fields import only
from services.http.response_fields import ResponseFields
from services.runtime import setting_kind
from services.runtime.access import PERMISSIONS
from services.runtime.credentials import ROLES
from services.runtime.setting_kind import kind_of
from services.runtime.settings import TomlTable
from services.runtime.usage import FOR_EVERY_PROCESS, OF_COMMANDS, SERVICES, unknown_variables
from tests import documented
from tests.cli import command_tree
from tests.documented import DOCUMENTS, ROOT

KOLM: Any = typer.main.get_command(app)


def commands(document: str, program: str) -> list[str]:
    """Indented or fenced lines that run `program`, without prompt and comment; continued lines in one."""
    lines = re.sub(r" \\\n +", " ", (ROOT / document).read_text()).splitlines()
    pattern = re.compile(rf"^(?: {{4}}|\$ )({program} .*)$")
    return [found[1].split("  #")[0].strip() for line in lines if (found := pattern.match(line))]


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the rest. typer brings its own click: a group has `commands`."""
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
    monkeypatch.setattr(Path, "is_file", lambda path: True)
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
    targets = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", path.read_text())
    assert [name for name, _ in targets if not (path.parent / name).exists()] == []
    named = {(path.parent / name if name else path, section) for name, section in targets if section}
    assert [(page.name, section) for page, section in named if section not in anchors(page)] == []


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("line", sorted({line for doc in DOCUMENTS for line in commands(doc, "python")}))
def test_every_module_that_is_run_exists(line: str) -> None:
    assert importlib.util.find_spec(shlex.split(line)[2]) is not None


FILES = [ROOT / name for name in DOCUMENTS if name != "CHANGELOG.md"]  # a history of old names
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


def rows(document: str, heading: str) -> dict[str, str]:
    """The table below a heading: the first cell of each row, and the rest of the row."""
    table = (ROOT / document).read_text("utf-8").partition(heading)[2].partition("\n\n")[0]
    return dict(line.removeprefix("| ").split(" | ", 1) for line in table.splitlines()[2:])


ATTACKS, LIES = rows("tests/attacks.md", "| tried |"), rows("tests/attacks.md", "| an operator who |")
FINDINGS = rows("tests/engines/README.md", "| finding |")


def test_every_lie_has_a_test() -> None:
    assert rows("docs/guarantees.md", "| an operator who | its customer").keys() == LIES.keys()


def test_the_readme_has_rows_of_the_guarantees() -> None:
    assert lies.PAGE.read_text("utf-8") == lies.readme(), "run `make docs`"


@pytest.mark.parametrize("row", [*LIES.values(), *ATTACKS.values(), *FINDINGS.values()])
def test_the_test_of_a_lie_an_attack_or_a_finding_exists(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


SETTINGS = [(service, name) for service in SERVICES for name in service_settings(f"services.{service}").model_fields]


def test_the_page_is_what_the_settings_say() -> None:
    assert CONFIGURATION.read_text("utf-8") == page(), "`make docs` writes the page"


def test_cells_of_the_page_read_as_words() -> None:
    assert [line for line in page().splitlines() if re.search(r"\| ,|\ba integer", line)] == []


def test_the_page_of_heads_has_the_table_of_public_heads() -> None:
    assert HEADS.read_text("utf-8") == heads_page(HEADS.read_text("utf-8")), "`make docs` writes the table"


def toml_line(name: str, field: FieldInfo) -> str:
    """`name = value`, as an example."""
    kind = kind_of(name, field)
    value = json.dumps(kind.example, ensure_ascii=False)
    return f"{name} = [{value}]" if kind.repeated else f"{name} = {value}"


@pytest.mark.parametrize(("service", "name"), SETTINGS, ids=".".join)
def test_the_example_of_a_setting_is_toml_that_it_takes(
    service: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: True)  # the folders of examples do not exist
    monkeypatch.setattr(setting_kind, "key_in", lambda file: "a key")
    field = service_settings(f"services.{service}").model_fields[name]
    taken: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    TypeAdapter(taken).validate_python(tomllib.loads(toml_line(name, field))[name])


def test_the_variables_of_the_commands_are_those_of_their_options() -> None:
    options = (option for _, command in command_tree() for option in command.params)
    assert {option.envvar for option in options if option.envvar} - FOR_EVERY_PROCESS.keys() == OF_COMMANDS


def test_every_variable_that_the_code_names_is_known() -> None:
    sources = [*ROOT.glob("services/**/*.py"), *ROOT.glob("ledger/**/*.py")]
    named = {name for source in sources for name in re.findall(r'"(KOLM_[A-Z_]*[A-Z])"', source.read_text("utf-8"))}
    assert unknown_variables(named) == []


def test_a_variable_that_nothing_reads_is_unknown_and_one_of_a_service_is_left_to_it() -> None:
    given = ("KOLM_GENERATON", "KOLM_LEDGER_LISTN", "KOLM_LEDGER", "PATH", "KOLM_MODELS")
    assert unknown_variables(given) == ["KOLM_GENERATON"]


PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")


def test_the_page_says_what_each_rpc_takes() -> None:
    written = {
        (service, rpc): {*ROLES} - {"observe"} if roles == "every role but observe" else {*roles.split(", ")}
        for service, rpcs, roles in re.findall(r"^\| (\w+): ([\w, ]+) \| ([\w, ]+) \|$", PAGE, re.MULTILINE)
        for rpc in rpcs.split(", ")
    }
    ours = {path: permission for path, permission in PERMISSIONS.items() if path.startswith("/kolm.")}
    assert written == {
        (path.split(".")[1], path.rpartition("/")[2]): {"anybody"} if permission is None else permission
        for path, permission in ours.items()
    }


OPENAI = (Path(__file__).parents[3] / "docs/openai.md").read_text()
TABLE = OPENAI.split("## Request members")[1].split("\nRefused with 400:")[0]
CHECK = only().func.__qualname__


def taken(*bodies: type[BaseModel]) -> set[str]:
    """The members that have an effect: not the members of which only neutral values pass."""
    return {
        field.alias or name
        for body in bodies
        for name, field in body.model_fields.items()
        if not any(isinstance(each, AfterValidator) and each.func.__qualname__ == CHECK for each in field.metadata)
    }


def test_every_member_that_is_taken_is_named() -> None:
    named = set(re.findall(r"`([a-z_]+)", OPENAI))
    assert taken(ChatFields, TextFields, ResponseFields) - named == {"reasoning"}, "an object of which nothing is taken"


def test_every_member_of_the_table_is_taken() -> None:
    rows = (line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `"))
    table = {name for row in rows for name in re.findall(r"`([a-z_]+)", row)}
    assert table <= taken(ChatFields, TextFields, ResponseFields)


_LISTED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in _LISTED.split("\0") if (ROOT / name).is_file()
         and name.endswith((".py", ".md", ".toml", ".yaml", ".html", ".js"))}  # fmt: skip
SOURCES = {name: text for name, text in TEXTS.items() if name.endswith(".py") and not name.startswith("protos/gen/")}


DOTTED = re.compile(r"`(?:\w+\.)*(\w+)\.(_?[A-Z]\w*)`")


def _members(body: list[ast.stmt]) -> set[str]:
    """Names that these statements define."""
    defined = {each.name for each in body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    assigned = (each for each in body if isinstance(each, (ast.Assign, ast.AnnAssign)))
    return defined | {name.id for each in assigned for name in ast.walk(each) if isinstance(name, ast.Name)}


def _classes(body: list[ast.stmt]) -> Iterator[ast.ClassDef]:
    for each in body:
        if isinstance(each, ast.ClassDef):
            yield each
        yield from _classes([*getattr(each, "body", ()), *getattr(each, "orelse", ())])


def test_docstrings_name_classes_and_constants_that_exist() -> None:
    """Two modules or classes of one name count as one."""
    defined, named = dict[str, set[str]](), list[tuple[str, str, str]]()
    for name, text in SOURCES.items():
        tree = ast.parse(text)
        defined.setdefault(Path(name).stem, set()).update(_members(tree.body))
        for each in _classes(tree.body):
            defined.setdefault(each.name, set()).update(_members(each.body))
        for node in ast.walk(tree) if DOTTED.search(text) else ():
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                named += [(f"{name}:{node.lineno}", *found) for found in DOTTED.findall(node.value.value)]
    assert [each for each in named if each[1] in defined and each[2] not in defined[each[1]]] == []


def test_nothing_tells_people_to_install_a_distribution_that_is_not_published() -> None:
    """Its name on a package index may be a stranger's by then; a file that `make wheels` has made is kolm's."""
    told = re.compile(r"pip install (-\S+ )*['\"]?kolm(?!_)")
    assert [name for name, text in TEXTS.items() if name != "CHANGELOG.md" and told.search(text)] == []


def _files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_committed_code_is_what_the_sources_generate(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "protos" / "generate.py", tmp_path], check=True, capture_output=True)
    fresh, committed = _files(tmp_path / "kolm"), _files(ROOT / "protos" / "gen" / "kolm")
    assert sorted(fresh) == sorted(committed), "run `make proto`"
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "run `make proto`"


def test_every_field_of_the_published_config_is_optional_on_the_wire() -> None:
    from kolm.generation.v1 import speculation_pb2

    fields = speculation_pb2.SpecDecodeConfig.DESCRIPTOR.fields
    assert [field.name for field in fields] == ["method", "eagle_head", "k", "accept_threshold", "verify", "parameters"]
    assert all(field.has_presence for field in fields if field.name != "parameters")  # a map is empty


def test_every_file_names_its_packages_for_go_and_java() -> None:
    for path in sorted((ROOT / "protos" / "kolm").rglob("*.proto")):
        lines, (_, service, version) = path.read_text().splitlines(), path.parent.relative_to(ROOT / "protos").parts
        assert f'option go_package = "kolm/{service}/{version};{service}{version}";' in lines, path
        assert f'option java_package = "kolm.{service}.{version}";' in lines, path
