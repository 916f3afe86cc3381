"""One service's table of a TOML file, and in which line of the file a name stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.runtime.settings.environment import SERVICES
from services.runtime.settings.settings_error import SettingsError, did_you_mean

_HEADER = re.compile(r"\s*\[\s*[\"']?([\w-]+)[\"']?\s*\]")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")


@dataclass(frozen=True, slots=True)
class TomlTable:
    """The values below `[name]` of `path`; without a file there are none."""

    path: Path | None
    name: str
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path | None, name: str, known: Collection[str]) -> TomlTable:
        """Raises SettingsError for a file that is none, and for names of tables and settings that nothing reads."""
        if path is None:
            return cls(None, name, {})
        document = toml_document(path)
        tables = {*SERVICES, name}
        for other in document.keys() - tables:
            raise SettingsError(
                f"{_place(path, None, other)}: no service is called {other}{did_you_mean(other, tables)}"
            )
        values = document.get(name, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{_place(path, None, name)}: expected a table, [{name}]")
        table = cls(path, name, values)
        if unknown := [key for key in values if key not in known]:
            wrong = (f"{table.place(key)}: there is no such setting{did_you_mean(key, known)}" for key in unknown)
            raise SettingsError("\n".join(wrong))
        return table

    def place(self, key: str) -> str:
        """`kolm.toml, line 3: [ledger] listen`."""
        return f"{_place(self.path or Path(), self.name, key)}: [{self.name}] {key}"


def toml_document(path: Path) -> dict[str, Any]:
    """All of a TOML file. Raises SettingsError, with line and column where it is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config: cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"--config: {path} is not TOML: {error}") from None


def _place(path: Path, table: str | None, name: str) -> str:
    """The file with the line of a key in a table, or (`table` None) of a table or a key at the top."""
    inside = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            inside = header[1]
        found = header[1] if header and table is None else key[1] if key and inside == table else None
        if found == name:
            return f"{path}, line {number}"
    return str(path)
