"""From a reference to the one head that it names."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.documents.draft_head_publication import DraftHeadWithdrawal
from ledger.documents.signed_document import read_document
from ledger.keys.envelope import Envelope
from services.registry.catalogue import Catalogue, CataloguedHead
from services.registry.errors import AmbiguousReference, HeadWithdrawn
from services.registry.head_reference import HeadReference
from services.runtime.errors import InvalidArgument, NotFound

_MOST_CANDIDATES = 1000
_SHOWN = 8


def resolve(catalogue: Catalogue, text: str, base_cid: str | None, withdrawn: bool) -> CataloguedHead:
    """The head. A bare name, or none at all, means the newest one that may be loaded; digits have to mean one head.

    Raises InvalidArgument, NotFound, AmbiguousReference, HeadWithdrawn.
    """
    reference = HeadReference.parse(text)
    if not text and base_cid is None:
        raise InvalidArgument("reference", "expected a reference, or base_cid for the newest head of a base")
    found = catalogue.candidates(reference, base_cid, _MOST_CANDIDATES)
    loadable = [head for head in found if withdrawn or head.withdrawal is None]
    if not found:
        hint = f"for {base_cid}; " if base_cid and text else ""
        raise NotFound("head", text or f"for {base_cid}", f"{hint}`kolm heads list` shows what is published")
    if not loadable:
        refuse_withdrawn(found[0])
    if reference.digits and len(loadable) > 1:
        raise AmbiguousReference(text, _names(loadable))
    return loadable[0]


def refuse_withdrawn(head: CataloguedHead) -> None:
    """Raises HeadWithdrawn where it is."""
    if head.withdrawal is None:
        return
    document = read_document(Envelope.from_bytes(head.withdrawal.envelope))
    reason = document.reason if isinstance(document, DraftHeadWithdrawal) else ""
    raise HeadWithdrawn(head.row.head_cid, reason)


def _names(heads: Sequence[CataloguedHead]) -> list[str]:
    names = [f"{head.names[0]}@{head.row.head_cid.removeprefix('cidv1:')}" for head in heads[:_SHOWN]]
    return names + (["…"] if len(heads) > _SHOWN else [])
