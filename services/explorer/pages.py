"""Templates: every value escaped, every name known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from ledger.encoding.timestamp import parse_timestamp
from ledger.witness.freshness import Freshness
from services.explorer.shown import shown_text

HERE = Path(__file__).parent
_SHORT = 10


class Pages:
    """Renders the templates of this package."""

    def __init__(self, freshness: Callable[[], Freshness]) -> None:
        self._freshness = freshness
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = {
            "shown": shown_text,
            "moment": moment,
            "stamp": stamp,
            "cid": short_cid,
            "number": number,
            "rate": rate,
        }
        self._templates.filters.update(filters)

    def render(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """A page that shows nothing of the log."""
        return HTMLResponse(self._templates.get_template(template).render(values), status)

    def of_log(self, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """A page with a state of the log: says how old that is. Raises what asking for it raises."""
        return self.render(template, status, freshness=self._freshness(), **values)


def moment(time: datetime) -> str:
    """2026-01-02 03:04:05, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def stamp(text: str) -> str:
    """A document's time as `moment` writes it."""
    return moment(parse_timestamp(text))


def short_cid(cid: str | None) -> str:
    """The first digits of a content identifier, enough to tell some of them apart by eye."""
    return "none" if cid is None else f"{shown_text(cid).rpartition(':')[2][:_SHORT]}…"


def number(value: int) -> str:
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(value: float) -> str:
    return f"{value:.2f}"
