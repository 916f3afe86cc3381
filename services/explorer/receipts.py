"""The pages of receipts and verdicts: a visitor's search, the newest matches page by page, and one receipt."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from ledger.documents.audit import OUTCOMES, Verdict
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from ledger.encoding.canonical import parse
from ledger.encoding.text_forms import digest_text, parse_digest, parse_timestamp
from ledger.errors import FormatError, ProofError
from ledger.keys.envelope import Envelope
from ledger.log.receipt_filter import ReceiptFilter
from services.client.errors import NotFound
from services.client.ledger.log import ProvenEntry, ReceiptEntry, SignedCheckpoint, VerdictEntry
from services.explorer.pages import Pages, Source, shown_fields

TEXTS = ("tenant", "request_id", "method", "base_cid", "head_cid", "adapter_cid", "profile_cid")
CHOICES: dict[str, tuple[str, ...]] = {"outcome": OUTCOMES}
TIMES = ("start_time", "end_time")
INDEXES = ("min_index", "max_index")
COMMITMENTS = ("commitment",)
_LARGEST_INDEX = 2**53 - 1
"""Canonical JSON counts no further (RFC 8785, appendix D)."""


@dataclass(frozen=True, slots=True)
class Search:
    """`given` are the fields as they were written; `problems` says what is wrong with some of them, by name.

    `before` continues a list: only entries below it.
    """

    given: Mapping[str, str]
    query: ReceiptFilter
    before: int | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    def older(self, before: int) -> str:
        """The query string of the page that goes on below entry `before`."""
        return urlencode({**self.given, "before": before})

    @property
    def newest(self) -> str:
        """The query string of the first page."""
        return urlencode(self.given)


def read_search(parameters: Mapping[str, str]) -> Search:
    """The search of a request's query parameters. Unknown and empty ones count as not given."""
    known = (*TEXTS, *CHOICES, *TIMES, *INDEXES, *COMMITMENTS)
    given = {name: parameters[name].strip() for name in known if parameters.get(name, "").strip()}
    values: dict[str, object] = {name: given[name] for name in TEXTS if name in given}
    problems: dict[str, str] = {}
    readers: dict[str, Callable[[str, str], object]] = {
        **dict.fromkeys(CHOICES, _choice),
        **dict.fromkeys(TIMES, _moment),
        **dict.fromkeys(INDEXES, _index),
        **dict.fromkeys(COMMITMENTS, _commitment),
    }
    for name, reader in readers.items():
        if name in given:
            try:
                values[name] = reader(name, given[name])
            except ValueError as error:
                problems[name] = str(error)
    try:
        before = _index("before", parameters["before"]) if parameters.get("before") else None
    except ValueError:
        before = None
    return Search(given, ReceiptFilter(**values), before, problems)  # type: ignore[arg-type]


def _choice(name: str, text: str) -> str:
    if text not in CHOICES[name]:
        raise ValueError(f"expected one of {', '.join(CHOICES[name])}")
    return text


