"""The source of the pages, and their templates: every value escaped, every name known, as the browser compares them;
and the pages about the log itself: its signed head, halts, retention, and promises held against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ledger.documents.erasure import Expiry, Retention, in_force
from ledger.documents.halt import Halt, Resume
from ledger.documents.promise import open_promise
from ledger.documents.signed_document import Document, open_document
from ledger.encoding.canonical import canonical
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import ROLES
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import open_checkpoint
from ledger.witness.freshness import Freshness, moment_of
from ledger.witness.tlog_policy import Policy
from services.client.errors import NotFound
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import SignedCheckpoint
from services.client.ledger.promised import Promised, look_up
from services.client.ledger.verified import VerifiedLedger

HERE = Path(__file__).parent
_SHORT = 10
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Control and format characters, separators of lines and surrogates, as in shown.js: a list, since each version of
Unicode has more of them, and a browser's is another than Python's.
"""
_STATE_TEXTS = {
    "KEPT": "Kept: the log holds every promised receipt.",
    "OPEN": "Open: not all of the receipts are in the log, and they are not due yet.",
    "BROKEN": "Broken: receipts are due, and proven to be missing from the log.",
}


@dataclass(frozen=True, slots=True)
class Source:
    """The ledger of the pages: `client` reads it without proofs, `proving` with proofs.

    `origin` is the configured name of the log, if any; `policy` names the witnesses, if there are any.
    """

    client: LedgerClient
    proving: VerifiedLedger
    trusted: TrustedKeys
    origin: str | None = None
    policy: Policy | None = None

    def witnessed(self) -> SignedCheckpoint | None:
        """The newest checkpoint that the ledger counts as witnessed."""
        try:
            return self.client.checkpoint(witnessed=True)
        except NotFound:
            return None

    def freshness(self) -> Freshness:
        """The age of the newest cosigned checkpoint; unknown without a policy."""
        return Freshness(datetime.now(UTC)) if self.policy is None else self.proving.freshness(self.policy)


class Pages:
    """Renders the templates of this package."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            shown=shown_text,
            capitalised=lambda text: text[:1].upper() + text[1:],
            moment=_moment,
            stamp=lambda text: _moment(parse_timestamp(text)),
            cid=_short_cid,
            number=lambda value: f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}"),
            rate=lambda value: f"{value:.2f}",
        )

    def render(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """A page that shows nothing of the log."""
        return HTMLResponse(self._templates.get_template(template).render(values), status)

    def of_log(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """A page with a state of the log: with its age, and whether witnesses are configured, whose silence is
        suspicious. Raises KolmError, LedgerError.
        """
        watched = self.source.policy is not None
        return self.render(template, status, freshness=self.source.freshness(), watched=watched, **values)


def _moment(time: datetime) -> str:
    """2026-01-02 03:04:05, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _short_cid(cid: str | None) -> str:
    """The first digits of a content identifier, enough to distinguish a few by eye."""
    return "none" if cid is None else f"{shown_text(cid).rpartition(':')[2][:_SHORT]}…"


def shown_text(value: object) -> str:
    """A JSON value as text. Letters that are invisible, or that turn the text around them, are shown as what they are:
    no tenant can be named to look like another.
    """
    if value is None:
        return "none"
    text = value if isinstance(value, str) else canonical(value).decode("utf-8")
    return _HIDDEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


@dataclass(frozen=True, slots=True)
class ShownField:
    """A field of a document, in the object at the path `part` (dots between names); "" is the document."""

    part: str
    name: str
    text: str

    @property
    def path(self) -> str:
        return f"{self.part}.{self.name}" if self.part else self.name


def shown_fields(document: Mapping[str, object], part: str = "") -> Iterator[ShownField]:
    """Every field of a document; lists are one field."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from shown_fields(value, f"{part}.{name}" if part else name)
        else:
            yield ShownField(part, name, shown_text(value))


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
    signed = {name: moment_of(seconds) for name, seconds in times.items()}
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
