"""Options that several commands share, each with one name, one environment variable and one meaning."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from services.cli.frame.exits import UsageError
from services.cli.frame.values import expect_files, named_adapters
from services.generation.target.errors import ModelNotFound
from services.generation.target.model_path import imported, model_path

if TYPE_CHECKING:
    from services.auditor.examination import EnginePlan
    from services.client.ledger.ledger import LedgerClient
    from services.client.registry import RegistryClient


GENERATION, LEDGER, AUDITOR = "127.0.0.1:50051", "127.0.0.1:50052", "127.0.0.1:50053"
REGISTRY = "127.0.0.1:50054"
SERVER = "HOST:PORT"
MOST_ENTRIES = 10**15  # far below 2**53, up to which JSON has an index
"""Metavar for the address of a server; `https://HOST:PORT` is one too."""
DATA_DIR = Path(".kolm")
MODEL = Path("smollm2")


ADDRESS_FILES: dict[str, Path] = {}
"""The file of each address that this process found in a data folder."""

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # where to call what listens there


def callable_at(listens_at: str) -> str:
    """The address at which this machine calls a server."""
    host, _, port = listens_at.rpartition(":")
    return f"{_EVERYWHERE.get(host, host)}:{port}"


def found_model(context: typer.Context, param: typer.CallbackParam, named: Path | None) -> Path | None:
    """Callback of options that take a model: its directory or file, also if a package was named.

    If no model was named and the default's package is not installed, it is the only imported model, if there is one.
    """
    if named is None:
        return None
    name = param.opts[0] if param.opts[0].startswith("-") else param.opts[0].upper()
    try:
        return model_path(named)
    except ModelNotFound as error:
        others = imported()
        source = context.get_parameter_source(param.name or "")
        if len(others) == 1 and source is not None and source.name == "DEFAULT":
            return next(iter(others.values()))
        named_ones = f"or name another with {name}: {', '.join(others)}" if others else None
        hint = named_ones or "`kolm models list` shows which have a name"
        raise UsageError(f"{name}: {error}", hint) from error


def engine_access(param: typer.CallbackParam, value: Any) -> Any:
    """Callback of options that take the URL of another engine, or the file with its key."""
    from services.runtime.setting_kind import key_in, reachable

    try:
        if value is not None:
            key_in(value) if isinstance(value, Path) else reachable(value)
    except ValueError as error:
        raise UsageError(f"{param.opts[0]}: {error}") from error
    return value


def model(name: str, description: str) -> Any:
    """An option that takes a model, by default from the environment."""
    return Option(name, envvar="KOLM_MODEL", metavar="DIR|GGUF|NAME", callback=found_model, help=description)


Model = Annotated[Path, model("--model", "A transformers directory, a GGUF file, or a name.")]
TrainedOn = Annotated[
    Path, model("--model", "The base it was trained on: a transformers directory, a GGUF file, or a name.")
]
Adapters = Annotated[
    list[str] | None, Option("--adapter", metavar="NAME=DIR", help="LoRA adapter in peft's layout; may be repeated.")
]
Json = Annotated[bool, Option("--json", help="Print JSON to stdout instead of text.")]


def run_folder(data_dir: Path) -> Path:
    """Folder of the addresses of `kolm up`'s running services: `<service>.address`, host:port each."""
    return data_dir / "run"


def _found_address(context: typer.Context, param: typer.CallbackParam, address: str) -> str:
    """Callback of the addresses of services: by default the address in this data folder's `kolm up`."""
    source = context.get_parameter_source(param.name or "")
    if context.resilient_parsing or source is None or source.name != "DEFAULT":
        return address
    folder = context.params.get("data_dir") or Path(os.environ.get("KOLM_DATA_DIR") or DATA_DIR)
    file = run_folder(folder) / f"{param.name}.address"
    try:
        found = callable_at(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):
        return address
    ADDRESS_FILES[found] = file
    return found


def _server(name: str, description: str) -> Any:
    """An option that takes the address of a service, by default from the environment or the data folder."""
    variable = f"KOLM_{name.upper()}"
    return Option(f"--{name}", envvar=variable, metavar=SERVER, callback=_found_address, help=description)


Generation = Annotated[str, _server("generation", "The generation service.")]
Ledger = Annotated[str, _server("ledger", "The ledger service.")]
Auditor = Annotated[str, _server("auditor", "The auditor.")]
Registry = Annotated[str, _server("registry", "The registry of heads.")]
DataDir = Annotated[
    Path,
    Option("--data-dir", envvar="KOLM_DATA_DIR", metavar="DIR", help="Folder of keys, ledger and state of `kolm up`."),
]
Database = Annotated[
    str | None,
    Option(
        "--database", metavar="FILE|URL", help="A ledger's database, without a server: a file or postgresql+psycopg://…"
    ),
]
Origin = Annotated[str | None, Option("--origin", help="Expect this name of the log in its checkpoints.")]
Trusted = Annotated[
    Path | None,
    Option(
        "--trusted", envvar="KOLM_TRUSTED", metavar="DIR", help="Public keys to trust. Default: <data-dir>/trusted."
    ),
]


