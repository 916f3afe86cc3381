"""How heads are named: `name`, `name@sha256:<hex prefix>`, `cidv1:sha256:<64 hex>`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.runtime.errors import InvalidArgument

_FORM = re.compile(
    r"cidv1:sha256:(?P<whole>[0-9a-f]{64})"
    r"|(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})(@sha256:(?P<prefix>[0-9a-f]{1,64}))?"
)


@dataclass(frozen=True, slots=True)
class HeadReference:
    """`name` is None for a whole identifier; `digits` are the first of the digest, "" where none were given."""

    text: str
    name: str | None
    digits: str

    @property
    def cid_prefix(self) -> str:
        return f"cidv1:sha256:{self.digits}"

    @classmethod
    def parse(cls, text: str) -> HeadReference:
        """Raises InvalidArgument on `reference`. The empty text is a reference to whatever is newest."""
        if not text:
            return cls("", None, "")
        match = _FORM.fullmatch(text)
        if match is None:
            raise InvalidArgument(
                "reference", "expected <name>, <name>@sha256:<hex prefix> or cidv1:sha256:<64 hex digits>"
            )
        return cls(text, match["name"], match["whole"] or match["prefix"] or "")
