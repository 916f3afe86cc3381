"""The page of retention: how long contents are kept, and what the log has erased by that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.retention import Expiry, Retention, in_force
from ledger.documents.signed_document import Document, open_document
from ledger.keys.envelope import Envelope
from services.explorer.pages import Pages
from services.explorer.source import Source


@dataclass(frozen=True, slots=True)
class Placed:
    """A policy or an expiry, where it stands, and who signed it."""

    index: int
    document: Document
    signers: tuple[str, ...]


class RetentionPage:
    """GET /retention. Raises SignatureError for an entry that no trusted key has signed."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, _: Request) -> Response:
        events = list(self._events())
        policies = ((event.index, event.document) for event in events if isinstance(event.document, Retention))
        newest = sorted(in_force(policies).values(), key=lambda policy: policy[1].tenant or "")
        expiries = [event for event in events if isinstance(event.document, Expiry)]
        return self._pages.of_log(
            "retention.html", here="retention", policies=newest, events=events[::-1], expiries=len(expiries)
        )

    def _events(self) -> Iterator[Placed]:
        with self._source.client.watch(kinds=("retention", "expiry")) as entries:
            for entry in entries:
                envelope = Envelope.from_bytes(entry.envelope)
                document = open_document(envelope, self._source.trusted, entry.index)
                yield Placed(entry.index, document, tuple(each.key_id for each in envelope.signatures))
