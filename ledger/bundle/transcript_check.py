"""Holding a conversation against the receipts of its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from ledger.bundle.folder import BundleFolder
from ledger.bundle.lines import ContentLine, split_lines
from ledger.bundle.skipped import NothingToCheck
from ledger.bundle.text_check import TextReader, another_tokenizer, is_answer, is_prompt
from ledger.bundle.transcript import Transcript
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.errors import ProofError
from ledger.tree.entry import Entry

Receipts = Mapping[str, tuple[Receipt, Content | None]]
"""Receipts by their id, each with its content if the bundle has it."""


def receipts_in(bundle: BundleFolder, receipt_ids: Collection[str]) -> Receipts:
    """The named receipts that the bundle holds. Raises LedgerError for files that are not in form."""
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


def check_transcript(transcript: Transcript, receipts: Receipts, reader: TextReader | None) -> str:
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


def _check_turn(transcript: Transcript, at: int, receipt: Receipt, content: Content, reader: TextReader) -> None:
    turn, name = transcript.turns[at], f"turn {at + 1}"
    if (problem := another_tokenizer(receipt, reader)) is not None:
        raise ProofError(f"{name}: {problem}")
    if not is_prompt(content, transcript.messages(at), reader):
        raise ProofError(f"{name}: the receipt is about another prompt than the conversation up to here")
    if not is_answer(receipt, content, turn.answer, reader, interrupted=turn.interrupted):
        raise ProofError(f"{name}: the receipt is about another answer")
