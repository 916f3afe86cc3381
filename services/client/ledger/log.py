"""Answers of a ledger server, as frozen values. `ledger.audit.log_verification` checks the signed bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.documents.content import Content


@dataclass(frozen=True, slots=True)
class InclusionProof:
    """Sibling hashes from the leaf up (RFC 6962 section 2.1.1)."""

    index: int
    tree_size: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ProvenEntry:
    """An inclusion proof with what to check it against; `checkpoint` is the newest one."""

    proof: InclusionProof
    leaf_hash: bytes
    root_hash: bytes
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class CoseReceipt:
    """A COSE Receipt (RFC 9942) over a receipt's entry, and the same proof under `checkpoint`, a signed note."""

    cose_receipt: bytes
    entry: bytes
    checkpoint: bytes
    proof: InclusionProof


@dataclass(frozen=True, slots=True)
class ConsistencyProof:
    """The proof that the newer tree only appended to the older one (RFC 6962 section 2.1.2), with both roots."""

    first_tree_size: int
    second_tree_size: int
    hashes: tuple[bytes, ...]
    first_root_hash: bytes
    second_root_hash: bytes
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The place of an envelope in the log, with its proof; `checkpoint` is a signed note whose tree holds the entry."""

    index: int
    entry_hash: bytes
    previous_hash: bytes
    checkpoint: bytes
    inclusion_proof: InclusionProof
    halt_epoch: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One leaf; `kind` is a name of `signed_document.KINDS`, `entry` the canonical bytes under the leaf hash.

    `checkpoint` is a signed note and `inclusion_proof` the proof under it; only where one entry was asked for.
    """

    index: int
    entry: bytes
    leaf_hash: bytes
    envelope: bytes
    kind: str
    checkpoint: bytes = b""
    inclusion_proof: InclusionProof | None = None


@dataclass(frozen=True, slots=True)
class ReceiptEntry:
    """A listed receipt. `outcome` is EXACT, DEVIATION, UNREPLAYABLE, or None while nobody has replayed it.
    `profile_proven` is None in old receipts, which do not say.

    `previous_hash` (32 bytes), index and envelope make the entry bytes that a proof is over.
    """

    receipt_id: str
    index: int
    envelope: bytes
    tenant: str
    request_id: str
    base_cid: str
    method: str
    issued_at: datetime
    outcome: str | None
    head_cid: str | None
    adapter_cid: str | None
    profile_cid: str
    profile_proven: bool | None
    previous_hash: bytes


@dataclass(frozen=True, slots=True)
class ReceiptQuery:
    """The receipts to list, which match every field that is set. Indexes are inclusive; times go from `start_time` to
    before `end_time`, timezone-aware; `outcome` is EXACT, DEVIATION or UNREPLAYABLE. `commitment` is the one to
    the prompt or to the output, `sha256:<hex>`.
    """

    tenant: str | None = None
    method: str | None = None
    base_cid: str | None = None
    head_cid: str | None = None
    adapter_cid: str | None = None
    profile_cid: str | None = None
    request_id: str | None = None
    outcome: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    min_index: int | None = None
    max_index: int | None = None
    commitment: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    """One page of a list with its proof: `hashes` is a multi-proof in the tree of `checkpoint`, a signed note.

    In a complete list the page covers the indexes [start, end); `others` are its entries that do not match.
    """

    receipts: tuple[ReceiptEntry, ...]
    checkpoint: bytes
    tree_size: int
    hashes: tuple[bytes, ...]
    start: int | None = None
    end: int | None = None
    others: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first difference of a replay; a token is None if that stream had ended, a margin if it is unknown."""

    position: int
    expected_token: int | None
    actual_token: int | None
    expected_margin: float | None
    actual_margin: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """An auditor's finding about one receipt.

    `verification` is prefill or decode, `replayed_by` auditor or server; both are None where nothing was computed, and
    in older verdicts.
    """

    index: int
    receipt_id: str
    receipt_index: int
    outcome: str
    tokens_compared: int
    deviation: Deviation | None
    reason: str | None
    replayed_at: datetime
    envelope: bytes
    verification: str | None = None
    replayed_by: str | None = None


@dataclass(frozen=True, slots=True)
class VerdictPage:
    """One page of a list of verdicts; `next_page_token` is empty on the last."""

    verdicts: tuple[Verdict, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class ReceiptDetails:
    """A receipt with the verdicts on it, and its content if it was asked for and is not erased.

    `content_state` is KEPT, ERASED (by the entry `erasure_index`) or NEVER_GIVEN; empty if the server does not say.
    `checkpoint` is a signed note and `inclusion_proof` the proof of the receipt's entry under it.
    """

    receipt: ReceiptEntry
    content: Content | None
    verdicts: tuple[Verdict, ...]
    content_state: str = ""
    erasure_index: int | None = None
    checkpoint: bytes = b""
    inclusion_proof: InclusionProof | None = None


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness's cosignature of a checkpoint."""

    witness: str
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A tree head; `note` is the signed note with its cosignatures, from which the server reads the other fields.

    `witnessed` says whether the cosignatures satisfy the policy of the server; a verifier applies its own.
    """

    note: bytes
    tree_size: int
    root_hash: bytes
    cosignatures: tuple[Cosignature, ...] = ()
    witnessed: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a halt; any head if `head_cid` is None."""

    base_cid: str
    method: str
    head_cid: str | None


@dataclass(frozen=True, slots=True)
class Halt:
    """An open halt."""

    scope: Scope
    halt_index: int
    verdict_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class HaltState:
    """Open halts, oldest first, and the number of halts so far, after `tree_size` entries."""

    epoch: int
    halts: tuple[Halt, ...]
    tree_size: int

    def find(self, base_cid: str, method: str, head_cid: str | None = None) -> Halt | None:
        """The oldest open halt that covers these; None if there is none."""
        return next(
            (
                halt
                for halt in self.halts
                if (halt.scope.base_cid, halt.scope.method) == (base_cid, method)
                and halt.scope.head_cid in (None, head_cid)
            ),
            None,
        )
