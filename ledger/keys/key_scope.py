"""The scope of a trusted key of role receipts: the bases, profiles and tenants that it may sign for.

Lines above the key in its file (`receipts-….pub`), each with one value; a name may be repeated, and a missing name
limits nothing:

    tenant: acme
    base_cid: cidv1:sha256:…
    -----BEGIN PUBLIC KEY-----
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from ledger.errors import FormatError, SignatureError

_BEGIN = b"-----BEGIN "


@dataclass(frozen=True, slots=True)
class KeyScope:
    """The values that a key may sign for; an empty tuple allows all. Members have the names of receipts' members."""

    base_cid: tuple[str, ...] = ()
    profile_cid: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()

    def check(self, document: object) -> None:
        """Raises SignatureError if a receipt, a promise or an engine's profile has another value, or none. Members in
        the document's `UNSCOPED` are not compared.
        """
        for name, allowed in self.to_document().items():
            if name in getattr(document, "UNSCOPED", ()):
                continue
            value = getattr(document, name, None)
            if value not in allowed:
                raise SignatureError(f"the key that signed it is trusted for another {name} than {value}")

    def to_document(self) -> dict[str, list[str]]:
        """The members with values."""
        named: dict[str, Any] = {each.name: list(getattr(self, each.name)) for each in fields(self)}
        return {name: values for name, values in named.items() if values}

    def to_lines(self) -> bytes:
        lines = [f"{name}: {value}\n" for name, values in self.to_document().items() for value in values]
        return "".join(lines).encode()

    @classmethod
    def of(cls, **named: list[str] | None) -> Self:
        """A scope of sorted values without repetitions. Raises FormatError for a value that a file cannot hold."""
        for name, values in named.items():
            if any(not value.isprintable() or value != value.strip() or not value for value in values or ()):
                raise FormatError(name, "expected text without line breaks, and without spaces around it")
        return cls(**{name: tuple(sorted({*(values or ())})) for name, values in named.items()})

    @classmethod
    def from_file(cls, data: bytes) -> tuple[Self, bytes]:
        """The scope of a key's file, and the key's PEM. Raises FormatError for any other line."""
        head, begin, rest = data.partition(_BEGIN)
        named: dict[str, list[str]] = {each.name: [] for each in fields(cls)}
        for line in head.decode("utf-8", "replace").splitlines():
            name, colon, value = line.partition(":")
            if line.strip() and (not colon or name not in named):
                raise FormatError("public_key", f"expected lines `{', '.join(named)}: …` above the key, got {line!r}")
            if line.strip():
                named[name].append(value.strip())
        return cls.of(**named), begin + rest


EVERYTHING = KeyScope()
