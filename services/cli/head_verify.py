"""`kolm heads verify` on a folder, or on what a reference names."""

from __future__ import annotations

import tempfile
from contextlib import closing, nullcontext
from pathlib import Path

from ledger.keys import TrustedKeys
from services.cli.exits import UsageError
from services.cli.head_place import folder_of
from services.cli.head_pull import Checked, pull, verify_folder
from services.client import LedgerClient
from services.client.registry import RegistryClient


def verified(head: str, trusted: TrustedKeys, registry: str, ledger: str | None) -> Checked:
    """Raises HeadRefused, FormatError, KolmError, UsageError."""
    folder = folder_of(head)
    if folder is not None:
        with LedgerClient.connect(ledger) if ledger else nullcontext() as log:
            return verify_folder(folder, trusted, log)
    if ledger is None:
        raise UsageError(f"{head} is no folder; a reference cannot be checked with --offline")
    with (
        closing(RegistryClient.connect(registry)) as client,
        LedgerClient.connect(ledger) as log,
        tempfile.TemporaryDirectory() as scratch,
    ):
        checked = pull(client, log, trusted, head, None, Path(scratch) / "head", Path(scratch))
        return Checked(checked.head, checked.withdrawn)
