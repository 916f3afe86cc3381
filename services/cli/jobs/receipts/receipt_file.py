"""Checks a receipt file, offline, with nothing of the client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ledger.bundle.proven_entry import ProvenEntry
from ledger.bundle.receipt_file import MAX_FILE_BYTES, ReceiptFile
from ledger.documents.content import check_opened, check_sent
from ledger.documents.promise import Promise, open_promise
from ledger.documents.receipt import Receipt as ReceiptDocument
from ledger.documents.sent import MEMBERS, Turn
from services.cli.failures.exits import UsageError, VerificationFailed
from services.cli.jobs.receipts.bundle_trust import Sources, own_trust
from services.cli.jobs.receipts.bundle_verification import check_tlog_proof
from services.cli.jobs.receipts.receipt_texts import Texts, compared_texts

_TYPE = f'"{ReceiptFile.TYPE}"'.encode()


def is_receipt_file(path: Path) -> bool:
    """Whether a file claims to be one, in whatever layout."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return False
    return data.lstrip()[:1] == b"{" and _TYPE in data


@dataclass(frozen=True, slots=True)
class CheckedReceipt:
    """A receipt that holds, its place in the log, the promises that it keeps, and its texts where a model's tokenizer
    has compared them with the tokens.
    """

    document: ReceiptDocument
    place: ProvenEntry
    promises: tuple[Promise, ...]
    texts: Texts | None


def check_receipt_file(
    path: Path, sources: Sources, history: Path | None, prompt: Path | None, output: Path | None
) -> CheckedReceipt:
    """`prompt` and `output` are files with what the holder remembers; a prompt in JSON is a conversation's messages.

    Raises LedgerError for what does not hold, UsageError, VerificationFailed.
    """
    file = ReceiptFile.from_bytes(path.read_bytes())
    document, text = file.receipt(), file.text
    sent: str | Sequence[Turn] | None = file.sent
    if prompt is not None:
        sent = remembered = _sent(prompt, chat=document.prompt.chat_template is not None)
        check_sent(document, file.content.prompt_salt, remembered)
    if output is not None:
        text = _text(output)
        check_opened(document, file.content, text)
    texts = None if sources.model is None else compared_texts(document, file.content, sent, text, sources.model)
    if texts is not None and texts.same is False:
        raise VerificationFailed(texts.said)
    if file.proof is None:
        raise VerificationFailed(
            "the file opens the receipt, but holds no proof that the log took it",
            "fetch one: kolm ledger export --proof",
        )
    place = check_tlog_proof(file.proof, sources, history)
    return CheckedReceipt(document, place, _kept_promises(document, sources), texts)


def _kept_promises(document: ReceiptDocument, sources: Sources) -> tuple[Promise, ...]:
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
