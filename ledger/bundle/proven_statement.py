"""Verification of statements in other formats: SCITT transparent statements and in-toto statements."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.bundle.evidence import Evidence
from ledger.bundle.proven_entry import prove_entry
from ledger.bundle.report import Trust
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.errors import FormatError, ProofError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry

_COSE_BEGINS = b"\xd2\x84"  # tag 18, an array of four
_IN_TOTO = b'"payloadType":"application/vnd.in-toto+json"'


@dataclass(frozen=True, slots=True)
class ProvenStatement:
    """A receipt at its index of the log, which `issuer`, a trusted key, states and a tree of `size` entries shows.

    `verdicts`, by index with outcome, are the issuer's word; None where the format has none.
    """

    receipt: Receipt
    index: int
    origin: str
    size: int
    issuer: PublicKey
    cosigned: tuple[str, ...] = ()
    verdicts: tuple[tuple[int, str], ...] | None = None


def is_statement(data: bytes) -> bool:
    """Whether the bytes of a file are one, by their looks."""
    return data.startswith(_COSE_BEGINS) or (data.lstrip()[:1] == b"{" and _IN_TOTO in data)


def prove_statement(data: bytes, trust: Trust, evidence: Evidence | None = None) -> ProvenStatement:
    """`evidence` of a bundle of the same log shows which keys replaced which.

    Raises SignatureError for a signature that no trusted key made, another LedgerError for what does not hold.
    """
    prove = _prove_cose if data.startswith(_COSE_BEGINS) else _prove_in_toto
    return prove(data, trust, evidence)


def _prove_cose(data: bytes, trust: Trust, evidence: Evidence | None) -> ProvenStatement:
    from ledger.statements.scitt import Statement, prove_cose_receipt

    statement, policy = Statement.from_bytes(data), trust.policy
    if policy is not None and policy.asks_for_witnesses:
        raise ProofError("your policy asks for witnesses: a COSE Receipt has no cosignatures, a bundle has")
    entry = Entry.from_bytes(statement.entry)
    keys = KeyHistory.of(trust.keys) if evidence is None else evidence.keys
    receipt = keys.open(entry.index, entry.envelope)
    if not isinstance(receipt, Receipt):
        raise FormatError("statement", "expected the entry of a receipt")
    issuer = statement.issuer(receipt.receipt_id, _all(trust.keys))
    logs = (lambda origin: trust.keys.keys("log")) if policy is None else policy.log_keys
    places = [prove_cose_receipt(each, statement.entry, receipt.receipt_id, logs) for each in statement.receipts]
    for place in places:
        keys.check_log_key(place.log_key, place.size)
        if place.index != entry.index:
            raise FormatError("COSE Receipt", f"says entry {place.index}, the entry says {entry.index}")
    newest = max(places, key=lambda place: place.size)
    return ProvenStatement(receipt, entry.index, newest.origin, newest.size, issuer)


def _prove_in_toto(data: bytes, trust: Trust, evidence: Evidence | None) -> ProvenStatement:
    from ledger.statements.in_toto import InTotoStatement

    statement = InTotoStatement.from_bytes(data)
    issuer = statement.issuer(_all(trust.keys))
    place = prove_entry(statement.proof, trust, evidence)
    document = read_document(Entry.from_bytes(statement.proof.extra or b"").envelope)
    if document != statement.receipt:
        raise FormatError("predicate.tlogProof", "proves another entry than the receipt")
    checkpoint, cosigned = place.witnessed.checkpoint, tuple(place.witnessed.cosigned)
    verdicts = tuple((each.entry, each.verdict.outcome) for each in statement.verdicts)
    if any(each.verdict.receipt_index != place.index for each in statement.verdicts):
        raise FormatError("predicate.verdicts", "has a verdict on another receipt")
    return ProvenStatement(
        statement.receipt, place.index, checkpoint.origin, checkpoint.size, issuer, cosigned, verdicts
    )


def _all(trusted: TrustedKeys) -> list[PublicKey]:
    """A statement may be exported by every key that may sign anything here."""
    return list(dict.fromkeys(key for role in ROLES for key in trusted.keys(role)))
