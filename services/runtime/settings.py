"""Settings of a server: flags > environment > secrets directory > TOML > defaults.

A service subclasses `ServerSettings` and loads it once, in its composition root:

    class LedgerSettings(ServerSettings):
        model_config = settings_config("ledger")      # KOLM_LEDGER_…, table [ledger]
        data_dir: Path = Field(description="…")

    settings = LedgerSettings.load(sys.argv[1:])

`--config FILE` (KOLM_CONFIG) names the TOML file, `--secrets-dir DIR` (KOLM_SECRETS_DIR) a directory with one file a
setting, named as the environment variable.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, ByteSize, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from services.runtime.logs import LogFormat
from services.runtime.setting_kind import Kind


class SettingsError(Exception):
    """Settings are wrong: one line for each problem, with the flag's name; a usage error (exit code 2)."""


def settings_config(service: str) -> SettingsConfigDict:
    """Configuration of a settings class: environment prefix `KOLM_<SERVICE>_`, TOML table `[<service>]`."""
    return SettingsConfigDict(
        env_prefix=f"KOLM_{service.upper()}_",
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_implicit_flags=True,
        cli_prog_name=f"python -m services.{service}",
    )


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) <= 65535):
        raise ValueError("expected host:port, for example 127.0.0.1:50051; port 0 takes a free one")
    return value


Address = Annotated[str, AfterValidator(_host_and_port), Kind("HOST:PORT", "host:port", "0.0.0.0:50051")]
"""`host:port`; an IPv6 host in brackets."""

Size = Annotated[ByteSize, Field(ge=1), Kind("SIZE", "bytes, plain or with a unit", "2GiB")]
"""A number of bytes, plain or with a unit: 500MB, 2GiB."""


class ServerSettings(BaseSettings):
    """The settings of every server. Frozen; unknown names are refused."""

    model_config = settings_config("server")

    config: Path | None = Field(None, description="TOML file; this service reads the table of its name.")
    secrets_dir: Path | None = Field(None, description="Directory with one file per setting, for secrets.")
    listen: Address = Field("127.0.0.1:0", description="host:port to serve gRPC on; port 0 takes a free one.")
    ready_file: Path | None = Field(None, description="Written with host:port once the server accepts calls.")
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None,
        description="Serve Prometheus metrics on this port of the listening host; 0 takes a free one.",
        examples=[9090],
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level to log.")
    log_format: LogFormat = Field("text", description="Log lines as text or JSON.")
    grace_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        10.0, description="How long running calls may finish after SIGTERM, in seconds."
    )

    _files: ClassVar[tuple[Path | None, Path | None]] = (None, None)

    @classmethod
    def load(cls, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from command line flags and everything below them. Raises SettingsError; `--help` exits.

        `environment` is where --config and --secrets-dir are looked up besides the flags; default os.environ.
        """
        config, secrets = _source_paths(arguments, os.environ if environment is None else environment)
        configured = type(cls.__name__, (cls,), {"_files": (config, secrets), "__module__": cls.__module__})
        try:
            return configured(_cli_parse_args=list(arguments), _secrets_dir=secrets)  # type: ignore[no-any-return]
        except ValidationError as error:
            raise SettingsError("\n".join(_problems(error))) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Earlier ones win; flags stand before them all. A `.env` file is never read."""
        table = _toml_table(cls._files[0], _service_name(cls))
        return init_settings, env_settings, file_secret_settings, InitSettingsSource(settings_cls, table)


def _service_name(cls: type[BaseSettings]) -> str:
    return str(cls.model_config["env_prefix"]).removeprefix("KOLM_").removesuffix("_").lower()


def _source_paths(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    """The two settings that have to be known before the others can be read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path, default=environment.get("KOLM_CONFIG"))
    parser.add_argument("--secrets-dir", type=Path, default=environment.get("KOLM_SECRETS_DIR"))
    found, _ = parser.parse_known_args(list(arguments))
    secrets = Path(found.secrets_dir) if found.secrets_dir else None
    if secrets is not None and not secrets.is_dir():
        raise SettingsError(f"--secrets-dir: {secrets} is not a directory")
    return (Path(found.config) if found.config else None), secrets


def _toml_table(path: Path | None, name: str) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"--config: cannot read {path}: {error}") from None
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise SettingsError(f"--config: [{name}] in {path} is not a table")
    return table


def _problems(error: ValidationError) -> list[str]:
    """`--listen: expected host:port …`, without the values: they may be secrets."""
    return [
        f"--{'.'.join(str(part) for part in problem['loc']).replace('_', '-')}: "
        + problem["msg"].removeprefix("Value error, ")
        for problem in error.errors(include_url=False, include_input=False)
    ]
