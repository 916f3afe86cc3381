"""The flags of a service, made from its settings: their parsing, and `--help`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pydantic.fields import FieldInfo

from services.runtime.settings.environment import SettingsError, did_you_mean
from services.runtime.settings.help_page import Row, Section, help_page
from services.runtime.settings.setting_kind import default_of, kind_of


def flag(name: str) -> str:
    """`--data-dir` for `data_dir`."""
    return f"--{name.replace('_', '-')}"


def given_flags(fields: Mapping[str, FieldInfo], arguments: Sequence[str]) -> dict[str, Any]:
    """Settings of the command line, by name, as texts, lists of texts and switches. Raises SettingsError."""
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, field in fields.items():
        kind = kind_of(name, field)
        if kind.metavar == "":
            parser.add_argument(flag(name), dest=name, action=argparse.BooleanOptionalAction)
        else:
            action = "append" if kind.repeated else "store"
            parser.add_argument(flag(name), dest=name, action=action, metavar=kind.metavar)
    given, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        word = unknown[0].partition("=")[0]
        raise SettingsError(f"{word}: there is no such flag{did_you_mean(word, map(flag, fields))}")
    return vars(given)


_HELP = Row("-h, --help", "Show this message and exit.")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """`argument --listen: expected one argument`, as the others are said."""
        named = message.removeprefix("argument ")
        raise SettingsError(named.replace("expected one argument", "expected a value after it"))


def service_help(service: str, own: Mapping[str, FieldInfo], shared: Mapping[str, FieldInfo]) -> str:
    """The page of `kolm serve SERVICE --help`: the service's own flags, then those that every service has."""
    summary = (
        f"Flags come before variables (KOLM_{service.upper()}_LISTEN for --listen), those before files in "
        f"--secrets-dir, those before the table [{service}] of --config. docs/configuration.md has an example for each."
    )
    return help_page(
        f"kolm serve {service} [OPTIONS]",
        summary,
        [
            Section("Options", tuple(_row(name, field) for name, field in own.items())),
            Section(
                "Options of every service",
                (*(_row(name, field) for name, field in shared.items()), _HELP),
            ),
        ],
    )


def _row(name: str, field: FieldInfo) -> Row:
    kind = kind_of(name, field)
    default, text = default_of(field)
    if kind.metavar == "":
        notes = (f"default: {flag(name)}",) if field.default else ()
        return Row(f"{flag(name)}, --no{flag(name)[1:]}", text, notes)
    bounds = kind.words.partition(", ")[2].partition(";")[0] if kind.metavar.isupper() and ", " in kind.words else ""
    default = {"required": "required", "none": ""}.get(default, f"default: {default}")
    return Row(f"{flag(name)} {kind.metavar}", text, tuple(note for note in (bounds, default) if note))
