"""Signing and appending a resume: by one operator at once, or by several in turn, over a file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ledger.documents.halt import Resume, Scope
from ledger.documents.signed_document import add_signature, read_document, sign_document
from ledger.durable_file import write_durably
from ledger.encoding.timestamp import timestamp
from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer, is_device, open_signer
from ledger.keys.threshold import FixedThreshold
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import open_checkpoint
from services.cli.failures.exits import Failed, Missing, UsageError
from services.client import LedgerClient
from services.client.errors import InvalidArgument
from services.client.ledger.log import Halt


@dataclass(frozen=True, slots=True)
class SignedResume:
    """A resume with its signatures so far."""

    document: Resume
    envelope: Envelope

    @property
    def signatures(self) -> int:
        return len(self.envelope.signatures)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A halt that is over, and the entry that says so."""

    halt_index: int
    method: str
    resume_index: int


def operator_key(path: Path, trusted: Path, passphrase_file: Path | None, ledger: LedgerClient | None) -> Signer:
    """The operator's key, made at first use. Raises KeyFileError, KolmError, and UsageError where there is no key and
    none is made.

    One is made, and where one operator is enough its public half published, only beside trusted keys by which the
    checkpoint of this `ledger` is signed: a mistyped data directory, or another ledger's, gets no operator. On another
    machine the ledger's operator has to put the public half there. If several have to sign, keys are trusted
    deliberately: nobody becomes a second operator by signing.
    """
    own = ledger is not None and _is_of(trusted, ledger)
    there = is_device(path) or path.exists()
    if not there and not own:
        raise UsageError(
            f"there is no operator's key at {path}, and none is made: {trusted} is not where this ledger's keys are",
            "is --data-dir the ledger's? Else name the key with --key",
        )
    key = open_signer(path, "operator", passphrase_file, create=not there)
    if own and operators_needed(trusted) == 1:
        key.publish(trusted)
    return key


def co_signer(path: Path, trusted: Path, passphrase_file: Path | None, ledger: str) -> Signer:
    """The key of one more operator, who needs no ledger for it but at its first use. Raises as `operator_key` does."""
    if is_device(path) or path.exists():
        return operator_key(path, trusted, passphrase_file, None)
    with LedgerClient.connect(ledger) as client:
        return operator_key(path, trusted, passphrase_file, client)


def _is_of(trusted: Path, ledger: LedgerClient) -> bool:
    """Whether one of the keys in `trusted` has signed the checkpoint of a ledger."""
    if not trusted.is_dir():
        return False
    try:
        open_checkpoint(ledger.checkpoint().note, TrustedKeys.load(trusted).keys("log"))
    except (FormatError, SignatureError):
        return False
    return True


def operators_needed(trusted: Path) -> int:
    """How many have to sign, by the trusted keys of this machine. Raises KeyFileError."""
    return FixedThreshold.load(trusted).at(None)


def open_halts(ledger: LedgerClient, index: int | None) -> tuple[Halt, ...]:
    """The halt at this entry, or all open halts. Raises KolmError, Missing if there is none."""
    chosen = tuple(halt for halt in ledger.halt_state().halts if index in (None, halt.halt_index))
    if not chosen:
        what = "there is no open halt" if index is None else f"entry {index} is no open halt"
        raise Missing(what, "`kolm halts list` shows the open halts")
    return chosen


def signed_resume(halt: Halt, key: Signer, reason: str) -> SignedResume:
    """A resume of `halt` with one signature. Raises FormatError."""
    scope = Scope(halt.scope.base_cid, halt.scope.method, halt.scope.head_cid)
    document = Resume(scope, halt.halt_index, reason, timestamp(datetime.now(UTC)))
    return SignedResume(document, sign_document(document, key))


def append_resume(ledger: LedgerClient, resume: SignedResume) -> Resumed:
    """Raises KolmError, Failed if more operators have to sign."""
    try:
        appended = ledger.append(resume.envelope.to_bytes())
    except InvalidArgument as error:
        if "operators that have to sign" not in error.message:
            raise
        hint = "collect signatures in a file with `kolm halts resume --sign-into`, then `kolm halts resume --file`"
        raise Failed(error.message, hint) from error
    return Resumed(resume.document.halt_index, resume.document.scope.method, appended.index)


def read_resume(path: Path) -> SignedResume:
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
    return SignedResume(document, envelope)


def sign_file(path: Path, resume: SignedResume, key: Signer) -> SignedResume:
    """Add a signature to a resume and write it to its file. Raises UsageError."""
    try:
        signed = SignedResume(resume.document, add_signature(resume.envelope, key))
    except FormatError as error:
        raise UsageError(f"{path} cannot be signed: {error}") from None
    try:
        write_durably(path, signed.envelope.to_bytes() + b"\n", mode=0o644)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return signed
