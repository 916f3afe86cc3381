"""Write docs/configuration.md from the settings of the services and the options of `kolm`.

python -m docs.configuration        (or `make docs`)
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic.fields import FieldInfo

from services.cli.main import app
from services.runtime.setting_kind import default_of, kind_of
from services.runtime.settings import ServerSettings
from services.runtime.usage import FOR_EVERY_PROCESS, SERVICES

PAGE = Path(__file__).with_suffix(".md")
OPENING = """\
# Configuration

`make docs` writes this page from the code; a test compares the two.

A setting comes from a flag, else from an environment variable, else from a file of its name in `--secrets-dir`, else
from the TOML file that `--config` names, else it has its default:

    kolm serve ledger --data-dir /var/lib/kolm/ledger
    KOLM_LEDGER_DATA_DIR=/var/lib/kolm/ledger kolm serve ledger
    kolm serve ledger --config kolm.toml
    kolm up --config kolm.toml --metrics-port 9090 --log-format json

One TOML file can hold the tables of all services; `kolm up` hands it to each of them, and refuses in it what it sets
itself (addresses, folders). Model, adapters, context length and arithmetic of `[generation]` count for the auditor,
too. `--metrics-port 9090` gives each service a port from there on: ledger, registry, generation, auditor, explorer,
http. A wrong name or value in it ends the start with file and line; a
variable that begins with `KOLM_` and that nothing reads is warned about. A switch `--name` is undone by `--no-name`;
in variables and TOML it is `true` or `false`. A flag that may be repeated is a list in TOML, and JSON in a variable
(`["a", "b"]`); an empty variable counts as unset. Secrets belong into files: `--secrets-dir` has one file for each,
named as its variable.
"""
COMMANDS = """\
## The commands of `kolm`

These variables stand for flags of the commands that ask services; `kolm COMMAND --help` lists all of its flags.

| variable | flag | of | |
|---|---|---|---|
"""
PROCESSES = """\
## Every process

| variable | |
|---|---|
"""
TABLE = "| flag, variable | takes | default | in TOML, for example | |\n|---|---|---|---|---|\n"


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, _shared(), *map(_service, SERVICES), _commands(), _processes()])


def service_settings(service: str) -> type[ServerSettings]:
    """The settings class of a service, given as `services.ledger`: its flags and its environment variables."""
    module = importlib.import_module(f"{service}.settings")
    (own,) = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    assert issubclass(own, ServerSettings)
    return own


def toml_line(name: str, field: FieldInfo) -> str:
    """`name = value`, as an example."""
    kind = kind_of(name, field)
    value = json.dumps(kind.example, ensure_ascii=False)
    return f"{name} = [{value}]" if kind.repeated else f"{name} = {value}"


def _shared() -> str:
    rows = [_row("KOLM_<SERVICE>_", name, ServerSettings.model_fields[name]) for name in _shared_names()]
    heading = "## Every service\n\nEach service has these besides its own. `--listen` has another port in each.\n\n"
    return heading + TABLE + "\n".join(rows) + "\n"


def _shared_names() -> Iterator[str]:
    return (name for name in ServerSettings.model_fields if name != "listen")


def _service(service: str) -> str:
    own = service_settings(f"services.{service}")
    fields = {name: field for name, field in own.model_fields.items() if name not in set(_shared_names())}
    rows = [_row(f"KOLM_{service.upper()}_", name, field) for name, field in fields.items()]
    heading = f"## `kolm serve {service}`\n\nTable `[{service}]`, variables `KOLM_{service.upper()}_…`.\n\n"
    return heading + TABLE + "\n".join(rows) + "\n"


def _row(prefix: str, name: str, field: FieldInfo) -> str:
    before = name in ("config", "secrets_dir")  # known before a TOML file can be read
    variable = f"KOLM_{name.upper()}" if before else prefix + name.upper()
    default, description = default_of(field)
    named = f"`--{name.replace('_', '-')}`<br>`{variable}`"
    toml = "–" if before else f"`{toml_line(name, field)}`"
    return _cells(named, kind_of(name, field).words, default, toml, description)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(cell: str) -> str:
    """Bars end a cell; outside of code, `<data-dir>` would be a tag."""
    words = cell.replace("|", "\\|").split("`")
    words[::2] = [re.sub("<(?!br>)", r"\\<", word) for word in words[::2]]
    return "`".join(words)


def _commands() -> str:
    flags: dict[str, tuple[Any, list[str]]] = {}
    for path, command in commands(typer.main.get_command(app)):
        for option in command.params:
            if option.envvar:
                flags.setdefault(option.envvar, (option, []))[1].append(path)
    rows = [
        _cells(f"`{variable}`", f"`{option.opts[0]}`", _some(paths), option.help or "")
        for variable, (option, paths) in sorted(flags.items())
    ]
    return COMMANDS + "\n".join(rows) + "\n"


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below `group`, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name, command


def _some(paths: list[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _processes() -> str:
    return PROCESSES + "\n".join(_cells(f"`{name}`", text) for name, text in FOR_EVERY_PROCESS.items()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
