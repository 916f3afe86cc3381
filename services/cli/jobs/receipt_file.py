"""Checks a receipt file, offline, with nothing of the client."""

from __future__ import annotations

import json
from pathlib import Path

from ledger.bundle.proven_entry import ProvenEntry
from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.content import check_opened, check_sent
from ledger.documents.promise import Promise, open_promise
from ledger.documents.receipt import Receipt as ReceiptDocument
from ledger.documents.sent import MEMBERS
from services.cli.exits import UsageError, VerificationFailed
from services.cli.jobs.bundle_trust import Sources, own_trust
from services.cli.jobs.bundle_verification import check_tlog_proof

_BEGINS = b'{"content":{"output_salt"'  # canonical JSON has its members in order


def is_receipt_file(path: Path) -> bool:
    """Whether a file is one, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINS)) == _BEGINS
    except OSError:
        return False


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


def kept_promises(document: ReceiptDocument, sources: Sources) -> tuple[Promise, ...]:
    """The promises that were named, if the receipt keeps each of them.

    Raises LedgerError for a signature that does not hold, VerificationFailed for a promise of another request.
    """
    trust = own_trust(sources)
    promises = tuple(open_promise(data, trust.keys) for data in trust.promises)
    for promise in promises:
        if not promise.is_kept_by(document):
            raise VerificationFailed(
                f"the promise of {promise.promised_at} is about request {promise.request_id} and not kept by this "
                f"receipt, which is about {document.request_id}",
                "hold it against the log: kolm receipts promised, or kolm verify of a bundle",
            )
    return promises


def _sent(path: Path, *, chat: bool) -> str | list[dict[str, str]]:
    text = _text(path)
    if not chat:
        return text
    try:
        return [
            {name: str(each[name]) for name in ("role", "content", *(more for more in MEMBERS if more in each))}
            for each in json.loads(text)
        ]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(f'--prompt: {path}: expected the messages, [{{"role": …, "content": …}}, …]') from error


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8") from error
