"""An in-toto Statement v1 about a receipt, in a DSSE envelope. The predicate is ours: docs/statements.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.documents.receipt import Receipt
from ledger.documents.verdict import Verdict
from ledger.encoding.canonical import canonical, parse_json
from ledger.encoding.digest import digest
from ledger.encoding.fields import Fields
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.envelope import Envelope, sign, verified_signers
from ledger.keys.signer import Signer
from ledger.tree.tlog_proof import TlogProof

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:kolm:predicate:receipt:v1"


@dataclass(frozen=True, slots=True)
class KnownVerdict:
    """A verdict and its entry in the log."""

    entry: int
    verdict: Verdict


def in_toto_statement(
    receipt: Receipt, proof: TlogProof, verdicts: Sequence[KnownVerdict], exporter: Signer
) -> Envelope:
    """`exporter` says that the log holds `receipt`, as `proof` shows, and these verdicts on it."""
    return sign(canonical(_statement(receipt, proof, verdicts)), PAYLOAD_TYPE, exporter)


@dataclass(frozen=True, slots=True)
class InTotoStatement:
    """A statement that was read. Holding one proves nothing; the verdicts are its signer's word."""

    envelope: Envelope
    receipt: Receipt
    proof: TlogProof
    verdicts: tuple[KnownVerdict, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> InTotoStatement:
        """Raises FormatError for what `in_toto_statement` does not make."""
        envelope = Envelope.from_bytes(data)
        if envelope.payload_type != PAYLOAD_TYPE:
            raise FormatError("payloadType", f"expected {PAYLOAD_TYPE!r}")
        predicate = Fields(Fields(parse_json(envelope.payload, "statement")).read("predicate"), "predicate")
        receipt = Receipt.from_document(predicate.read("receipt"))
        proof = TlogProof.from_bytes(predicate.text("tlogProof", longest=1 << 20).encode("utf-8", "surrogateescape"))
        listed = (Fields(each, "predicate.verdicts") for each in predicate.array("verdicts"))
        verdicts = tuple(
            KnownVerdict(each.integer("entry"), Verdict.from_document(each.read("verdict"))) for each in listed
        )
        if canonical(_statement(receipt, proof, verdicts)) != envelope.payload:
            raise FormatError("statement", "is not what its receipt, proof and verdicts make")
        return cls(envelope, receipt, proof, verdicts)

    def issuer(self, keys: Iterable[PublicKey]) -> PublicKey:
        """One of `keys` that has signed the statement. Raises SignatureError."""
        signers = verified_signers(self.envelope, keys)
        if not signers:
            raise SignatureError("the statement is by none of the keys that you trust")
        return min(signers, key=lambda key: key.key_id)


def _statement(receipt: Receipt, proof: TlogProof, verdicts: Sequence[KnownVerdict]) -> dict[str, Any]:
    document = receipt.to_document()
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {
                "name": f"urn:uuid:{receipt.receipt_id}",
                "digest": {"sha256": digest(canonical(document)).removeprefix("sha256:")},
            }
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "receipt": document,
            "tlogProof": proof.to_bytes().decode(),
            "verdicts": [{"entry": each.entry, "verdict": each.verdict.to_document()} for each in verdicts],
        },
    }
