"""Logs for tests: documents chained into entries, without a ledger."""

from __future__ import annotations

from ledger.documents.signed_document import Document
from ledger.encoding.digest import ZERO_DIGEST
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry, entry_hash
from ledger.tree.merkle import Frontier, leaf_hash
from services.auditor.backlog import Backlog
from tests.unit.ledger.builders import TRUSTED, signed


def trust() -> TrustedKeys:
    return TRUSTED


def entries(*documents: Document | bytes) -> list[bytes]:
    """The entries of a log that holds these documents, or signed envelopes, in this order."""
    log: list[bytes] = []
    for document in documents:
        envelope = document if isinstance(document, bytes) else signed(document)
        previous = entry_hash(log[-1]) if log else ZERO_DIGEST
        log.append(Entry(len(log), previous, Envelope.from_bytes(envelope)).to_bytes())
    return log


def root(log: list[bytes]) -> bytes:
    frontier = Frontier()
    for entry in log:
        frontier = frontier.append(leaf_hash(entry))
    return frontier.root()


def folded(log: list[bytes], spot_checks: float = 0.0) -> Backlog:
    """The backlog of an auditor that has read all of it."""
    backlog = Backlog(trust(), spot_checks)
    for entry in log:
        backlog.observe(entry)
    return backlog
