"""`python -m services.explorer [--ledger HOST:PORT] [--trusted-keys DIR]`: the composition root of the explorer."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial

from ledger.errors import LedgerError
from ledger.witness.tlog_policy import Policy
from services.client.ledger.ledger import LedgerClient, key_entries
from services.client.ledger.verified import RememberedCheckpoint, VerifiedLedger
from services.explorer.app import explorer_app
from services.explorer.pages import Source
from services.explorer.settings import ExplorerSettings
from services.runtime.http.serving import serve_http
from services.runtime.process import CannotStart, run_service
from services.runtime.trusted_directory import TrustedDirectory


async def main(settings: ExplorerSettings) -> None:
    """Serve until a signal, also while the ledger is away. Raises CannotStart."""
    with closing(LedgerClient.connect(settings.ledger)) as client:
        await serve_http("explorer", explorer_app(_source(settings, client)), settings)


def _source(settings: ExplorerSettings, client: LedgerClient) -> Source:
    try:
        trusted = TrustedDirectory(settings.trusted_keys, key_entries=partial(key_entries, settings.ledger)).trusted()
        proving = VerifiedLedger(client, trusted, RememberedCheckpoint(settings.remember), origin=settings.origin)
        policy = None if settings.witness_policy is None else Policy.from_bytes(settings.witness_policy.read_bytes())
    except (LedgerError, OSError) as error:
        raise CannotStart(f"cannot open the explorer: {error}") from error
    return Source(client, proving, trusted, settings.origin, policy)


if __name__ == "__main__":
    sys.exit(run_service(ExplorerSettings, main))
