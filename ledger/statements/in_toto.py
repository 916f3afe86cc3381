"""An in-toto Statement v1 about a receipt, in a DSSE envelope. The predicate is ours: docs/statements.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ledger.documents.receipt import Receipt
from ledger.documents.verdict import Verdict
from ledger.encoding.canonical import canonical
from ledger.encoding.digest import digest
from ledger.keys.envelope import Envelope, sign
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