def _moment(name: str, text: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a time like 2026-01-02 or 2026-01-02T03:04:05Z") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _commitment(_name: str, text: str) -> str:
    try:
        return digest_text(parse_digest(text))
    except FormatError as error:
        raise ValueError(error.problem) from None


def _index(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= _LARGEST_INDEX):
        raise ValueError("expected the number of an entry, from 0")
    return int(text)


MOST_ROWS = 1000
"""Most rows of one window; with more, a shorter window is read first."""

_GROWTH = 8

List = Callable[[ReceiptFilter], Iterable[ReceiptEntry]]


@dataclass(frozen=True, slots=True)
class Newest:
    """Receipts, the newest first. `older` says whether entries below `reached` have not been looked at."""

    receipts: tuple[ReceiptEntry, ...]
    reached: int
    older: bool


def newest_receipts(list_: List, query: ReceiptFilter, end: int, limit: int) -> Newest:
    """Up to `limit` matches below entry `end`. Looks at windows, downwards, that grow while they hold too little."""
    lowest = query.min_index or 0
    end = end if query.max_index is None else min(end, query.max_index + 1)
    found: list[ReceiptEntry] = []
    window = 2 * limit
    while end > lowest and len(found) < limit:
        start = max(lowest, end - window)
        rows = list(islice(list_(replace(query, min_index=start, max_index=end - 1)), MOST_ROWS + 1))
        if len(rows) > MOST_ROWS and window > MOST_ROWS:
            window = max(window // _GROWTH, limit)
            continue
        found += reversed(rows)
        end, window = start, window * _GROWTH
    kept = tuple(found[:limit])
    reached = kept[-1].index if len(found) >= limit else end
    return Newest(kept, reached, older=reached > lowest)


_ROWS = 25


@dataclass(frozen=True, slots=True)
class Row:
    """A listed receipt, its signed document, and when that was issued."""

    listed: ReceiptEntry
    receipt: Receipt
    issued_at: datetime


class ReceiptList:
    """GET /receipts: the newest first; each row is proven to be in the log before it is shown."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        search = read_search(request.query_params)
        size = self._source.proving.head().size
        found = Newest((), 0, older=False) if search.problems else self._found(search, size)
        return self._pages.of_log(
            "receipts.html",
            status=400 if search.problems else 200,
            here="receipts",
            search=search,
            choices=CHOICES,
            rows=[_row(each) for each in found.receipts],
            found=found,
            size=size,
        )

    def _found(self, search: Search, size: int) -> Newest:
        end = size if search.before is None else min(size, search.before)
        return newest_receipts(self._source.proving.receipts, search.query, end, _ROWS)


def _row(entry: ReceiptEntry) -> Row:
    return Row(entry, entry.document, parse_timestamp(entry.document.issued_at))


_VERDICTS = 50


class VerdictList:
    """GET /verdicts: a page of the ledger's list, the newest first; each is signed by a trusted auditor."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        outcome = request.query_params.get("outcome")
        outcome = outcome if outcome in OUTCOMES else None
        page = self._source.client.newest_verdicts(
            outcome=outcome, page_size=_VERDICTS, page_token=request.query_params.get("page", "")
        )
        return self._pages.of_log(
            "verdicts.html",
            here="verdicts",
            verdicts=[(each.index, self._opened(each)) for each in page.verdicts],
            next_page=page.next_page_token,
            outcome=outcome,
            outcomes=OUTCOMES,
        )

    def _opened(self, listed: VerdictEntry) -> Verdict:
        """The signed document; the list's own columns are not looked at."""
        document = open_document(Envelope.from_bytes(listed.envelope), self._source.trusted, listed.index)
        if not isinstance(document, Verdict):
            raise ProofError(f"entry {listed.index} is listed as a verdict and is none")
        return document


def evidence(source: Source, receipt_id: str) -> dict[str, Any]:
    """A JSON object; bytes in base64. Raises KolmError."""
    details = source.client.receipt(receipt_id)
    index = details.receipt.index
    entry = source.client.entry(index)
    note, proven = _proof(source, index)
    return {
        "receipt_id": receipt_id,
        "index": index,
        "entry": _base64(entry.entry),
        "envelope": _base64(details.receipt.envelope),
        "inclusion": {
            "index": proven.proof.index,
            "size": proven.proof.tree_size,
            "hashes": [_base64(each) for each in proven.proof.hashes],
        },
        "checkpoint": _base64(note),
        "verdicts": [{"index": each.index, "envelope": _base64(each.envelope)} for each in details.verdicts],
        "trusted": trusted_keys(source),
    }


def _proof(source: Source, index: int) -> tuple[bytes, ProvenEntry]:
    """Under the newest witnessed tree where that holds the entry, else under the newest one."""
    witnessed = _witnessed(source)
    if witnessed is not None and index < witnessed.tree_size:
        return witnessed.note, source.client.inclusion_proof(index, witnessed.tree_size)
    proven = source.client.inclusion_proof(index)
    return proven.checkpoint, proven


def _witnessed(source: Source) -> SignedCheckpoint | None:
    try:
        return source.client.checkpoint(witnessed=True)
    except NotFound:
        return None


def trusted_keys(source: Source) -> dict[str, Any]:
    """The trust anchors of the browser's checks: the log's name, keys by role, witnesses."""
    roles = ("receipts", "log", "auditor")
    return {
        "origin": source.origin,
        "keys": {role: [_base64(key.raw) for key in source.trusted.keys(role)] for role in roles},
        "scopes": source.trusted.scopes("receipts"),
        "witnesses": [each.key.to_text() for each in source.policy.witnesses] if source.policy else [],
    }


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


class ReceiptPage:
    """GET /receipts/{receipt_id}: the signed document, field by field. The browser checks it."""

    def __init__(self, source: Source, pages: Pages) -> None:
        self._source = source
        self._pages = pages

    def answer(self, request: Request) -> Response:
        receipt_id = request.path_params["receipt_id"]
        details = self._source.client.receipt(receipt_id)
        envelope = Envelope.from_bytes(details.receipt.envelope)
        return self._pages.of_log(
            "receipt.html",
            here="receipts",
            receipt_id=receipt_id,
            receipt=details.receipt,
            verdicts=[(each.index, each.document) for each in details.verdicts],
            compared=details.verdicts[-1].document.tokens_compared if details.verdicts else None,
            fields=_parts(parse(envelope.payload, "payload")),
            signatures=envelope.signatures,
        )


def _parts(document: object) -> dict[str, list[tuple[str, str, str]]]:
    """Heading to (path, name, text) of the fields under it; "" is the document's own. Raises FormatError."""
    if not isinstance(document, Mapping):
        raise FormatError("payload", "expected an object")
    parts: dict[str, list[tuple[str, str, str]]] = {}
    for path, text in shown_fields(_as_mapping(document)):
        part, _, name = path.rpartition(".")
        parts.setdefault(part, []).append((path, name, text))
    return parts


def _as_mapping(document: Mapping[Any, Any]) -> Mapping[str, object]:
    return document
