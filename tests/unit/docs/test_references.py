"""Pages that list what the code knows: settings, roles of RPCs, members of OpenAI's requests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import AfterValidator, BaseModel, TypeAdapter

from docs.configuration import PAGE as CONFIGURATION
from docs.configuration import commands, page, service_settings, toml_line
from services.cli.main import app
from services.http.completions import ChatFields, TextFields
from services.http.fields import only
from services.http.response_fields import ResponseFields
from services.runtime.access import PERMISSIONS
from services.runtime.credentials import ROLES
from services.runtime.usage import FOR_EVERY_PROCESS, OF_COMMANDS, SERVICES, unknown_variables

ROOT = Path(__file__).parents[3]
SETTINGS = [(service, name) for service in SERVICES for name in service_settings(f"services.{service}").model_fields]


def test_the_page_is_what_the_settings_say() -> None:
    assert CONFIGURATION.read_text("utf-8") == page(), "`make docs` writes it anew"


@pytest.mark.parametrize(("service", "name"), SETTINGS, ids=".".join)
def test_the_example_of_a_setting_is_toml_that_it_takes(
    service: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda path: True)  # the folders of examples are nobody's
    field = service_settings(f"services.{service}").model_fields[name]
    taken: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    TypeAdapter(taken).validate_python(tomllib.loads(toml_line(name, field))[name])


def test_the_variables_of_the_commands_are_those_of_their_options() -> None:
    options = (option for _, command in commands(typer.main.get_command(app)) for option in command.params)
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
        (service, rpc): frozenset(ROLES) if roles == "every role" else frozenset(roles.split(", "))
        for service, rpcs, roles in re.findall(r"^\| (\w+): ([\w, ]+) \| ([\w, ]+) \|$", PAGE, re.MULTILINE)
        for rpc in rpcs.split(", ")
    }
    ours = {path: permission for path, permission in PERMISSIONS.items() if path.startswith("/kolm.")}
    assert written == {
        (path.split(".")[1], path.rpartition("/")[2]): frozenset({"anybody"}) if permission is None else permission
        for path, permission in ours.items()
    }


def test_the_page_names_every_role() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) >= set(ROLES)


OPENAI = (Path(__file__).parents[3] / "docs/openai.md").read_text()
TABLE = OPENAI.split("## What a request may say")[1].split("\nRefused with 400:")[0]
CHECK = only().func.__qualname__


def taken(*bodies: type[BaseModel]) -> set[str]:
    """The members that have an effect: not those of which only neutral values pass."""
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
    assert table - taken(ChatFields, TextFields, ResponseFields) == {
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    }
