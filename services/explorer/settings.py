"""Settings of the explorer."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.runtime.setting_kind import Name, Target
from services.runtime.settings import Address, ServerSettings, settings_config


class ExplorerSettings(ServerSettings):
    """Flags of `python -m services.explorer`, environment `KOLM_EXPLORER_…`, TOML table `[explorer]`."""

    model_config = settings_config("explorer")

    listen: Address = Field("127.0.0.1:50056", description="host:port to serve HTTP on; port 0 takes a free one.")
    ledger: Target = Field("127.0.0.1:50052", description="The ledger to show, host:port or any gRPC name.")
    trusted_keys: Path = Field(
        Path(".kolm/trusted"), description="The public keys that proofs are checked against, <role>-<name>.pub."
    )
    origin: Name | None = Field(
        None,
        description="The log's name in its checkpoints. Default: the first one seen.",
        examples=["kolm.local/ledger"],
    )
    witness_policy: Path | None = Field(
        None, description="Witnesses whose cosignatures are checked, and how many count: a C2SP tlog-policy file."
    )
    remember: Path | None = Field(
        None,
        description="File for the newest checkpoint seen: after a restart, a log that does not extend it is refused.",
    )
