"""The pages of receipts and verdicts: a visitor's search, the newest matches page by page, and one receipt."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ledger.documents.audit import OUTCOMES, Verdict
from ledger.documents.signed_document import open_document
from ledger.encoding.canonical import parse
from ledger.encoding.text_forms import digest_text, parse_digest
from ledger.errors import FormatError, ProofError
from ledger.keys.envelope import Envelope
from ledger.log.receipt_filter import ReceiptFilter
from services.client.ledger.ledger import Newest, newest_receipts
from services.client.ledger.log import VerdictEntry
from services.explorer.pages import Pages, ShownField, Source, shown_fields

_LARGEST_INDEX = 2**53 - 1
"""Canonical JSON counts no further (RFC 8785, appendix D)."""

_TEXTS = ("tenant", "request_id", "method", "base_cid", "head_cid", "adapter_cid", "profile_cid")
_ROWS, _VERDICTS = 25, 50
_ROLES = ("receipts", "log", "auditor")


@dataclass(frozen=True, slots=True)
class Search:
    """The search of a list: `given` are the fields as written, `problems` the errors in them, by name.

    `before` continues a list with the entries below it.
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
    given = {name: parameters[name].strip() for name in _READERS if parameters.get(name, "").strip()}
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, text in given.items():
        try:
            values[name] = _READERS[name](text)
        except ValueError as error:
            problems[name] = str(error)
    try:
        before = _index(parameters["before"]) if parameters.get("before") else None
    except ValueError:
        before = None
    return Search(given, ReceiptFilter(**values), before, problems)


def _outcome(text: str) -> str:
    if text not in OUTCOMES:
        raise ValueError(f"expected one of {', '.join(OUTCOMES)}")
    return text


def _moment(text: str) -> datetime:
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError("expected a time like 2026-01-02 or 2026-01-02T03:04:05Z") from None


def _commitment(text: str) -> str:
    try:
        return digest_text(parse_digest(text))
    except FormatError as error:
        raise ValueError(error.problem) from None


def _index(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= _LARGEST_INDEX):
        raise ValueError("expected the number of an entry, from 0")
    return int(text)


_READERS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("start_time", "end_time"), _moment),
    **dict.fromkeys(("min_index", "max_index"), _index),
    "outcome": _outcome,
    "commitment": _commitment,
}


def receipt_list(pages: Pages, request: Request) -> Response:
    """GET /receipts: the newest first; each row is proven to be in the log before it is shown."""
    search, proving = read_search(request.query_params), pages.source.proving
    size = proving.head().size
    end = size if search.before is None else min(size, search.before)
    found = Newest((), 0, older=False)
    if not search.problems:
        found = newest_receipts(proving.receipts, search.query, end, _ROWS)
    return pages.of_log(
        "receipts.html",
        status=400 if search.problems else 200,
        here="receipts",
        search=search,
        outcomes=OUTCOMES,
        rows=found.receipts,
        found=found,
        size=size,
    )


def verdict_list(pages: Pages, request: Request) -> Response:
    """GET /verdicts: a page of the ledger's list, the newest first; each is signed by a trusted auditor."""
    outcome = request.query_params.get("outcome")
    outcome = outcome if outcome in OUTCOMES else None
    page = pages.source.client.newest_verdicts(
        outcome=outcome, page_size=_VERDICTS, page_token=request.query_params.get("page", "")
    )
    return pages.of_log(
        "verdicts.html",
        here="verdicts",
        verdicts=[(each.index, _opened(pages.source, each)) for each in page.verdicts],
        next_page=page.next_page_token,
        outcome=outcome,
        outcomes=OUTCOMES,
    )


def _opened(source: Source, listed: VerdictEntry) -> Verdict:
    """The signed document; the list's own columns are not looked at."""
    document = open_document(Envelope.from_bytes(listed.envelope), source.trusted, listed.index)
    if not isinstance(document, Verdict):
        raise ProofError(f"entry {listed.index} is listed as a verdict and is not one")
    return document


def evidence(pages: Pages, request: Request) -> Response:
    """GET /receipts/{receipt_id}/evidence.json: the evidence for the browser, bytes in base64. The proof is under the
    newest witnessed tree if it contains the entry, else under the newest tree. Raises KolmError.
    """
    source, receipt_id = pages.source, request.path_params["receipt_id"]
    details, witnessed = source.client.receipt(receipt_id), source.witnessed()
    index, covered = details.receipt.index, 0 if witnessed is None else witnessed.tree_size
    entry, proven = source.client.entry(index), source.client.inclusion_proof(index, covered if index < covered else 0)
    note = witnessed.note if witnessed is not None and index < covered else proven.checkpoint
    return JSONResponse(
        {
            "receipt_id": receipt_id,
            "index": index,
            "entry": _base64(entry.entry),
            "envelope": _base64(details.receipt.envelope),
            "inclusion": {
                "index": proven.inclusion_proof.index,
                "size": proven.inclusion_proof.tree_size,
                "hashes": [_base64(each) for each in proven.inclusion_proof.hashes],
            },
            "checkpoint": _base64(note),
            "verdicts": [{"index": each.index, "envelope": _base64(each.envelope)} for each in details.verdicts],
            "trusted": _trusted(source),
        }
    )


def trusted_keys(pages: Pages, _: Request) -> Response:
    """GET /trusted.json."""
    return JSONResponse(_trusted(pages.source))


def _trusted(source: Source) -> dict[str, Any]:
    """The trust anchors of the browser's checks: the log's name, keys by role, witnesses."""
    return {
        "origin": source.origin,
        "keys": {role: [_base64(key.raw) for key in source.trusted.keys(role)] for role in _ROLES},
        "scopes": source.trusted.scopes("receipts"),
        "witnesses": [each.key.to_text() for each in source.policy.witnesses] if source.policy else [],
    }


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def receipt_page(pages: Pages, request: Request) -> Response:
    """GET /receipts/{receipt_id}: the signed document, field by field. The browser checks it."""
    receipt_id = request.path_params["receipt_id"]
    details = pages.source.client.receipt(receipt_id)
    envelope = Envelope.from_bytes(details.receipt.envelope)
    return pages.of_log(
        "receipt.html",
        here="receipts",
        receipt_id=receipt_id,
        receipt=details.receipt,
        verdicts=[(each.index, each.document) for each in details.verdicts],
        compared=details.verdicts[-1].document.tokens_compared if details.verdicts else None,
        fields=_parts(parse(envelope.payload, "payload")),
        signatures=envelope.signatures,
    )


def _parts(document: object) -> dict[str, list[ShownField]]:
    """The fields by their part. Raises FormatError."""
    if not isinstance(document, dict):
        raise FormatError("payload", "expected an object")
    parts: dict[str, list[ShownField]] = {}
    for each in shown_fields(document):
        parts.setdefault(each.part, []).append(each)
    return parts
