"""Follows the ledger for withdrawals and k-scores of heads while the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kolm.ledger.v1 import documents_pb2
from ledger.documents.draft_head_publication import DraftHeadWithdrawal
from ledger.documents.kscore import NEEDS_RETRAINING, KScore
from ledger.documents.signed_document import open_document, read_document
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.generation.heads.served_heads import HeadState
from services.generation.ledger_link import LedgerUnreachable
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

ReadEntries = Callable[[int], Awaitable[list[documents_pb2.Entry]]]
"""Withdrawals and k-scores of the log from an index on."""


class HeadBoard:
    """The current state of the heads. On the event loop.

    `known` is False until the ledger has answered once, because a head may have been withdrawn. Without any published
    head it is True from the start.
    """

    def __init__(self, state: HeadState, read: ReadEntries, trusted: TrustedKeys, every: float) -> None:
        self.state = state
        self._read = read
        self._trusted = trusted
        self._every = every
        self._position = 0
        self.known = all(head.publication_index is None for head in state.served)

    async def refresh(self) -> None:
        """Ask the ledger once for new entries, if a head is served. Raises LedgerUnreachable."""
        if not self.state.served:
            return
        for entry in await self._read(self._position):
            self._take(entry)
            self._position = entry.index + 1
        self.known = True

    async def follow(self) -> None:
        """Ask every `every` seconds. Run it as a task; returns at once if no head is served."""
        outage = Outage(_log, "ask the ledger for withdrawn heads", LedgerUnreachable)
        while self.state.served:
            with outage:
                await self.refresh()
            await asyncio.sleep(self._every)

    def _take(self, entry: documents_pb2.Entry) -> None:
        """A withdrawal counts whoever signed it: the log has accepted it, and not to use a head is always safe."""
        try:
            envelope = Envelope.from_bytes(entry.envelope)
            document = read_document(envelope)
            if isinstance(document, DraftHeadWithdrawal):
                self._withdraw(document)
            elif isinstance(document, KScore):
                open_document(envelope, self._trusted)
                self._score(document)
        except LedgerError as error:
            _log.warning("entry %d says nothing about heads that counts here: %s", entry.index, error)

    def _withdraw(self, withdrawal: DraftHeadWithdrawal) -> None:
        if any(head.cid == withdrawal.manifest_cid for head in self.state.served):
            _log.error("the head %s was withdrawn: %s", withdrawal.manifest_cid, withdrawal.reason)
        withdrawn = {**self.state.withdrawn, withdrawal.manifest_cid: withdrawal.reason}
        self.state = replace(self.state, withdrawn=withdrawn)

    def _score(self, score: KScore) -> None:
        pair = (score.manifest_cid, score.adapter_cid)
        rest = self.state.unfit - {pair}
        unfit = rest | {pair} if score.status == NEEDS_RETRAINING else rest
        self.state = replace(self.state, unfit=unfit, weak=self.state.weak - {score.manifest_cid})
