"""Settings of the witness."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.runtime.settings import Address, ServerSettings, settings_config


class WitnessSettings(ServerSettings):
    """Flags of `python -m services.witness`, environment `KOLM_WITNESS_…`, TOML table `[witness]`."""

    model_config = settings_config("witness")

    listen: Address = Field("127.0.0.1:50055", description="host:port to serve HTTP on; port 0 takes a free one.")
    data_dir: Path = Field(description="The witness's memory, witness.sqlite3, and its key. It must never be lost.")
    name: str = Field("kolm.local/witness", description="The name of the witness in its cosignatures.")
    key_file: Path | None = Field(
        None,
        description="The witness's private key, made at first start (mode 0600), or the PKCS#11 URI of one in a device."
        " Default: <data-dir>/witness.pem.",
    )
    key_passphrase_file: Path | None = Field(
        None, description="A file with the passphrase of the private key, or the PIN of its device, in its first line."
    )
    logs: Path = Field(
        description="The watched logs: a file with a verifier key (vkey) on each line, a log's newest key last."
    )

    @property
    def witness_key(self) -> Path:
        return self.key_file or self.data_dir / "witness.pem"

    @property
    def memory(self) -> Path:
        return self.data_dir / "witness.sqlite3"

    @property
    def public_file(self) -> Path:
        """The file of the witness's verifier key, for policies."""
        return self.data_dir / "vkey"
