"""The pages about the log itself: its signed head, halts, retention, and promises held against it."""

from __future__ import annotations

from collections.abc import Sequence
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
from ledger.tree.checkpoint import open_checkpoint
from services.client.ledger.log import SignedCheckpoint
from services.client.ledger.promised import Promised, look_up
from services.explorer.pages import Pages, Source

_STATE_TEXTS = {
    "KEPT": "Kept: the log holds every promised receipt.",
    "OPEN": "Open: not all of the receipts are in the log, and they are not due yet.",
    "BROKEN": "Broken: receipts are due, and proven to be missing from the log.",
}


def log_page(pages: Pages, _: Request) -> Response:
    """GET /log. Signatures are checked, and with a policy of the explorer cosignatures too; without one, the ledger's
    list of cosignatures and its witnessed head are shown unchecked.
    """
    source = pages.source
    head, newest, witnessed = source.proving.head(), source.client.checkpoint(), source.witnessed()
    opened = None
    if witnessed is not None and source.policy is not None:
        opened = source.policy.open(witnessed.note).checkpoint
    elif witnessed is not None:
        opened = open_checkpoint(witnessed.note, source.trusted.keys("log"), source.origin)
    return pages.of_log(
        "log.html",
        here="log",
        head=head,
        note=newest.note.decode("utf-8", "replace"),
        witnesses=_witnesses(source, witnessed or newest),
        witnessed=opened,
        policy=source.policy,
        keys={role: source.trusted.keys(role) for role in ROLES},
    )


def _witnesses(source: Source, checkpoint: SignedCheckpoint) -> Sequence[tuple[str, datetime | None]]:
    """The witnesses of the policy by name, with the time of each one's cosignature on this head, if any."""
    if source.policy is None:
        return [(each.witness, each.signed_at) for each in checkpoint.cosignatures]
    times = source.policy.cosigned(Note.from_bytes(checkpoint.note))
    signed = {name: datetime.fromtimestamp(seconds, UTC) for name, seconds in times.items()}
    return [(each.key.name, signed.get(each.name)) for each in source.policy.witnesses]


@dataclass(frozen=True, slots=True)
class Event:
    """A document with its entry's index and its signers."""

    index: int
    document: Document
    signers: tuple[str, ...]


def _events(source: Source, *kinds: type[Document]) -> list[Event]:
    """The newest first. Raises SignatureError for an entry that no trusted key has signed."""
    with source.client.watch(kinds=[kind.__name__.lower() for kind in kinds]) as entries:
        opened = [(entry, open_document(entry.envelope, source.trusted, entry.index)) for entry in entries]
    return [
        Event(entry.index, document, tuple(each.key_id for each in entry.envelope.signatures))
        for entry, document in reversed(opened)
        if isinstance(document, kinds)
    ]


def halts_page(pages: Pages, _: Request) -> Response:
    """GET /halts."""
    state, events = pages.source.client.halt_state(), _events(pages.source, Halt, Resume)
    return pages.of_log("halts.html", here="halts", state=state, events=events)


def retention_page(pages: Pages, _: Request) -> Response:
    """GET /retention."""
    events = _events(pages.source, Retention, Expiry)
    policies = ((event.index, event.document) for event in reversed(events) if isinstance(event.document, Retention))
    newest = sorted(in_force(policies).values(), key=lambda policy: policy[1].tenant or "")
    expiries = sum(isinstance(event.document, Expiry) for event in events)
    return pages.of_log("retention.html", here="retention", policies=newest, events=events, expiries=expiries)


def promise_page(pages: Pages, request: Request) -> Response:
    """GET /promises?promise=…: a form, and the state of the promise. Kept and broken are proven."""
    given = request.query_params.get("promise", "").strip()
    problem: str | None = None
    found: Promised | None = None
    if given:
        try:
            promise = open_promise(given.encode(), pages.source.trusted)
        except (FormatError, SignatureError) as error:
            problem = str(error)
        else:
            found = look_up(pages.source.proving, promise, datetime.now(UTC))
    text = _STATE_TEXTS[found.state] if found else ""
    values = {"given": given, "problem": problem, "found": found, "state_text": text}
    return pages.of_log("promise.html", 400 if problem else 200, here="promises", **values)
