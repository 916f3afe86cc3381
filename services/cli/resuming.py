"""Signing and appending a resume."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ledger.document import sign_document
from ledger.halt import Resume, Scope
from ledger.keys import SigningKey
from ledger.timestamp import timestamp
from services.client import LedgerClient
from services.client.log import Halt


def operator_key(path: Path, trusted: Path) -> SigningKey:
    """The operator's key, made at first use and published where the ledger of this machine looks. Raises KeyFileError.

    On another machine the ledger's operator has to put the public key there.
    """
    key = SigningKey.load_or_create(path, "operator")
    if trusted.is_dir():
        key.publish(trusted)
    return key


def resume_halt(ledger: LedgerClient, halt: Halt, key: SigningKey, reason: str) -> int:
    """The index of the resume's entry. Raises KolmError, FormatError."""
    scope = Scope(halt.scope.base_cid, halt.scope.method, halt.scope.head_cid)
    document = Resume(scope, halt.halt_index, reason, timestamp(datetime.now(UTC)))
    return ledger.append(sign_document(document, key).to_bytes()).index
