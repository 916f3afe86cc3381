"""Receipt files: written where an answer comes in, checked anywhere."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ledger.bundle.receipt_file import ReceiptFile, Turns
from ledger.documents.content import check_opened, check_sent
from ledger.documents.receipt import Receipt as ReceiptDocument
from ledger.encoding.canonical import parse
from ledger.keys.envelope import Envelope
from ledger.tree.tlog_proof import TlogProof
from services.cli.exits import Failed, UsageError, VerificationFailed
from services.cli.jobs.bundle_trust import Sources
from services.cli.jobs.bundle_verification import ProvenEntry, check_tlog_proof
from services.cli.jobs.ledger.bundle_export import proof_of
from services.client import LedgerClient, Message, Receipt
from services.client.errors import KolmError, NotFound

_PATIENCE = 10.0  # seconds in which a receipt on its way should have arrived
_PAUSE = 0.25
_BEGINS = b'{"content":{"output_salt"'  # canonical JSON has its members in order


def is_receipt_file(path: Path) -> bool:
    """Whether a file is one, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINS)) == _BEGINS
    except OSError:
        return False


def check_writable(path: Path) -> None:
    """Before anything is asked: an answer must not be lost for want of a folder. Raises UsageError."""
    if path.exists():
        raise UsageError(f"{path} exists already; name another file")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory")


def save(path: Path, receipt: Receipt, sent: str | Sequence[Message], ledger: str) -> str | None:
    """Write a receipt file, readable for its owner only, with the proof of its entry; returns why it has no proof.

    Raises Failed where the file cannot be written.
    """
    turns: str | Turns = sent if isinstance(sent, str) else tuple((each.role, each.content) for each in sent)
    proof, why = _proof(receipt, ledger)
    file = ReceiptFile(Envelope.from_bytes(receipt.envelope), receipt.content, turns, receipt.text, proof)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(file.to_bytes())
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from None
    return why


def _proof(receipt: Receipt, ledger: str) -> tuple[TlogProof | None, str]:
    deadline = time.monotonic() + _PATIENCE
    try:
        with LedgerClient.connect(ledger) as client:
            while True:
                try:
                    return proof_of(client, client.receipt(receipt.receipt_id).receipt.index), ""
                except NotFound:
                    if time.monotonic() > deadline:
                        return None, f"the log has not taken the receipt within {_PATIENCE:.0f} s"
                time.sleep(_PAUSE)
    except KolmError as error:
        return None, f"the ledger at {ledger} does not answer: {error.message}"


def check_receipt_file(
    path: Path, sources: Sources, history: Path | None, prompt: Path | None, output: Path | None
) -> tuple[ReceiptDocument, ProvenEntry]:
    """`prompt` and `output` are files with what the holder remembers; a prompt in JSON is a conversation's messages.

    Raises LedgerError for what does not hold, UsageError, VerificationFailed.
    """
    file = ReceiptFile.from_bytes(path.read_bytes())
    document = file.receipt()
    if prompt is not None:
        check_sent(document, file.content.prompt_salt, _sent(prompt, chat=document.prompt.chat_template is not None))
    if output is not None:
        check_opened(document, file.content, _text(output))
    if file.proof is None:
        raise VerificationFailed(
            "the file opens the receipt, but holds no proof that the log took it",
            "fetch one: kolm ledger export --proof",
        )
    return document, check_tlog_proof(file.proof, sources, history)


def _sent(path: Path, *, chat: bool) -> str | list[dict[str, str]]:
    text = _text(path)
    if not chat:
        return text
    try:
        turns = parse(text.encode(), "--prompt")
        return [{"role": str(each["role"]), "content": str(each["content"])} for each in turns]
    except (TypeError, KeyError) as error:
        raise UsageError(f'--prompt: {path}: expected the messages, [{{"role": …, "content": …}}, …]') from error


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8") from error
