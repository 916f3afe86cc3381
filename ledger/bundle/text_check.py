"""Holding texts against the token ids of a receipt. Receipts commit to both and cannot say that they belong together:
that takes the model's tokenizer, which the verifier brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledger.documents.content import Content, Turn
from ledger.documents.receipt import Receipt


class TextReader(Protocol):
    """The verifier's tokenizer. Its methods raise LedgerError where it cannot read what it is given."""

    @property
    def tokenizer_cid(self) -> str:
        """As receipts name it."""
        ...

    def prompt(self, sent: str | Sequence[Turn]) -> list[int]:
        """The ids of a text, or those that the model's chat template makes of a conversation."""
        ...

    def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
        """The text of an output after its prompt, without special tokens."""
        ...


def another_tokenizer(receipt: Receipt, reader: TextReader) -> str | None:
    """In words, if the receipt names one."""
    if receipt.tokenizer_cid == reader.tokenizer_cid:
        return None
    return f"was read by the tokenizer {receipt.tokenizer_cid}, yours is {reader.tokenizer_cid}"


def is_prompt(content: Content, sent: str | Sequence[Turn], reader: TextReader) -> bool:
    """Whether what was sent is what the model was given."""
    return tuple(reader.prompt(sent)) == content.prompt_token_ids


def is_answer(
    receipt: Receipt, content: Content, answer: str, reader: TextReader, *, interrupted: bool = False
) -> bool:
    """Whether the answer is the text of the output, or its beginning if it was `interrupted`, without a stop string."""
    stop = receipt.output.stop_reason
    by_token = receipt.output.finish_reason == "stop" and not isinstance(stop, str)  # the last one, which has no text
    ids = content.output_token_ids[:-1] if by_token else content.output_token_ids
    text = reader.text(content.prompt_token_ids, ids)
    if interrupted:
        return text.startswith(answer)
    return text.startswith(answer + stop) if isinstance(stop, str) else text == answer
