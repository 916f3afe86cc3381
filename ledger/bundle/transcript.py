"""A conversation as a bundle's `transcript.json`: what was asked, what was answered, and which receipt is about it.

A claim like every file of a bundle. Receipts commit to token ids, so that holding the texts against them takes the
tokenizer of the model, which the verifier brings (`ledger.bundle.text_check.TextReader`).
"""

from __future__ import annotations

from typing import Annotated, Self

from msgspec import Meta

from ledger.bundle.layout import TRANSCRIPT
from ledger.documents import content
from ledger.encoding.document import Count, Document, Part, ReceiptId, written
from ledger.errors import FormatError

_Words = Annotated[str, Meta(max_length=16 * 2**20)]
"""Four times the characters that the generation service takes as a prompt."""


class Turn(Part, frozen=True):
    """A question and its answer, of which only a beginning was shown if somebody `interrupted` it.

    `remembered` turns before this one were part of the prompt.
    """

    question: _Words
    answer: _Words
    receipt_id: ReceiptId
    remembered: Count
    interrupted: bool = written(False)


class Transcript(Document, tag="kolm.transcript.v1", frozen=True):
    """A conversation in order. `system` is None where it has no system message."""

    system: _Words | None
    turns: Annotated[tuple[Turn, ...], Meta(min_length=1)]

    def messages(self, at: int) -> list[content.Turn]:
        """The messages sent to the model for turn `at`, the question last."""
        turn = self.turns[at]
        first = [] if self.system is None else [("system", self.system)]
        for earlier in self.turns[at - turn.remembered : at]:
            first += [("user", earlier.question), ("assistant", earlier.answer)]
        return [content.sent_turn(role, text) for role, text in (*first, ("user", turn.question))]

    @classmethod
    def from_bytes(cls, data: bytes, path: str = TRANSCRIPT) -> Self:
        """The transcript of canonical bytes. Raises FormatError naming the first field that is wrong."""
        return super().from_bytes(data, path)

    def check(self) -> None:
        for at, turn in enumerate(self.turns):
            if turn.remembered > at:
                raise FormatError(f"turns[{at}].remembered", f"expected at most the {at} turns before it")
        if len({turn.receipt_id for turn in self.turns}) < len(self.turns):
            raise FormatError("turns", "expected a receipt of its own for each turn")
