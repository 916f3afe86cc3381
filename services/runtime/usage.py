"""Usage texts of the command line and of services: help pages, suggestions for names, variables `KOLM_…`."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SERVICES = ("generation", "ledger", "auditor", "registry", "explorer", "http", "witness")

FOR_EVERY_PROCESS = {
    "KOLM_CONFIG": "the TOML file of a service, as `--config`",
    "KOLM_SECRETS_DIR": "a folder with one file for each secret, as `--secrets-dir`",
    "KOLM_TOKEN": "the token to show to servers; empty: none. Other users can see flags, and not variables",
    "KOLM_TOKEN_FILE": "a file with that token. Default, for servers of this machine: the file that they wrote",
    "KOLM_MODELS": "the folder of imported models. Default: `~/.local/share/kolm/models`",
    "KOLM_KERNEL_CACHE": "where compiled kernels are kept. Default: beside the code, or in the user's cache",
    "KOLM_LOADING": "a folder for locks: an auditor loads its weights when no server with the same folder is loading. "
    "Default: in the folder of kernels; `kolm up` sets one for its own services",
    "KOLM_INSTRUCTION_SET": "`amx`, `avx512vnni`, `avx512`, `avxvnni`, `avx2` or `scalar` (`neoni8mm`, `neondot` or "
    "`neon` on Arm): fewer instructions than the CPU has; no bit depends on it",
}

OF_COMMANDS = frozenset(
    [
        "KOLM_AUDITOR",
        "KOLM_DATA_DIR",
        "KOLM_GENERATION",
        "KOLM_KEY_PASSPHRASE_FILE",
        "KOLM_LEDGER",
        "KOLM_LEDGER_DATABASE_URL",
        "KOLM_LEDGER_GUARD_URL",
        "KOLM_MODEL",
        "KOLM_MONITOR_WEBHOOK",
        "KOLM_PRINCIPALS",
        "KOLM_REGISTRY",
        "KOLM_TLS_CA",
        "KOLM_TLS_CERT",
        "KOLM_TLS_KEY",
        "KOLM_TRUSTED",
    ]
)
"""Variables of `kolm`'s options; a test compares them with the options."""

_OF_TESTS = ("KOLM_TEST", "KOLM_BENCHMARK")
_LONGEST_NAME = 128
_NARROWEST, _WIDEST = 50, 80
_NAMES = 24  # columns for names; longer ones have a line of their own


class SettingsError(Exception):
    """Settings are wrong: one line for each problem, with the flag's name; a usage error (exit code 2)."""


def checked_name(name: str) -> str:
    """`name`, if it can be shown and logged: a tenant's, an adapter's, a model's, a publisher's, a log's.

    Raises ValueError unless it has 1 to 128 characters, none of which controls a terminal or the direction of text.
    """
    if name.isprintable() and 0 < len(name) <= _LONGEST_NAME:
        return name
    shown = ascii(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")
    raise ValueError(f"expected 1 to {_LONGEST_NAME} letters, digits, punctuation and spaces, got {shown}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean listen?`, or an empty text if no known name is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""


def unknown_variables(environment: Iterable[str], services: Iterable[str] = SERVICES) -> list[str]:
    """The names that begin with KOLM_ and that nothing reads; names with the prefix of a service in `services` are left
    to that service.
    """
    prefixes = (*(f"KOLM_{service.upper()}_" for service in services), *_OF_TESTS)
    known = OF_COMMANDS | FOR_EVERY_PROCESS.keys()
    return sorted(
        name for name in environment if name.startswith("KOLM_") and name not in known and not name.startswith(prefixes)
    )


def unread(name: str, own: Iterable[str] = ()) -> str:
    """The line about a variable that nothing reads; `own` are the variables of a service."""
    known = [*own, *OF_COMMANDS, *FOR_EVERY_PROCESS]
    return f"{name} is set, and nothing reads it{did_you_mean(name, known)}"


def unread_variables() -> list[str]:
    """Lines about variables that nothing reads. Removes them from the environment, so that child processes do not
    repeat the lines.
    """
    unknown = unknown_variables(os.environ)
    for name in unknown:
        del os.environ[name]
    return [unread(name) for name in unknown]


@dataclass(frozen=True, slots=True)
class Row:
    """A flag or a command, its meaning, and notes in brackets."""

    name: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a title; without rows it is left out."""

    title: str
    rows: tuple[Row, ...]


def help_page(usage: str, summary: str, sections: Sequence[Section], closing: str = "") -> str:
    """The page, with a newline at its end."""
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST) - 2
    parts = [f"Usage: {usage}", textwrap.fill(" ".join(summary.split()), width)]
    parts += [_section(section, width) for section in sections if section.rows]
    parts += [textwrap.fill(closing, width)] if closing else []
    return "\n\n".join(parts) + "\n"


def _section(section: Section, width: int) -> str:
    names = min(max(len(row.name) for row in section.rows), _NAMES)
    return "\n".join([f"{section.title}:", *(_row(row, names + 4, width) for row in section.rows)])


def _row(row: Row, column: int, width: int) -> str:
    notes = f"[{'; '.join(row.notes)}]" if row.notes else ""
    text = " ".join([*row.text.split(), notes]).strip()
    lines = textwrap.wrap(text, width - column, break_on_hyphens=False) or [""]
    first = f"  {row.name}".ljust(column)
    beside = len(first) == column and not first[-2:].strip()
    rest = lines[1:] if beside else lines
    return "\n".join([(first + lines[0] if beside else first).rstrip(), *(" " * column + line for line in rest)])
