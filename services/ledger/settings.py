"""Settings of the ledger service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from services.runtime.setting_kind import Name
from services.runtime.settings import Address, RpcServerSettings, Size, settings_config


class LedgerSettings(RpcServerSettings):
    """Flags of `python -m services.ledger`, environment `KOLM_LEDGER_…`, TOML table `[ledger]`."""

    model_config = settings_config("ledger")

    listen: Address = Field("127.0.0.1:50052", description="host:port to serve gRPC on; port 0 takes a free one.")
    data_dir: Path = Field(description="Folder of the log: ledger.sqlite3, guard.sqlite3, content-keys, keys.")
    database_url: SecretStr | None = Field(
        None,
        description="postgresql+psycopg://USER:PASSWORD@HOST/DATABASE, or sqlite:///PATH. "
        "Default: <data-dir>/ledger.sqlite3.",
        examples=["postgresql+psycopg://kolm:change-me@postgres/kolm"],
    )
    guard_url: SecretStr | None = Field(
        None,
        description="Database of the newest head, against restored backups: on another disk or host than the log. "
        "Default: <data-dir>/guard.sqlite3.",
        examples=["sqlite:////mnt/other/guard.sqlite3"],
    )
    content_keys_url: SecretStr | None = Field(
        None,
        description="Database of the keys that open prompts and outputs at rest: outside of the database's backups, so "
        "that erased contents stay erased. Default: <data-dir>/content-keys/keys.sqlite3.",
        examples=["sqlite:////mnt/other/content-keys.sqlite3"],
    )
    new_content_keys: bool = Field(
        False,
        description="Open a log with sealed contents without their keys: for one start, once you know that the keys "
        "are lost, and the contents with them.",
    )
    new_guard: bool = Field(
        False,
        description="Open a log with entries although its guard is gone or does not know the log: for one start, once "
        "you know that the database is not an old backup.",
    )
    key_file: Path | None = Field(
        None,
        description="The log's private key, made at first start (mode 0600), or the PKCS#11 URI of one in a device. "
        "Default: <data-dir>/keys/log.pem.",
    )
    key_passphrase_file: Path | None = Field(
        None, description="A file with the passphrase of the private key, or the PIN of its device, in its first line."
    )
    trusted_keys: Path | None = Field(
        None, description="Public keys that may sign, put there by `kolm trust add`. Default: <data-dir>/trusted."
    )
    origin: Name = Field("kolm.local/ledger", description="The log's name in its checkpoints; must never change.")
    witness_policy: Path | None = Field(
        None,
        description="Witnesses to collect cosignatures from, each with its URL, and the quorum of a witnessed "
        "checkpoint: a C2SP tlog-policy file.",
    )
    witness_seconds: float = Field(10.0, gt=0, description="Seconds between two rounds of cosignatures.")
    witness_timeout: float = Field(10.0, gt=0, description="Time limit for a witness's answer, in seconds.")
    retention_seconds: float = Field(
        3600.0, gt=0, description="Seconds between polls for contents that a retention policy has ended."
    )
    max_message: Size = Field(
        4 << 20, validate_default=True, description="Largest accepted message: entries with their content."
    )
    queue_size: int = Field(4096, ge=1, description="Entries that may wait to be written before callers are refused.")
    batch_size: int = Field(256, ge=1, le=4096, description="Most entries of one transaction.")

    @property
    def database(self) -> Path | str:
        """The database of `SqlEntryStore`."""
        return self.database_url.get_secret_value() if self.database_url else self.data_dir / "ledger.sqlite3"

    @property
    def guard(self) -> Path | str:
        """The database of `SqlGuard`."""
        return self.guard_url.get_secret_value() if self.guard_url else self.data_dir / "guard.sqlite3"

    @property
    def content_keys(self) -> Path | str:
        """The database of `SqlContentKeys`."""
        if self.content_keys_url:
            return self.content_keys_url.get_secret_value()
        return self.data_dir / "content-keys" / "keys.sqlite3"

    @property
    def witnessed(self) -> Path:
        """The folder of cosigned checkpoints."""
        return self.data_dir / "witnessed"

    @property
    def vkey_file(self) -> Path:
        """The file of the log's verifier key, for witnesses and policies."""
        return self.data_dir / "log.vkey"

    @property
    def public_directory(self) -> Path:
        """The folder of the log's public key, for an operator who adds it to trusted keys, and of its verifier key, for
        a witness without access to the ledger.
        """
        return self.data_dir / "public"

    @property
    def log_key(self) -> Path:
        return self.key_file or self.data_dir / "keys" / "log.pem"

    @property
    def trusted_directory(self) -> Path:
        return self.trusted_keys or self.data_dir / "trusted"
