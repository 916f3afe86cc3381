"""The source of the pages, and their templates: every value escaped, every name known, as the browser compares them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from ledger.encoding.canonical import canonical
from ledger.encoding.text_forms import parse_timestamp
from ledger.keys.trusted_keys import TrustedKeys
from ledger.witness.freshness import Freshness
from ledger.witness.tlog_policy import Policy
from services.client.errors import NotFound
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import SignedCheckpoint
from services.client.ledger.verified import VerifiedLedger

HERE = Path(__file__).parent
_SHORT = 10
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


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
    return "".join(_visible(letter) for letter in text)


def shown_fields(document: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Path (dots between names) and text of every field of a document; lists are one field."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from shown_fields(value, f"{path}{name}.")
        else:
            yield path + name, shown_text(value)


def _visible(letter: str) -> str:
    return f"\\u{{{ord(letter):x}}}" if unicodedata.category(letter) in _HIDDEN else letter
