"""Holds a prompt and an answer, as texts, against the token ids of a receipt, by the tokenizer of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ledger.bundle.text_check import another_tokenizer, is_answer, is_prompt
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.sent import Turn
from services.cli.jobs.receipts.text_reader import ModelTextReader


@dataclass(frozen=True, slots=True)
class Texts:
    """The result, in words. `same` is None where something could not be compared, and nothing differs."""

    same: bool | None
    said: str


def compared_texts(
    receipt: Receipt, content: Content, sent: str | Sequence[Turn] | None, answer: str | None, model: Path
) -> Texts:
    """The receipt commits to `content`, to what was `sent` and to the `answer`; None is what nobody has kept.

    Raises UsageError for a model without a tokenizer, ProofError for a conversation that it cannot read.
    """
    reader = ModelTextReader(model)
    if (problem := another_tokenizer(receipt, reader)) is not None:
        return Texts(False, f"the prompt {problem}")
    if answer is not None and not is_answer(receipt, content, answer, reader):
        return Texts(False, "the answer is not the text of the tokens that the receipt is about")
    if sent is not None and not is_prompt(content, sent, reader):
        if not isinstance(sent, str) and any("tools" in turn for turn in sent):
            return Texts(None, "the prompt was not compared: which tools the model was told of is not in the receipt")
        return Texts(False, "the model was given another prompt than the one that was sent")
    missing = [name for name, text in (("the prompt", sent), ("the answer", answer)) if text is None]
    if missing:
        return Texts(None, f"the file lacks the text of {' and '.join(missing)}: nothing to compare the tokens with")
    return Texts(True, "prompt and answer are the texts of these tokens")
