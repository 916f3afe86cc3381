"""The key entries of a log, as its server shows them: who replaced which key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from ledger.errors import FormatError
from services.client.errors import KolmError
from services.client.ledger.ledger import LedgerClient

_SECONDS = 2.0


def key_entries(address: str) -> Sequence[tuple[int, bytes]]:
    """Index and envelope of each, to be believed by signatures. Raises ConnectionError without an answer within 2 s."""
    try:
        with (
            closing(LedgerClient.connect(address)) as ledger,
            ledger.watch(kinds=["key"], timeout=_SECONDS) as entries,
        ):
            return [(entry.index, entry.envelope.to_bytes()) for entry in entries]
    except (KolmError, FormatError) as error:
        raise ConnectionError(str(error)) from error
