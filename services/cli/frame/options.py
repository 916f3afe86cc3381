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
    from services.client import LedgerClient
    from services.client.registry import RegistryClient


GENERATION, LEDGER, AUDITOR = "127.0.0.1:50051", "127.0.0.1:50052", "127.0.0.1:50053"
REGISTRY = "127.0.0.1:50054"
SERVER = "HOST:PORT"
"""Metavar for the address of a server; `https://HOST:PORT` is one too."""
DATA_DIR = Path(".kolm")
MODEL = Path("smollm2")


def found_model(context: typer.Context, param: typer.CallbackParam, named: Path | None) -> Path | None:
    """Callback of options that take a model: its directory or file, also if a package was named.

    Where none was named and the default's package is not installed, the one that was imported, if there is one.
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


FORMER_NAMES = {"--base": "--model"}
"""Names of options that are taken and not shown, each with the one that took its place."""


def model(name: str, description: str, *former: str) -> Any:
    """An option that takes a model, by default from the environment; it had the `former` names before."""
    return Option(name, *former, envvar="KOLM_MODEL", metavar="DIR|GGUF|NAME", callback=found_model, help=description)


Model = Annotated[Path, model("--model", "A transformers directory, a GGUF file, or smollm2.")]
TrainedOn = Annotated[
    Path, model("--model", "The base it was trained on: a transformers directory, a GGUF file, or smollm2.")
]
Adapters = Annotated[
    list[str] | None, Option("--adapter", metavar="NAME=DIR", help="LoRA adapter in peft's layout; may be repeated.")
]
Json = Annotated[bool, Option("--json", help="Print JSON to stdout instead of text.")]


def run_folder(data_dir: Path) -> Path:
    """Where `kolm up` keeps the addresses of its services while they run: `<service>.address`, host:port each."""
    return data_dir / "run"


ADDRESS_FILES: dict[str, Path] = {}
"""Addresses that this process has found in a data folder, with the file that names each."""

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # where to call what listens there


def _found_address(context: typer.Context, param: typer.CallbackParam, address: str) -> str:
    """Callback of the addresses of services: where none is given, the one of the `kolm up` on this data folder."""
    source = context.get_parameter_source(param.name or "")
    if context.resilient_parsing or source is None or source.name != "DEFAULT":
        return address
    folder = context.params.get("data_dir") or Path(os.environ.get("KOLM_DATA_DIR") or DATA_DIR)
    file = run_folder(folder) / f"{param.name}.address"
    try:
        host, _, port = file.read_text(encoding="ascii").strip().rpartition(":")
    except (OSError, UnicodeDecodeError):
        return address
    found = f"{_EVERYWHERE.get(host, host)}:{port}"
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
    Option("--data-dir", envvar="KOLM_DATA_DIR", metavar="DIR", help="Where `kolm up` keeps keys, ledger and state."),
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
    """The data directory, and the folder of the keys that count."""

    data_dir: DataDir = DATA_DIR
    trusted_keys: Trusted = None

    @property
    def trusted(self) -> Path:
        return self.trusted_keys or self.data_dir / "trusted"

    def trusted_beside(self, folder: Path) -> Path:
        """The keys that were named, those in this folder where there are any, or those here."""
        beside = folder / "trusted"
        return beside if self.trusted_keys is None and beside.is_dir() else self.trusted

    def key(self, role: str, named: Path | None = None) -> Path:
        """The private key that was named, or the one of this role that is kept here."""
        return named or self.data_dir / "keys" / f"{role}.pem"


PATHS = Paths()


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """The data folder, of a command that reads nothing else in it than the addresses of services."""

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
    """The values that the audited server has."""

    adapter: Adapters = None
    context_length: Annotated[
        int | None, Option(min=1, metavar="TOKENS", help="The server's, where it was given one.")
    ] = None
    cache_dtype: Annotated[
        str | None, Option(metavar="float32|bfloat16|int8", help="The server's, where it was given one.")
    ] = None
    arithmetic: Annotated[str | None, Option(metavar="float32|int8", help="The server's, where it was given one.")] = (
        None
    )

    def plan(self, model: Path) -> EnginePlan:
        """Raises UsageError for an adapter without a name."""
        from services.auditor.examination import EnginePlan

        return EnginePlan(
            model, named_adapters(self.adapter or ()), self.context_length, self.cache_dtype, self.arithmetic
        )


ENGINE = EngineOptions()


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How this process speaks with servers, and as whom."""

    tls_ca: Annotated[
        Path | None,
        Option("--tls-ca", envvar="KOLM_TLS_CA", metavar="FILE", help="The authority (PEM) of the servers: speak TLS."),
    ] = None
    tls_cert: Annotated[
        Path | None,
        Option(
            "--tls-cert", envvar="KOLM_TLS_CERT", metavar="FILE", help="Your certificate (PEM), where they ask for one."
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
        Option("--token-file", metavar="FILE", help="A file with the token. Default: what `kolm up` left you."),
    ] = None

    def for_process(self) -> None:
        """Makes them the files of all clients of this process. Raises UsageError for files that are not there."""
        pem = "a file in PEM; `kolm init` makes them for development"
        for name, path in (("--tls-ca", self.tls_ca), ("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            expect_files(name, [path] if path else [], pem)
        expect_files("--token-file", [self.token_file] if self.token_file else [], "a file with a token")
        if self.tls_ca or self.tls_cert or self.tls_key:
            from services.client.identity import ClientTls

            ClientTls(self.tls_ca, self.tls_cert, self.tls_key).for_process()
        if self.token is not None or self.token_file is not None:
            from services.client.identity import show

            show(self.token, self.token_file)


def ledger_at(address: str) -> LedgerClient:
    """A client of the ledger service. gRPC is imported once a service is asked."""
    from services.client import LedgerClient

    return LedgerClient.connect(address)


def registry_at(address: str) -> RegistryClient:
    """A client of the registry of heads."""
    from services.client.registry import RegistryClient

    return RegistryClient.connect(address)
