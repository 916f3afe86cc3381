"""Settings of a server: flags > environment > secrets directory > TOML > defaults.

A service subclasses `ServerSettings` and loads it once, in its composition root:

    class LedgerSettings(ServerSettings):
        model_config = settings_config("ledger")      # KOLM_LEDGER_…, table [ledger]
        data_dir: Path = Field(description="…")

    settings = LedgerSettings.load(sys.argv[1:])

`--config FILE` (KOLM_CONFIG) names the TOML file, `--secrets-dir DIR` (KOLM_SECRETS_DIR) a directory with one file a
setting, named as the environment variable.

Variables and secrets are read by pydantic-settings' own sources. Flags and TOML are read here: CliSettingsSource splits
values at commas and knows an unknown flag as a sentence only, and a wrong key of TOML has no line there.
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import AfterValidator, ByteSize, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableVariable

from services.client.identity import ClientTls
from services.runtime.limits import Limits
from services.runtime.listening import ServedNames, ServerTls, host_name, is_loopback
from services.runtime.setting_kind import Kind, default_of, kind_of, plain
from services.runtime.usage import (
    SERVICES,
    Row,
    Section,
    SettingsError,
    did_you_mean,
    help_page,
    unknown_variables,
    unread,
)

__all__ = ["Address", "ServerSettings", "SettingsError", "Size", "settings_config"]

_HELP = Row("-h, --help", "Show this message and exit.")
_HEADER = re.compile(r"\s*\[\s*[\"']?([\w-]+)[\"']?\s*\]")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")

PublicName = Annotated[str, AfterValidator(host_name), Kind("NAME", "host name", "chat.example")]
"""A name in DNS, or of a container or a machine nearby."""

PemFile = Annotated[Path, Kind("FILE", "PEM file", "/etc/kolm/tls/service.pem")]
"""Certificates, or a private key."""

Size = Annotated[ByteSize, Field(ge=1), Kind("SIZE", "bytes, plain or with a unit", "2GiB")]
"""A number of bytes, plain or with a unit: 500MB, 2GiB."""

SizeOrNone = Annotated[ByteSize, Field(ge=0), Kind("SIZE", "bytes, plain or with a unit, 0 for none", "2GiB")]
"""A `Size`, or 0."""

LogFormat = Literal["text", "json"]
_MIB = 1 << 20


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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise SettingsError for `argument --listen: expected one argument`, in the form of the other problems."""
        named = message.removeprefix("argument ")
        raise SettingsError(named.replace("expected one argument", "expected a value after it"))


