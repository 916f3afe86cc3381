"""A conversation as a bundle's `transcript.json`: what was asked, what was answered, and which receipt is about it.

A claim like every file of a bundle. Receipts commit to token ids, so that holding the texts against them takes the
tokenizer of the model, which the verifier brings (`ledger.bundle.text_check.TextReader`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents import sent
from ledger.encoding.canonical import canonical, parse
from ledger.encoding.fields import Fields
from ledger.errors import FormatError

_LONGEST_TEXT = 16 * 2**20
"""Characters; four times what the generation service takes as a prompt."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer, of which only a beginning was shown if somebody `interrupted` it.

    `remembered` turns before this one were part of the prompt.
    """

    question: str
    answer: str
    receipt_id: str
    remembered: int
    interrupted: bool = False

    def to_document(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "answer": self.answer,
            "receipt_id": self.receipt_id,
            "remembered": self.remembered,
            "interrupted": self.interrupted,
        }

    @classmethod
    def from_fields(cls, fields: Fields, most: int) -> Turn:
        """`most` is the number of turns before this one."""
        turn = cls(
            question=fields.text("question", longest=_LONGEST_TEXT, empty=True),
            answer=fields.text("answer", longest=_LONGEST_TEXT, empty=True),
            receipt_id=fields.receipt_id("receipt_id"),
            remembered=fields.integer("remembered", 0, most),
            interrupted=fields.boolean("interrupted"),
        )
        fields.close()
        return turn


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation in order. `system` is None where it has no system message."""

    TYPE: ClassVar[str] = "kolm.transcript.v1"

    system: str | None
    turns: tuple[Turn, ...]

    def messages(self, at: int) -> list[sent.Turn]:
        """The messages sent to the model for turn `at`, the question last."""
        turn = self.turns[at]
        first = [] if self.system is None else [("system", self.system)]
        for earlier in self.turns[at - turn.remembered : at]:
            first += [("user", earlier.question), ("assistant", earlier.answer)]
        return [sent.sent_turn(role, content) for role, content in (*first, ("user", turn.question))]

    def to_bytes(self) -> bytes:
        turns = [turn.to_document() for turn in self.turns]
        return canonical({"type": self.TYPE, "system": self.system, "turns": turns})

    @classmethod
    def from_bytes(cls, data: bytes) -> Transcript:
        """The transcript of canonical bytes. Raises FormatError naming the first field that is wrong."""
        name = "transcript.json"
        fields = Fields(parse(data, name), name)
        fields.constant("type", cls.TYPE)
        system = fields.optional("system", lambda field: fields.text(field, longest=_LONGEST_TEXT, empty=True))
        given = fields.array("turns")
        turns = [Turn.from_fields(Fields(turn, f"{name}.turns[{at}]"), at) for at, turn in enumerate(given)]
        fields.close()
        if not turns or len({turn.receipt_id for turn in turns}) < len(turns):
            raise FormatError(f"{name}.turns", "expected at least one turn, each with a receipt of its own")
        return cls(system, tuple(turns))
