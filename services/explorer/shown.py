"""How a document's values stand on a page. The browser compares with the same rules (static/shown.js)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

from ledger.encoding.canonical import canonical

_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


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
