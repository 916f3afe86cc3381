"""Which receipts a visitor asks for: a form's fields, read strictly, and written back into links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

from ledger.documents.verdict import OUTCOMES
from ledger.encoding.digest import digest_text, parse_digest
from ledger.errors import FormatError
from services.client.ledger.log import ReceiptQuery

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
    query: ReceiptQuery
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
    return Search(given, ReceiptQuery(**values), before, problems)  # type: ignore[arg-type]


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