@dataclass(frozen=True, slots=True)
class Paths:
    """The data directory, and the folder of trusted keys."""

    data_dir: DataDir = DATA_DIR
    trusted_keys: Trusted = None

    @property
    def trusted(self) -> Path:
        return self.trusted_keys or self.data_dir / "trusted"

    def trusted_beside(self, folder: Path) -> Path:
        """The trusted keys that were named, or else those in `folder`, or else those of the data directory."""
        beside = folder / "trusted"
        return beside if self.trusted_keys is None and beside.is_dir() else self.trusted

    def key(self, role: str, named: Path | None = None) -> Path:
        """The private key that was named, or this role's key in the data directory."""
        return named or self.data_dir / "keys" / f"{role}.pem"


PATHS = Paths()


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """The data folder, for commands that read only the addresses of services in it."""

    data_dir: DataDir = DATA_DIR


Remember = Annotated[
    Path | None,
    Option("--remember", metavar="FILE", help="Keep the newest checkpoint here; refuse a log that does not extend it."),
]
OperatorKey = Annotated[
    Path | None, Option("--key", help="The operator's key, or a PKCS#11 URI. Default: <data-dir>/keys/operator.pem.")
]
KeyPassphrase = Annotated[
    Path | None,
    Option(
        "--key-passphrase-file",
        envvar="KOLM_KEY_PASSPHRASE_FILE",
        metavar="FILE",
        help="The passphrase of an encrypted key, or the PIN of a device, in the first line of a file.",
    ),
]
PublisherKey = Annotated[
    Path | None, Option("--key", help="The publisher's key, or a PKCS#11 URI. Default: <data-dir>/keys/publisher.pem.")
]
Receipt = Annotated[
    str, Argument(help="A receipt's id, the beginning of one (8 digits or more), or the index of its entry.")
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings that must equal those of the audited server."""

    adapter: Adapters = None
    context_length: Annotated[
        int | None, Option(min=32, metavar="TOKENS", help="Context length of the server, if it was set.")
    ] = None
    cache_dtype: Annotated[
        str | None, Option(metavar="float32|bfloat16|int8", help="Cache dtype of the server, if it was set.")
    ] = None
    arithmetic: Annotated[
        str | None, Option(metavar="float32|int8", help="Arithmetic of the server, if it was set.")
    ] = None

    def plan(self, model: Path) -> EnginePlan:
        """Raises UsageError for an adapter without a name."""
        from services.auditor.examination import EnginePlan
        from services.generation.target.model_settings import PACKED_BYTES

        return EnginePlan(
            model, named_adapters(self.adapter or ()), self.context_length, self.cache_dtype, self.arithmetic,
            packed_bytes=PACKED_BYTES,
        )  # fmt: skip


ENGINE = EngineOptions()


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """TLS and credentials of this process as a client."""

    tls_ca: Annotated[
        Path | None,
        Option(
            "--tls-ca",
            envvar="KOLM_TLS_CA",
            metavar="FILE",
            help="Certificate authority (PEM) of the servers; enables TLS.",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        Option(
            "--tls-cert",
            envvar="KOLM_TLS_CERT",
            metavar="FILE",
            help="Your certificate (PEM), for servers that ask for one.",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Option("--tls-key", envvar="KOLM_TLS_KEY", metavar="FILE", help="The private key of --tls-cert (PEM)."),
    ] = None
    token: Annotated[
        str | None, Option("--token", metavar="TOKEN", help="Bearer token (processes can see it; prefer --token-file).")
    ] = None
    token_file: Annotated[
        Path | None,
        Option("--token-file", metavar="FILE", help="A file with the token. Default: the token of `kolm up`."),
    ] = None

    def for_process(self) -> None:
        """Sets them for all clients of this process. Raises UsageError for missing files."""
        pem = "a file in PEM; `kolm init` makes them for development"
        for name, path in (("--tls-ca", self.tls_ca), ("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            expect_files(name, [path] if path else [], pem)
        expect_files("--token-file", [self.token_file] if self.token_file else [], "a file with a token")
        if self.tls_ca or self.tls_cert or self.tls_key:
            from services.client.identity import ClientTls

            ClientTls(self.tls_ca, self.tls_cert, self.tls_key).for_process()
        if self.token is not None or self.token_file is not None:
            from services.client.identity import set_process_token

            set_process_token(self.token, self.token_file)


def ledger_at(address: str) -> LedgerClient:
    """A client of the ledger service. gRPC is imported here, not at start."""
    from services.client.ledger.ledger import LedgerClient

    return LedgerClient.connect(address)


def registry_at(address: str) -> RegistryClient:
    """A client of the registry of heads."""
    from services.client.registry import RegistryClient

    return RegistryClient.connect(address)
