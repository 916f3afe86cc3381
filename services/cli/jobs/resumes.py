"""Signing and appending a resume: by one operator at once, or by several, one after the other, over a file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ledger.documents.halt import Resume, Scope
from ledger.documents.signed_document import add_signature, read_document, sign_document
from ledger.encoding.timestamp import timestamp
from ledger.errors import FormatError, LedgerError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.threshold import FixedThreshold
from services.cli.exits import Failed, UsageError
from services.client import LedgerClient
from services.client.errors import InvalidArgument, KolmError
from services.client.log import Halt


def operator_key(path: Path, trusted: Path) -> SigningKey:
    """The operator's key, made at first use. Raises KeyFileError.

    Where one operator is enough it is published where the ledger of this machine looks; on another machine the
    ledger's operator has to put the public key there. Where several have to sign, keys are trusted deliberately:
    nobody becomes a second operator by signing.
    """
    key = SigningKey.load_or_create(path, "operator")
    if trusted.is_dir() and operators_needed(trusted) == 1:
        key.publish(trusted)
    return key


def operators_needed(trusted: Path) -> int:
    """How many have to sign, by the trust configuration of this machine. Raises KeyFileError."""
    return FixedThreshold.load(trusted).at(None)


def signed_resume(halt: Halt, key: SigningKey, reason: str) -> Envelope:
    """A resume of `halt` with one signature. Raises FormatError."""
    scope = Scope(halt.scope.base_cid, halt.scope.method, halt.scope.head_cid)
    return sign_document(Resume(scope, halt.halt_index, reason, timestamp(datetime.now(UTC))), key)


def append_resume(ledger: LedgerClient, envelope: Envelope) -> int:
    """The index of the resume's entry. Raises KolmError, Failed where more operators have to sign."""
    try:
        return ledger.append(envelope.to_bytes()).index
    except InvalidArgument as error:
        if not _wants_more(error):
            raise
        hint = "collect signatures in a file with `kolm halts sign`, then `kolm halts resume --file`"
        raise Failed(error.message, hint) from error


def _wants_more(error: KolmError) -> bool:
    return "operators that have to sign" in error.message


def read_resume(path: Path) -> tuple[Envelope, Resume]:
    """A resume that waits for signatures. Raises UsageError."""
    try:
        envelope = Envelope.from_bytes(path.read_bytes())
        document = read_document(envelope)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except LedgerError as error:
        raise UsageError(f"{path} is no resume: {error}") from None
    if not isinstance(document, Resume):
        raise UsageError(f"{path} is no resume")
    return envelope, document


def sign_file(path: Path, key: SigningKey) -> Envelope:
    """Add a signature to the resume in a file; what came out. Raises UsageError."""
    envelope, _ = read_resume(path)
    try:
        signed = add_signature(envelope, key)
    except FormatError as error:
        raise UsageError(f"{path} cannot be signed: {error}") from None
    write_resume(path, signed)
    return signed


def write_resume(path: Path, envelope: Envelope) -> None:
    """Raises UsageError."""
    try:
        path.write_bytes(envelope.to_bytes() + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
