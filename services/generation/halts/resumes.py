"""Checks that operators signed the resumes of halts that the ledger no longer lists."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from kolm.ledger.v1 import documents_pb2
from ledger.documents.halt import Resume, Scope
from ledger.documents.signed_document import open_document
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownHalt:
    """A halt in the ledger: the index of its entry, and what it stops."""

    index: int
    scope: Scope


class OperatorsWord:
    """Reads the resumes and checks their signatures against this server's own trusted keys and threshold.

    A server that trusts no operator's key believes the ledger.
    """

    def __init__(self, read: Callable[[int], Awaitable[Iterable[documents_pb2.Entry]]], trusted: TrustedKeys) -> None:
        """`read` gives the resumes from an index on; may raise LedgerUnreachable."""
        self._read = read
        self._trusted = trusted

    async def missing(self, gone: Sequence[KnownHalt]) -> tuple[KnownHalt, ...]:
        """The halts that disappeared without a valid resume. Raises LedgerUnreachable."""
        if not gone or not self._trusted.keys("operator"):
            return ()
        entries = await self._read(min(halt.index for halt in gone) + 1)
        resumed = {halt for entry in entries if (halt := self._resumed(entry)) is not None}
        return tuple(halt for halt in gone if halt not in resumed)

    def _resumed(self, entry: documents_pb2.Entry) -> KnownHalt | None:
        try:
            document = open_document(Envelope.from_bytes(entry.envelope), self._trusted, entry.index)
        except LedgerError as error:
            _log.error("the resume in entry %d does not count here: %s", entry.index, error)
            return None
        return KnownHalt(document.halt_index, document.scope) if isinstance(document, Resume) else None
