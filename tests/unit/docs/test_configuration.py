"""docs/configuration.md is what the code says; the code's list of variables is whole."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pydantic import TypeAdapter

from docs.configuration import PAGE, commands, page, service_settings, toml_line
from services.cli.main import app
from services.runtime.usage import FOR_EVERY_PROCESS, OF_COMMANDS, SERVICES, unknown_variables

ROOT = Path(__file__).parents[3]
SETTINGS = [(service, name) for service in SERVICES for name in service_settings(f"services.{service}").model_fields]


def test_the_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "`make docs` writes it anew"


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
