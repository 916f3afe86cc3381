"""The TOML file of `kolm up`: the tables of its services, besides what `kolm up` gives them itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from services.cli.failures.exits import UsageError
from services.cli.jobs.running.supervisor import Plan
from services.runtime.settings import ServerSettings, SettingsError, TomlTable
from services.runtime.usage import SERVICES

_SHARED = ("model", "adapter", "context_length", "cache_dtype", "arithmetic")
_INSTEAD = {
    "listen": "--host and the port's flag",
    "rate": "--audit-rate",
    "metrics_port": "--metrics-port",
    "data_dir": "--data-dir",
    "state_dir": "--data-dir",
    "insecure": "--insecure",
    "log_level": "--log-level",
    "log_format": "--log-format",
}
"""The flag of `kolm up` for what it sets itself."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One table for each service, by its name."""

    tables: Mapping[str, TomlTable]

    @classmethod
    def read(cls, path: Path) -> Configuration:
        """Raises UsageError with file and line for a name that nothing reads."""
        try:
            return cls({name: TomlTable.read(path, name, _settings(name).model_fields) for name in SERVICES})
        except SettingsError as error:
            raise UsageError(str(error)) from error

    def shared_with_the_auditor(self) -> dict[str, Any]:
        """The settings of the generation service that the auditor has to load as well."""
        return {name: value for name, value in self.tables["generation"].values.items() if name in _SHARED}

    def refuse_what_up_sets(self, plans: Iterable[Plan]) -> None:
        """Raises UsageError for a setting that a flag of its service's plan would win over, and for TLS."""
        for plan in plans:
            table = self.tables[plan.name]
            flags = {word[2:].partition("=")[0].replace("-", "_") for word in plan.flags if word.startswith("--")}
            taken = flags - set(_SHARED) if plan.name == "generation" else flags
            for name in table.values:
                if name.startswith("tls_"):
                    raise UsageError(f"{table.place(name)}: `kolm up` speaks no TLS", "`kolm serve` does")
                if name in taken:
                    raise UsageError(f"{table.place(name)}: `kolm up` sets this itself", _hint(name))


def _hint(name: str) -> str | None:
    if name in _SHARED:
        return "it is read from [generation]"
    return f"use {_INSTEAD[name]}" if name in _INSTEAD else None


def _settings(service: str) -> type[ServerSettings]:
    module = import_module(f"services.{service}.settings")
    found = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    return next(each for each in found if issubclass(each, ServerSettings))
