"""Settings of the registry service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.runtime.setting_kind import Target
from services.runtime.settings import Address, RpcServerSettings, Size, settings_config

_GIB = 1024**3


class RegistrySettings(RpcServerSettings):
    """Flags of `python -m services.registry`, environment `KOLM_REGISTRY_…`, TOML table `[registry]`."""

    model_config = settings_config("registry")

    listen: Address = Field("127.0.0.1:50054", description="host:port to serve gRPC on; port 0 takes a free one.")
    data_dir: Path = Field(description="Folder of unfinished uploads and, by default, of the catalogue and the blobs.")
    blobs: str | None = Field(
        None,
        description="Storage of blobs: a folder, or s3://bucket/prefix, gs://bucket/prefix, az://container/prefix with "
        "the credentials that their tools read from the environment; ?endpoint=http://… for your own server. "
        "Default: <data-dir>/blobs.",
        examples=["s3://heads/kolm"],
    )
    database: str | None = Field(
        None,
        description="The catalogue: postgresql+psycopg://… or sqlite:///…. Default: <data-dir>/registry.sqlite3.",
        examples=["postgresql+psycopg://kolm:change-me@postgres/registry"],
    )
    ledger: Target = Field("127.0.0.1:50052", description="The ledger service, host:port or any gRPC name.")
    trusted_keys: Path | None = Field(
        None,
        description="Public keys to trust, put there by `kolm trust add`: publisher-*.pub may publish, log-*.pub signs "
        "the ledger. Default: <data-dir>/trusted.",
    )
    max_blob_bytes: int = Field(4 * _GIB, ge=1, description="Largest accepted blob.")
    max_message: Size = Field(
        2 << 20, validate_default=True, description="Largest accepted message; blobs come in pieces of 1 MiB."
    )
    disk_reserve: Size = Field(
        1 << 30,
        validate_default=True,
        description="Disk space that has to stay free; an upload that would use it is refused.",
    )
    upload_days: float = Field(7.0, gt=0, description="Days after which an abandoned upload is deleted.")

    @property
    def blobs_location(self) -> str:
        return self.blobs or str(self.data_dir / "blobs")

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data_dir / 'registry.sqlite3'}"

    @property
    def uploads(self) -> Path:
        return self.data_dir / "uploads"

    @property
    def trusted_directory(self) -> Path:
        return self.trusted_keys or self.data_dir / "trusted"
