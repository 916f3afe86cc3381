"""The pages about the log itself: its signed head, halts, retention, and promises held against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.erasure import Expiry, Retention, in_force
from ledger.documents.halt import Halt, Resume
from ledger.documents.promise import open_promise
from ledger.documents.signed_document import Document, open_document
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import ROLES
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from services.client.errors import NotFound
from services.client.ledger.log import LogEntry, SignedCheckpoint
from services.client.ledger.promised import Promised, look_up
from services.explorer.pages import Pages, Source


@dataclass(frozen=True, slots=True)
class WitnessState:
    """A witness of the policy; `signed_at` is None where it has not cosigned this head."""

    name: str
    signed_at: datetime | None


class LogPage:
    """GET /log. Signatures and cosignatures are checked; without a policy, cosignatures are the ledger's word."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, _: Request) -> Response:
        head = self._source.proving.head()
        newest = self._source.client.checkpoint()
        witnessed = self._witnessed()
        return self._pages.of_log(
            "log.html",
            here="log",
            head=head,
            note=newest.note.decode("utf-8", "replace"),
            witnesses=self._witnesses(witnessed or newest),
            witnessed=None if witnessed is None else self._opened(witnessed),
            policy=self._source.policy,
            keys={role: self._source.trusted.keys(role) for role in ROLES},
        )

    def _opened(self, checkpoint: SignedCheckpoint) -> Checkpoint:
        """The head that counts as witnessed: by the explorer's own policy, where it has one."""
        if self._source.policy is not None:
            return self._source.policy.open(checkpoint.note).checkpoint
        return open_checkpoint(checkpoint.note, self._source.trusted.keys("log"), self._source.origin)

    def _witnessed(self) -> SignedCheckpoint | None:
        try:
            return self._source.client.checkpoint(witnessed=True)
        except NotFound:
            return None

    def _witnesses(self, checkpoint: SignedCheckpoint) -> list[WitnessState]:
        if self._source.policy is None:
            return [WitnessState(each.witness, each.signed_at) for each in checkpoint.cosignatures]
        times = self._source.policy.cosigned(Note.from_bytes(checkpoint.note))
        return [WitnessState(each.key.name, _moment(times.get(each.name))) for each in self._source.policy.witnesses]


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


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
        document = open_document(entry.envelope, self._source.trusted, entry.index)
        if not isinstance(document, Halt | Resume):
            return None
        return Event(entry.index, document, tuple(each.key_id for each in entry.envelope.signatures))


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
                document = open_document(entry.envelope, self._source.trusted, entry.index)
                yield Placed(entry.index, document, tuple(each.key_id for each in entry.envelope.signatures))


_SAID = {
    "KEPT": "Kept: the log holds every promised receipt.",
    "OPEN": "Open: not all of the receipts are in the log, and they are not due yet.",
    "BROKEN": "Broken: receipts are due, and proven to be missing from the log.",
}


class PromisePage:
    """GET /promises?promise=…: a form, and what became of the promise. Kept and broken are proven, not believed."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        given = request.query_params.get("promise", "").strip()
        problem: str | None = None
        found: Promised | None = None
        if given:
            try:
                promise = open_promise(given.encode(), self._source.trusted)
            except (FormatError, SignatureError) as error:
                problem = str(error)
            else:
                found = look_up(self._source.proving, promise, datetime.now(UTC))
        values = {"given": given, "problem": problem, "found": found, "said": _SAID[found.state] if found else ""}
        return self._pages.of_log("promise.html", 400 if problem else 200, here="promises", **values)
