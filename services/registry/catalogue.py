"""The catalogue: heads, their names, and the signed documents about them. The contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

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


PUBLICATION, WITHDRAWAL, KSCORE = "publication", "withdrawal", "kscore"


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head as it is found; `manifest` is what `head_cid` names."""

    head_cid: str
    base_cid: str
    manifest: bytes


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed document about a head. One `key` of a `kind` stands for one document, whoever comes first with it.

    publication: the name; withdrawal: ""; kscore: the digest of the envelope. `ledger_index` is None until the ledger
    has it, and until then nobody is shown it.
    """

    kind: str
    head_cid: str
    key: str
    envelope: bytes
    ledger_index: int | None = None


Check = Callable[["Signed | None"], None]


@dataclass(frozen=True, slots=True)
class CataloguedHead:
    """A head with what the ledger holds about it, in the order of the ledger; `position` orders the list of heads."""

    position: int
    row: HeadRow
    signed: tuple[Signed, ...]

    def of_kind(self, kind: str) -> tuple[Signed, ...]:
        return tuple(document for document in self.signed if document.kind == kind)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(document.key for document in self.of_kind(PUBLICATION))

    @property
    def withdrawal(self) -> Signed | None:
        return next(iter(self.of_kind(WITHDRAWAL)), None)


@dataclass(frozen=True, slots=True)
class HeadFilter:
    """Which heads; a field that is None does not narrow. Withdrawn heads only where `withdrawn` says so."""

    base_cid: str | None = None
    name: str | None = None
    withdrawn: bool = False


class Catalogue(Protocol):
    """Heads and signed documents about them. From any thread, and from several processes on one database.

    A document is proposed, then appended to the ledger, then confirmed; a crash in between leaves a proposal that the
    next start finishes. A head is seen once one of its publications is confirmed. Atomicity and durability: each method
    is one transaction and survives a crash once it has returned. Errors: Unavailable (CATALOGUE_UNAVAILABLE).
    """

    def propose(self, row: HeadRow, document: Signed, check: Check = lambda first: None) -> Signed:
        """Keep a document, and its head where it is new; the one that stands under its key from now on: the first.

        `check` runs within, while nobody is `removing` and nobody else publishes under the same name; it is given the
        first publication of that name, of whatever head. Its errors are raised, and nothing is kept.
        """
        ...

    def rows(self) -> Iterator[HeadRow]:
        """Every head that a document is about, proposed ones included."""
        ...

    def removing(self) -> AbstractContextManager[Iterator[HeadRow]]:
        """`rows`, and nothing is proposed until the block ends."""
        ...

    def confirm(self, document: Signed, ledger_index: int) -> None:
        """The ledger has it at this index. Confirming again changes nothing."""
        ...

    def retract(self, document: Signed) -> None:
        """The ledger will not take it. Confirmed documents stay."""
        ...

    def proposals(self) -> Sequence[Signed]:
        """Unconfirmed documents, oldest first."""
        ...

    def head(self, head_cid: str) -> CataloguedHead | None:
        """A head that was published, withdrawn or not."""
        ...

    def heads(self, narrow: HeadFilter, after: int, limit: int) -> Sequence[CataloguedHead]:
        """Up to `limit` heads with a position greater than `after` (-1 for the first page), by position."""
        ...

    def candidates(self, reference: HeadReference, base_cid: str | None, limit: int) -> Sequence[CataloguedHead]:
        """Up to `limit` heads, withdrawn ones included, that answer to a reference; the newest publication first."""
        ...

    def close(self) -> None:
        """Release connections. Closing twice changes nothing."""
        ...
