"""A caller's view of the log: all of it, or entries about its own tenant and about the log itself."""

from __future__ import annotations

from collections.abc import Callable

from ledger.documents.audit import AuditPolicy, Draw, Verdict
from ledger.documents.draft_head import DraftHeadPublication, DraftHeadWithdrawal, KScore
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.erasure import Erasure, Expiry, Retention
from ledger.documents.halt import Halt, Resume
from ledger.documents.key_entry import KeyEntry
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, read_document
from ledger.errors import ChainError, FormatError, NotFound
from ledger.tree.entry import Entry
from services.runtime.credentials import Principal
from services.runtime.errors import PermissionDenied

FindReceipt = Callable[[str], bytes]
"""The entry of a receipt, by its id. Raises NotFound of the ledger."""


def check_receipt(caller: Principal, index: int, entry: bytes) -> None:
    """Raises ChainError, and NotFound for another tenant's receipt as for a missing one."""
    if not caller.sees_all and not caller.sees(_receipt(index, entry).tenant):
        raise NotFound("the receipt is another tenant's")


def check_content(caller: Principal, index: int, entry: bytes) -> None:
    """Raises PermissionDenied unless the caller may read the content of a receipt, ChainError."""
    if not caller.reads_content(_receipt(index, entry).tenant):
        raise no_content()


def check_own(caller: Principal, index: int, entry: bytes) -> str:
    """The tenant of a receipt, if the caller has its credential. Raises PermissionDenied, ChainError."""
    tenant = _receipt(index, entry).tenant
    if not caller.authenticated or caller.tenant != tenant:
        refused = "only an operator, or a token of the receipt's own tenant, may erase its content"
        raise PermissionDenied(refused, reason="ERASURE_DENIED")
    return tenant


def no_content() -> PermissionDenied:
    """The refusal of prompts and outputs."""
    return PermissionDenied(
        "only the role audit, or a token of the receipts' own tenant, may read content", reason="CONTENT_DENIED"
    )


def whole_log(caller: Principal, what: str) -> None:
    """Raises PermissionDenied unless the caller sees every tenant's receipts, which `what` needs."""
    if not caller.sees_all:
        raise PermissionDenied(
            f"{what} shows receipts of every tenant, which needs one of the roles audit, read", reason="ROLE_MISSING"
        )


def sees_entry(caller: Principal, index: int, entry: bytes, find: FindReceipt) -> bool:
    """Whether a caller sees an entry. An entry that names a tenant or its receipt is visible to that tenant; an unknown
    kind only to callers who see the whole log. Raises ChainError.
    """
    return caller.sees_all or _sees(caller, _document(index, entry), find)


def _sees(caller: Principal, document: Document, find: FindReceipt) -> bool:
    match document:
        case Receipt():
            return caller.sees(document.tenant)
        case Verdict() | Erasure():
            return caller.sees(_receipt(document.receipt_index, find(document.receipt_id)).tenant)
        case Retention():
            return document.tenant is None or caller.sees(document.tenant)
        case Expiry():  # an expiry for all names the tenants with their own policy
            return document.tenant is not None and caller.sees(document.tenant)
        case Halt() | Resume() | KeyEntry() | AuditPolicy() | Draw():
            return True
        case DraftHeadPublication() | DraftHeadWithdrawal() | KScore() | EngineProfile():
            return True
        case _:  # only a later version knows its tenant
            return False


def _receipt(index: int, entry: bytes) -> Receipt:
    document = _document(index, entry)
    if not isinstance(document, Receipt):
        raise ChainError(index, "is indexed as a receipt and is not one")
    return document


def _document(index: int, entry: bytes) -> Document:
    try:
        return read_document(Entry.from_bytes(entry).envelope)
    except FormatError as error:
        raise ChainError(index, f"is damaged: {error}") from error
