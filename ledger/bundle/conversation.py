"""A conversation in a bundle, `transcript.json`: questions and answers, each with its receipt.

Its texts are a claim of the bundle's maker. Receipts commit to token ids, so the comparison with texts needs the
tokenizer of the model, which the verifier provides (`TextReader`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated

from msgspec import Meta

from ledger.bundle.file_checks import read_contents
from ledger.bundle.layout import TRANSCRIPT, BundleFiles, split_lines
from ledger.bundle.report import NothingToCheck, TextReader
from ledger.documents import content
from ledger.documents.content import Content
from ledger.documents.content import Turn as SentTurn
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.encoding.document import Count, Document, Part, ReceiptId, written
from ledger.errors import FormatError, ProofError
from ledger.tree.entry import Entry

_Words = Annotated[str, Meta(max_length=16 * 2**20)]
"""Four times the longest prompt of the generation service, in characters."""

Receipts = Mapping[str, tuple[Receipt, Content | None]]
"""Receipts by their id, each with its content if the bundle has it."""


class Turn(Part, frozen=True):
    """A question and its answer, which is cut short if `interrupted`. `remembered` is the number of earlier turns in
    the prompt.
    """

    question: _Words
    answer: _Words
    receipt_id: ReceiptId
    remembered: Count
    interrupted: bool = written(False)


class Transcript(Document, tag="kolm.transcript.v1", frozen=True):
    """A conversation in order. `system` is None without a system message."""

    PLACE = TRANSCRIPT
    system: _Words | None
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)]

    def messages(self, at: int) -> list[content.Turn]:
        """The messages sent to the model for turn `at`, the question last."""
        turn = self.turns[at]
        first = [] if self.system is None else [("system", self.system)]
        for earlier in self.turns[at - turn.remembered : at]:
            first += [("user", earlier.question), ("assistant", earlier.answer)]
        return [content.sent_turn(role, text) for role, text in (*first, ("user", turn.question))]

    def check(self) -> None:
        for at, turn in enumerate(self.turns):
            if turn.remembered > at:
                raise FormatError(f"turns[{at}].remembered", f"expected at most the {at} turns before it")
        if len({turn.receipt_id for turn in self.turns}) < len(self.turns):
            raise FormatError("turns", "expected a different receipt for each turn")


def tokenizer_mismatch(receipt: Receipt, reader: TextReader) -> str | None:
    """The end of a message that begins with 'the prompt', if the receipt names another tokenizer than the reader's."""
    if receipt.tokenizer_cid == reader.tokenizer_cid:
        return None
    return f"was read by the tokenizer {receipt.tokenizer_cid}, yours is {reader.tokenizer_cid}"


def is_prompt(content: Content, sent: str | Sequence[SentTurn], reader: TextReader) -> bool:
    """Whether the tokens of the receipt's prompt are those of `sent`, laid out by the reader."""
    return tuple(reader.prompt(sent)) == content.prompt_token_ids


def is_answer(
    receipt: Receipt, content: Content, answer: str, reader: TextReader, *, interrupted: bool = False
) -> bool:
    """Whether the answer is the output's text before its stop string, or a prefix of the text if `interrupted`."""
    stop = receipt.output.stop_reason
    by_token = receipt.output.finish_reason == "stop" and not isinstance(stop, str)  # the last token, which has no text
    ids = content.output_token_ids[:-1] if by_token else content.output_token_ids
    text = reader.text(content.prompt_token_ids, ids)
    if interrupted:
        return text.startswith(answer)
    return text.startswith(answer + stop) if isinstance(stop, str) else text == answer


def receipts_in(bundle: BundleFiles, receipt_ids: Collection[str]) -> Receipts:
    """The receipts of a bundle that have one of these ids. Raises LedgerError for malformed files."""
    found = {}
    for path in bundle.paths():
        if path.startswith("entries/"):
            name = PurePosixPath(path).stem
            contents = read_contents(bundle, name) if f"content/{name}.jsonl" in bundle.paths() else {}
            for line in split_lines(bundle.read(path), path):
                entry = Entry.from_bytes(line)
                document = read_document(entry.envelope)
                if isinstance(document, Receipt) and document.receipt_id in receipt_ids:
                    found[document.receipt_id] = (document, contents.get(entry.index))
    return found


def check_transcript(transcript: Transcript, receipts: Receipts, reader: TextReader | None) -> str:
    """Compare every turn with its receipt and content, which were checked before; return the result in words. Raises
    ProofError for a difference, NothingToCheck if content or the reader is missing, and the errors of the reader.
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
        raise NothingToCheck(f"the bundle lacks the content of {without_content} of {count} turns")
    if reader is None:
        raise NothingToCheck(f"{count} turns have their receipts; to compare the texts, name the model with --model")
    return f"{count} turns: every prompt is the conversation before it, every answer the output"


def _check_turn(transcript: Transcript, at: int, receipt: Receipt, content: Content, reader: TextReader) -> None:
    turn, name = transcript.turns[at], f"turn {at + 1}"
    if (problem := tokenizer_mismatch(receipt, reader)) is not None:
        raise ProofError(f"{name}: the prompt {problem}")
    if not is_prompt(content, transcript.messages(at), reader):
        raise ProofError(f"{name}: the receipt is about another prompt than the conversation up to here")
    if not is_answer(receipt, content, turn.answer, reader, interrupted=turn.interrupted):
        raise ProofError(f"{name}: the receipt is about another answer")
