"""`kolm trust add`, as a person runs it before services start, for tests that are about something else."""

from __future__ import annotations

from pathlib import Path

from ledger.keys.ed25519 import SigningKey
from services.ledger.settings import LedgerSettings


def trust_log(settings: LedgerSettings) -> LedgerSettings:
    """Make the log's key, and trust it; the settings."""
    settings.trusted_directory.mkdir(parents=True, exist_ok=True)
    SigningKey.load_or_create(settings.log_key, "log").publish(settings.trusted_directory)
    return settings


def trust_log_in(data_dir: Path) -> None:
    """The same for a ledger with the default places."""
    trust_log(LedgerSettings(data_dir=data_dir))
