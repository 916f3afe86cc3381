"""The page of halts: the open ones, and all halts and resumes of the log."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.halt import Halt, Resume
from ledger.documents.signed_document import open_document
from ledger.keys.envelope import Envelope
from services.client.ledger.log import LogEntry
from services.explorer.pages import Pages
from services.explorer.source import Source


@dataclass(frozen=True, slots=True)
class Event:
    """A halt or a resume, where it stands, and who signed it."""

    index: int
    document: Halt | Resume
    signers: tuple[str, ...]

    @property
    def is_halt(self) -> bool:
        return isinstance(self.document, Halt)


class HaltsPage:
    """GET /halts."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, _: Request) -> Response:
        state = self._source.client.halt_state()
        with self._source.client.watch(kinds=("halt", "resume")) as entries:
            events = [event for entry in entries if (event := self._event(entry)) is not None]
        return self._pages.of_log("halts.html", here="halts", state=state, events=events[::-1])

    def _event(self, entry: LogEntry) -> Event | None:
        envelope = Envelope.from_bytes(entry.envelope)
        document = open_document(envelope, self._source.trusted, entry.index)
        if not isinstance(document, Halt | Resume):
            return None
        return Event(entry.index, document, tuple(each.key_id for each in envelope.signatures))
