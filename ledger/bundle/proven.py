"""Self-contained proofs: a tlog-proof with its entry, and SCITT transparent statements about a receipt."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.bundle.evidence import Evidence
from ledger.bundle.report import Trust
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import kind_of
from ledger.errors import FormatError, ProofError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.tree.entry import Entry
from ledger.tree.tlog_proof import TlogProof
from ledger.witness.tlog_policy import Policy, Witnessed

_COSE_BEGINS = b"\xd2\x84"  # tag 18, an array of four


@dataclass(frozen=True, slots=True)
class ProvenEntry:
    """An entry of the log under a checkpoint that its key and a quorum of witnesses have signed."""

    index: int
    kind: str
    witnessed: Witnessed


def prove_entry(proof: TlogProof, trust: Trust, evidence: Evidence | None = None) -> ProvenEntry:
    """Verify a tlog-proof. `evidence` of a bundle of the same log shows which keys replaced which.

    Raises SignatureError for a signature by an untrusted key, another LedgerError for an invalid proof.
    """
    if proof.extra is None:
        raise FormatError("tlog-proof", "has no entry in its extra line, so it proves nothing")
    entry = Entry.from_bytes(proof.extra)
    policy = trust.policy or Policy.of_log(proof.checkpoint.split(b"\n", 1)[0].decode(), trust.keys.keys("log"))
    keys = KeyHistory.of(trust.keys)
    if evidence is not None:
        policy, keys = evidence.policy, evidence.keys
    witnessed = policy.open(proof.checkpoint)
    keys.check_log_key(witnessed.log_key, witnessed.checkpoint.size)
    document = keys.open(entry.index, entry.envelope)
    proof.verify(proof.extra, witnessed.checkpoint)
    if entry.index != proof.index:
        raise FormatError("tlog-proof", f"is for entry {proof.index}, its entry has the index {entry.index}")
    return ProvenEntry(entry.index, kind_of(document), witnessed)


@dataclass(frozen=True, slots=True)
class ProvenStatement:
    """A receipt at its index, stated by `issuer`, a trusted key, and proven in a tree of `size` entries."""

    receipt: Receipt
    index: int
    origin: str
    size: int
    issuer: PublicKey


def is_statement(data: bytes) -> bool:
    """Whether the bytes of a file look like a transparent statement."""
    return data.startswith(_COSE_BEGINS)


def prove_statement(data: bytes, trust: Trust, evidence: Evidence | None = None) -> ProvenStatement:
    """Verify a transparent statement. `evidence` of a bundle of the same log shows which keys replaced which.

    Raises SignatureError for a signature by an untrusted key, another LedgerError for an invalid proof.
    """
    from ledger.statements.scitt import Statement, prove_cose_receipt

    statement, policy = Statement.from_bytes(data), trust.policy
    if policy is not None and policy.asks_for_witnesses:
        raise ProofError("your policy needs witnesses: a COSE Receipt has no cosignatures, a bundle has")
    entry = Entry.from_bytes(statement.entry)
    keys = KeyHistory.of(trust.keys) if evidence is None else evidence.keys
    receipt = keys.open(entry.index, entry.envelope)
    if not isinstance(receipt, Receipt):
        raise FormatError("statement", "expected the entry of a receipt")
    issuers = dict.fromkeys(key for role in ROLES for key in trust.keys.keys(role))  # any trusted key may issue it
    issuer = statement.issuer(receipt.receipt_id, issuers)
    logs = (lambda origin: trust.keys.keys("log")) if policy is None else policy.log_keys
    places = [prove_cose_receipt(each, statement.entry, receipt.receipt_id, logs) for each in statement.receipts]
    for place in places:
        keys.check_log_key(place.log_key, place.size)
        if place.index != entry.index:
            raise FormatError("COSE Receipt", f"is for entry {place.index}, its entry has the index {entry.index}")
    newest = max(places, key=lambda place: place.size)
    return ProvenStatement(receipt, entry.index, newest.origin, newest.size, issuer)