def service_help(service: str, own: Mapping[str, FieldInfo], shared: Mapping[str, FieldInfo]) -> str:
    """The page of `kolm serve SERVICE --help`: the service's own flags, then the flags of every service."""
    summary = (
        f"Flags come before variables (KOLM_{service.upper()}_LISTEN for --listen), those before files in "
        f"--secrets-dir, those before the table [{service}] of --config. docs/configuration.md has an example for each."
    )
    return help_page(
        f"kolm serve {service} [OPTIONS]",
        summary,
        [
            Section("Options", tuple(_row(name, field) for name, field in own.items())),
            Section("Options of every service", (*(_row(name, field) for name, field in shared.items()), _HELP)),
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


@dataclass(frozen=True, slots=True)
class TomlTable:
    """The values below `[name]` of `path`; empty without a file."""

    path: Path | None
    name: str
    values: dict[str, Any]

    @classmethod
    def read(cls, path: Path | None, name: str, known: Collection[str]) -> TomlTable:
        """Raises SettingsError for a file that is not TOML, and for names of tables and settings that nothing reads."""
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
    """A whole TOML file. Raises SettingsError, with line and column of invalid TOML."""
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


def settings_config(service: str) -> SettingsConfigDict:
    """Configuration of a settings class: environment prefix `KOLM_<SERVICE>_`, TOML table `[<service>]`.

    An empty variable counts as unset: compose files hand one over for each that their caller has not set.
    """
    prefix = f"KOLM_{service.upper()}_"
    return SettingsConfigDict(env_prefix=prefix, env_ignore_empty=True, extra="forbid", frozen=True)


def _host_and_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    bare = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if bare or not (colon and host and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        problem = "expected host:port, for example 127.0.0.1:50051 or [::1]:50051; port 0 takes a free one"
        raise ValueError(problem)
    return value


Address = Annotated[str, AfterValidator(_host_and_port), Kind("HOST:PORT", "host:port", "0.0.0.0:50051")]
"""`host:port`; an IPv6 host in brackets."""


class ServerSettings(BaseSettings):
    """The settings of every server. Frozen; unknown names are refused."""

    model_config = settings_config("server")

    config: Path | None = Field(None, description="TOML file; this service reads the table of its name.")
    secrets_dir: Path | None = Field(None, description="Directory of secrets, with one file for each setting.")
    listen: Address = Field("127.0.0.1:0", description="host:port to serve gRPC on; port 0 takes a free one.")
    ready_file: Path | None = Field(None, description="Written with host:port once the server accepts calls.")
    principals: Path | None = Field(
        None,
        description="The principals: the file that `kolm tokens create` writes. Without it, only this user's "
        "clients on this machine may call, and generate for the default tenant: they find the token of this start.",
    )
    token_file: Path | None = Field(
        None, description="A file with this service's token for calls to other services. Default: KOLM_TOKEN_FILE."
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None,
        description="Serve Prometheus metrics on this port of the listening host; 0 takes a free one.",
        examples=[9090],
    )
    public_name: tuple[PublicName, ...] = Field(
        (),
        description="A further name of this server for HTTP without TLS, besides addresses and localhost: a proxy's, a "
        "container's. May be repeated; all other names are refused with 421.",
        examples=["chat.example"],
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level to log.")
    log_format: LogFormat = Field("text", description="Log lines as text or JSON.")
    grace_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        10.0, description="Seconds that running calls have to finish after SIGTERM."
    )

    tls_cert: PemFile | None = Field(
        None,
        description="This service's certificate chain. A renewed file is used at the next handshake, and for calls to "
        "other services after a restart.",
    )
    tls_key: PemFile | None = Field(None, description="The private key of that certificate.")
    tls_client_ca: PemFile | None = Field(None, description="Callers need a certificate of this authority: mutual TLS.")
    tls_ca: PemFile | None = Field(
        None, description="The authority of the called services, to which this service presents --tls-cert."
    )
    insecure: bool = Field(
        False, description="Serve beyond this machine without TLS: anyone on the network can read the traffic."
    )

    _table: ClassVar[TomlTable] = TomlTable(None, "", {})

    @model_validator(mode="after")
    def _listens_safely(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key: expected both, a certificate and its key, or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca: needs --tls-cert and --tls-key")
        host = self.listen.rpartition(":")[0]
        if self.tls_cert is None and not self.insecure and not is_loopback(host):
            raise ValueError(
                f"--listen: {host} is reached from other machines, and there is no TLS; expected --tls-cert and "
                "--tls-key (`kolm init` makes them), a loopback address, or --insecure: traffic can then be read"
            )
        return self

    @property
    def server_tls(self) -> ServerTls | None:
        """The certificate files that this service serves with; None without TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def served_names(self) -> ServedNames | None:
        """The names by which it is called over HTTP; None over TLS, where its certificate has them."""
        host = self.listen.rpartition(":")[0].lower()
        return ServedNames((host, *self.public_name)) if self.server_tls is None else None

    @property
    def client_tls(self) -> ClientTls:
        """The TLS files with which this service calls others."""
        return ClientTls(self.tls_ca, *((self.tls_cert, self.tls_key) if self.tls_ca else (None, None)))

    @classmethod
    def load(cls, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None) -> Self:
        """Settings from command line flags and everything below them. Raises SettingsError; `--help` exits.

        `environment` is where --config and --secrets-dir are looked up besides the flags; default os.environ.
        """
        if {"-h", "--help"} & set(arguments):
            shared = {name: field for name, field in ServerSettings.model_fields.items() if name != "listen"}
            own = {name: field for name, field in cls.model_fields.items() if name not in shared}
            print(service_help(cls.service_name(), own, shared), end="")
            raise SystemExit(0)
        given = given_flags(cls.model_fields, arguments)
        _expect_utf8({flag(name): value for name, value in given.items()})
        prefix = str(cls.model_config["env_prefix"])
        _expect_utf8({name: value for name, value in os.environ.items() if name.upper().startswith(prefix)})
        for prefix, name in product((cls.model_config["env_prefix"], "KOLM_"), ("config", "secrets_dir")):
            if file := (os.environ if environment is None else environment).get(f"{prefix}{name.upper()}"):
                given.setdefault(name, file)
        config = Path(given["config"]) if "config" in given else None
        table = TomlTable.read(config, cls.service_name(), cls.model_fields.keys() - {"config"})
        folder = given.get("secrets_dir", table.values.get("secrets_dir"))
        secrets = Path(folder) if isinstance(folder, str) else None
        if secrets is not None and not secrets.is_dir():
            raise SettingsError(f"--secrets-dir: {secrets} is not a directory")
        configured = type(cls.__name__, (cls,), {"_table": table, "__module__": cls.__module__})
        try:
            return configured(**given, _secrets_dir=secrets)  # type: ignore[no-any-return]
        except ValidationError as error:
            raise SettingsError("\n".join(_problems(cls, error, given, table, secrets))) from None
        except UnreadableVariable as error:
            raise SettingsError(_unreadable(cls, error)) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources in order of precedence, flags first. A `.env` file is never read."""
        return init_settings, env_settings, file_secret_settings, InitSettingsSource(settings_cls, cls._table.values)

    @classmethod
    def service_name(cls) -> str:
        """The name of its TOML table and, in capitals, in its variables."""
        return str(cls.model_config["env_prefix"]).removeprefix("KOLM_").removesuffix("_").lower()

    @classmethod
    def unread_variables(cls) -> list[str]:
        """A line for each variable of the environment that begins as kolm's do, and that nothing reads."""
        prefix = str(cls.model_config["env_prefix"])
        known = [prefix + name.upper() for name in cls.model_fields]
        own = [name for name in os.environ if name.startswith(prefix) and name.upper() not in known]
        others = unknown_variables(os.environ, (*SERVICES, cls.service_name()))
        return [unread(name, known) for name in sorted({*unknown_variables(own, ()), *others})]


def _expect_utf8(values: Mapping[str, Any]) -> None:
    """Raises SettingsError for a flag or a variable with bytes that are not UTF-8."""
    for name, value in values.items():
        text = "".join(value) if isinstance(value, list) else str(value)
        if any("\ud800" <= each <= "\udfff" for each in text):
            raise SettingsError(f"{name}: expected UTF-8")


def _problems(
    cls: type[BaseSettings], error: ValidationError, given: Mapping[str, Any], table: TomlTable, secrets: Path | None
) -> list[str]:
    """Lines such as `--listen: expected host:port …`: the source of a value, and the expected kind, without the value,
    which may be a secret.
    """
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        variable = f"{cls.model_config['env_prefix']}{name.upper()}"
        message = problem["msg"].removeprefix("Value error, ")
        if name and problem["type"] != "value_error":
            kind = kind_of(name, cls.model_fields[name])
            message = f"expected {kind.words}, for example {plain(kind.example)}"
        if problem["type"] == "missing":
            lines.append(f"{flag(name)}: is needed; or {variable}, or {name} in the table [{table.name}] of --config")
        elif not name:
            lines.append(message)
        elif name in given:
            lines.append(f"{flag(name)}: {message}")
        elif variable in os.environ:
            lines.append(f"{variable}: {message}")
        elif secrets is not None and (secrets / variable).exists():
            lines.append(f"{secrets / variable}: {message}")
        else:
            lines.append(f"{table.place(name) if name in table.values else flag(name)}: {message}")
    return lines


def _unreadable(cls: type[BaseSettings], error: UnreadableVariable) -> str:
    """The message for a list that is not JSON, in a variable or a secret's file, or for a file that is not UTF-8."""
    name = next((name for name in cls.model_fields if f'"{name}"' in str(error)), "")
    variable = f"{cls.model_config['env_prefix']}{name.upper()}"
    if isinstance(error.__cause__, UnicodeDecodeError):
        return f"{variable}: expected UTF-8"
    example = kind_of(name, cls.model_fields[name]).example if name else ""
    return f'{variable}: expected a list in JSON, for example ["{example}"]'


class RpcServerSettings(ServerSettings):
    """Limits of a gRPC server, besides the settings of every server."""

    max_message: Size = Field(
        8 * _MIB, validate_default=True, description="Largest accepted message, in its size on the wire."
    )
    request_memory: Size = Field(
        128 * _MIB,
        validate_default=True,
        description="Memory of running requests, counted as eight times their size on the wire; further ones wait.",
    )
    max_calls: int = Field(
        1024, ge=1, description="Most concurrent calls; a further one is refused with a time to retry."
    )
    max_calls_per_caller: int = Field(
        256, ge=1, description="Most concurrent calls of one principal or, without one, of one address."
    )
    max_streams_per_caller: int = Field(32, ge=1, description="Most of these calls whose requests are a stream.")
    max_connections: int = Field(1024, ge=1, description="Most concurrent connections; a further one is closed.")

    @property
    def limits(self) -> Limits:
        return Limits(
            message_bytes=self.max_message,
            request_bytes=self.request_memory,
            calls=self.max_calls,
            calls_of_caller=self.max_calls_per_caller,
            streams_of_caller=self.max_streams_per_caller,
            connections=self.max_connections,
        )
