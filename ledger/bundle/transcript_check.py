"""Holding a conversation against the receipts of its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from ledger.bundle.folder import BundleFolder
from ledger.bundle.lines import ContentLine, split_lines
from ledger.bundle.skipped import NothingToCheck
from ledger.bundle.transcript import Transcript, TranscriptReader, Turn
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.errors import ProofError
from ledger.tree.entry import Entry

Receipts = Mapping[str, tuple[Receipt, Content | None]]
"""Receipts by their id, each with its content if the bundle has it."""


def receipts_in(bundle: BundleFolder, receipt_ids: Collection[str]) -> Receipts:
    """Those of the receipts that the bundle holds. Raises LedgerError for files that are not in form."""
    found = {}
    for path in bundle.paths():
        if path.startswith("entries/"):
            contents = _contents(bundle, PurePosixPath(path).name)
            for line in split_lines(bundle.read(path), path):
                entry = Entry.from_bytes(line)
                document = read_document(entry.envelope)
                if isinstance(document, Receipt) and document.receipt_id in receipt_ids:
                    found[document.receipt_id] = (document, contents.get(entry.index))
    return found


def _contents(bundle: BundleFolder, name: str) -> Mapping[int, Content]:
    path = f"content/{name}"
    if path not in bundle.paths():
        return {}
    return {read.index: read.content for read in map(ContentLine.from_bytes, split_lines(bundle.read(path), path))}


def check_transcript(transcript: Transcript, receipts: Receipts, reader: TranscriptReader | None) -> str:
    """Hold every turn against its receipt and its content, which have been checked; returns the finding in words.

    Raises ProofError for a difference, NothingToCheck without a reader or all content, and what the reader raises.
    """
    without_content = 0
    for at, turn in enumerate(transcript.turns):
        if turn.receipt_id not in receipts:
            raise ProofError(f"turn {at + 1}: its receipt {turn.receipt_id} is not in the bundle")
        receipt, content = receipts[turn.receipt_id]
        if content is None:
            without_content += 1
        elif reader is not None:
            _check_turn(transcript, at, receipt, content, reader)
    count = len(transcript.turns)
    if without_content:
        raise NothingToCheck(f"{count} turns; the bundle lacks the content of {without_content} to compare them with")
    if reader is None:
        raise NothingToCheck(f"{count} turns have their receipts; to compare the texts, name the model with --model")
    return f"{count} turns: every prompt is the conversation before it, every answer the output"


def _check_turn(transcript: Transcript, at: int, receipt: Receipt, content: Content, reader: TranscriptReader) -> None:
    turn, name = transcript.turns[at], f"turn {at + 1}"
    if receipt.tokenizer_cid != reader.tokenizer_cid:
        raise ProofError(f"{name}: was read by the tokenizer {receipt.tokenizer_cid}, yours is {reader.tokenizer_cid}")
    if tuple(reader.prompt(transcript.messages(at))) != content.prompt_token_ids:
        raise ProofError(f"{name}: the receipt is about another prompt than the conversation up to here")
    stop = receipt.output.stop_reason
    by_token = receipt.output.finish_reason == "stop" and not isinstance(stop, str)  # the last one, which has no text
    ids = content.output_token_ids[:-1] if by_token else content.output_token_ids
    if not _is_answer(turn, reader.text(content.prompt_token_ids, ids), stop):
        raise ProofError(f"{name}: the receipt is about another answer")


def _is_answer(turn: Turn, text: str, stop_reason: str | int | None) -> bool:
    """Whether `text`, that of the whole output, was shown as the turn's answer. A stop string is not shown."""
    if turn.interrupted:
        return text.startswith(turn.answer)
    return text.startswith(turn.answer + stop_reason) if isinstance(stop_reason, str) else text == turn.answer
