"""Verification of a tlog-proof that carries its entry, by keys that the verifier trusts."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.bundle.evidence import Evidence
from ledger.bundle.report import Trust
from ledger.documents.key_history import KeyHistory
from ledger.documents.signed_document import kind_of
from ledger.errors import FormatError
from ledger.tree.entry import Entry
from ledger.tree.tlog_proof import TlogProof
from ledger.witness.tlog_policy import Policy, Witnessed


@dataclass(frozen=True, slots=True)
class ProvenEntry:
    """An entry of the log under a checkpoint that its keys, and as many witnesses as the policy asks for, signed."""

    index: int
    kind: str
    witnessed: Witnessed


def prove_entry(proof: TlogProof, trust: Trust, evidence: Evidence | None = None) -> ProvenEntry:
    """`evidence` of a bundle of the same log shows which keys replaced which.

    Raises SignatureError for a signature that no trusted key made, another LedgerError for what does not hold.
    """
    if proof.extra is None:
        raise FormatError("tlog-proof", "carries no entry in its extra line, so there is nothing that it could prove")
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
        raise FormatError("tlog-proof", f"says entry {proof.index}, the entry says {entry.index}")
    return ProvenEntry(entry.index, kind_of(document), witnessed)
