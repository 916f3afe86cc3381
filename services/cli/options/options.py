"""Options that several commands share, each with one name, one environment variable and one meaning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.failures.exits import UsageError

GENERATION, LEDGER, AUDITOR = "127.0.0.1:50051", "127.0.0.1:50052", "127.0.0.1:50053"
REGISTRY = "127.0.0.1:50054"
SERVER = "HOST:PORT"
"""Metavar for the address of a server; `https://HOST:PORT` is one too."""
DATA_DIR = Path(".kolm")
MODEL = Path("smollm2")


def found_model(context: typer.Context, param: typer.CallbackParam, named: Path | None) -> Path | None:
    """Callback of options that take a model: its directory or file, also if a package was named.

    Where nobody named one and the default's package is not installed, the one that was imported, if there is one.
    """
    if named is None:
        return None
    from services.generation.target.errors import ModelNotFound
    from services.generation.target.model_path import imported, model_path

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


def model(name: str, description: str) -> Any:
    """An option that takes a model, by default from the environment."""
    return typer.Option(name, envvar="KOLM_MODEL", metavar="DIR|GGUF|NAME", callback=found_model, help=description)


Model = Annotated[Path, model("--model", "A transformers directory, a GGUF file, or smollm2.")]
TrainedOn = Annotated[
    Path, model("--model", "The base it was trained on: a transformers directory, a GGUF file, or smollm2.")
]
Adapters = Annotated[
    list[str] | None,
    typer.Option("--adapter", metavar="NAME=DIR", help="LoRA adapter in peft's layout; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout instead of text.")]
Generation = Annotated[
    str, typer.Option("--generation", envvar="KOLM_GENERATION", metavar=SERVER, help="The generation service.")
]
Ledger = Annotated[str, typer.Option("--ledger", envvar="KOLM_LEDGER", metavar=SERVER, help="The ledger service.")]
Auditor = Annotated[str, typer.Option("--auditor", envvar="KOLM_AUDITOR", metavar=SERVER, help="The auditor.")]
Registry = Annotated[
    str, typer.Option("--registry", envvar="KOLM_REGISTRY", metavar=SERVER, help="The registry of heads.")
]
DataDir = Annotated[
    Path,
    typer.Option(
        "--data-dir", envvar="KOLM_DATA_DIR", metavar="DIR", help="Where `kolm up` keeps keys, ledger and state."
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="FILE|URL", help="A ledger's database, without a server: a file or postgresql+psycopg://…"
    ),
]
Origin = Annotated[str | None, typer.Option("--origin", help="Expect this name of the log in its checkpoints.")]
Trusted = Annotated[
    Path | None,
    typer.Option(
        "--trusted", envvar="KOLM_TRUSTED", metavar="DIR", help="Public keys to trust. Default: <data-dir>/trusted."
    ),
]


@dataclass(frozen=True, slots=True)
class Home:
    """The data directory, and the folder of the keys that count."""

    data_dir: DataDir = DATA_DIR
    trusted_keys: Trusted = None

    @property
    def trusted(self) -> Path:
        return self.trusted_keys or self.data_dir / "trusted"

    def trusted_beside(self, folder: Path) -> Path:
        """The keys that somebody named, those in this folder where there are any, or those here."""
        beside = folder / "trusted"
        return beside if self.trusted_keys is None and beside.is_dir() else self.trusted

    def key(self, role: str, named: Path | None = None) -> Path:
        """The private key that somebody named, or the one of this role that is kept here."""
        return named or self.data_dir / "keys" / f"{role}.pem"


HOME = Home()
Remember = Annotated[
    Path | None,
    typer.Option(
        "--remember", metavar="FILE", help="Keep the newest checkpoint here; refuse a log that does not extend it."
    ),
]
OperatorKey = Annotated[
    Path | None,
    typer.Option("--key", help="The operator's key, or a PKCS#11 URI. Default: <data-dir>/keys/operator.pem."),
]
KeyPassphrase = Annotated[
    Path | None,
    typer.Option(
        "--key-passphrase-file",
        envvar="KOLM_KEY_PASSPHRASE_FILE",
        metavar="FILE",
        help="The passphrase of an encrypted key, or the PIN of a device, in the first line of a file.",
    ),
]
PublisherKey = Annotated[
    Path | None,
    typer.Option("--key", help="The publisher's key, or a PKCS#11 URI. Default: <data-dir>/keys/publisher.pem."),
]
Receipt = Annotated[
    str, typer.Argument(help="A receipt's id, the beginning of one (8 digits or more), or the index of its entry.")
]
