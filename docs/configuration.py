"""Write docs/configuration.md from the settings of the services.

python -m docs.configuration        (or `make docs`)
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from pydantic.fields import FieldInfo

from services.runtime.setting_kind import default_of, kind_of
from services.runtime.settings import RpcServerSettings, ServerSettings
from services.runtime.usage import FOR_EVERY_PROCESS, SERVICES

PAGE = Path(__file__).with_suffix(".md")
OPENING = """\
# Configuration

`make docs` writes this page from the code; a test compares the two.

A setting is taken from the first of these that has it: a flag, an environment variable, a file named as that variable
in `--secrets-dir` (for secrets), the TOML file of `--config`. The setting `--max-calls` of the ledger is
`KOLM_LEDGER_MAX_CALLS` in the environment and `max_calls` in the table `[ledger]`:

    kolm serve ledger --data-dir /var/lib/kolm/ledger
    KOLM_LEDGER_DATA_DIR=/var/lib/kolm/ledger kolm serve ledger
    kolm serve ledger --config kolm.toml
    kolm up --config kolm.toml --metrics-port 9090 --log-format json

- One TOML file can hold the tables of all services. `kolm up` passes it to each of them, and refuses settings in it
  that it makes itself (addresses, folders). The auditor takes model, adapters, context length, cache type and
  arithmetic from `[generation]`. A wrong name or value ends the start with file and line.
- `kolm up --metrics-port 9090` gives the services ports from 9090 on: ledger, registry, generation, auditor, explorer,
  http.
- A switch `--name` is undone by `--no-name`; in variables and TOML it is `true` or `false`.
- A flag that may be repeated is a list in TOML, and JSON in a variable (`["a", "b"]`).
- A size is a number of bytes, or has a unit, such as `2GiB`. An address is host:port, or any gRPC name.
- An empty variable is unset, an empty cell is no default. A variable that begins with `KOLM_` and that nothing reads is
  warned about.
"""
PROCESSES = """\
## Every process

Variables for flags of the commands: [command-line.md](command-line.md#finding-services).

| variable | |
|---|---|
"""
_SHORT_KINDS = (
    ("bytes, a whole number", "bytes"),
    ("whole number", "integer"),
    (", at least ", " ≥ "),
    (", above ", " > "),
    (", at most ", " ≤ "),
    ("; may be repeated", " (repeatable)"),
    ("host:port, or any gRPC name", "address"),
    ("URL with http:// or https://", "URL"),
    ("true or false", "switch"),
)
_KINDS_IN_DESCRIPTIONS = (
    *(", may be repeated", "; may be repeated", ", host:port or any gRPC name"),
    *(": NAME=DIRECTORY", ": TENANT=FOLDER"),
)
TABLE = "| flag | takes | default | |\n|---|---|---|---|\n"


def page() -> str:
    """The whole page."""
    return "\n".join([OPENING, _shared(), *map(_service, SERVICES), _processes()])


def service_settings(service: str) -> type[ServerSettings]:
    """The settings class of a service, given as `services.ledger`: its flags and its environment variables."""
    module = importlib.import_module(f"{service}.settings")
    (own,) = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    assert issubclass(own, ServerSettings)
    return own


def _shared() -> str:
    every = {name: field for name, field in ServerSettings.model_fields.items() if name != "listen"}
    over_grpc = {name: field for name, field in RpcServerSettings.model_fields.items() if name not in every}
    del over_grpc["listen"]
    parts = [
        "## Every service\n\n`--config` and `--secrets-dir` are `KOLM_CONFIG` and `KOLM_SECRETS_DIR`.\n",
        _table(every),
        "Every service over gRPC, if its own table has no other default:\n",
        _table(over_grpc),
    ]
    return "\n".join(parts)


def _service(service: str) -> str:
    fields = service_settings(f"services.{service}").model_fields
    own = {name: field for name, field in fields.items() if not _is_shared(name, field)}
    return f"## `kolm serve {service}`\n\n" + _table(own)


def _is_shared(name: str, field: FieldInfo) -> bool:
    shared = RpcServerSettings.model_fields.get(name)
    return shared is not None and name != "listen" and _row(name, shared) == _row(name, field)


def _table(fields: Mapping[str, FieldInfo]) -> str:
    return TABLE + "\n".join(_row(name, field) for name, field in fields.items()) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    default, description = default_of(field)
    kind = kind_of(name, field)
    example = f", such as `{kind.example}`" if kind.repeated and "=" in str(kind.example) else ""
    takes = "size" if kind.metavar == "SIZE" else _shorter(kind.words)
    default = default.removeprefix("none").removeprefix(", ")
    return _cells(f"`--{name.replace('_', '-')}`", takes + example, default, _without_kind(description))


def _shorter(words: str) -> str:
    """The kind as the column has it, of `words` as error messages have it."""
    for phrase, short in _SHORT_KINDS:
        words = words.replace(phrase, short)
    return words


def _without_kind(description: str) -> str:
    """The description without what the column of kinds has."""
    for phrase in _KINDS_IN_DESCRIPTIONS:
        description = description.replace(phrase, "")
    return description


def _cells(*cells: str) -> str:
    return "|" + "|".join(f" {_escaped(cell)} " if cell else " " for cell in cells) + "|"


def _escaped(cell: str) -> str:
    """Bars end a cell; outside of code, `<data-dir>` would be a tag."""
    words = cell.replace("|", "\\|").split("`")
    words[::2] = [word.replace("<", r"\<") for word in words[::2]]
    return "`".join(words)


def _processes() -> str:
    return PROCESSES + "\n".join(_cells(f"`{name}`", text) for name, text in FOR_EVERY_PROCESS.items()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
