"""The turns of a conversation, and the part of them that the next prompt repeats."""

from __future__ import annotations

from dataclasses import dataclass

from services.client import Message

_TEMPLATE_TOKENS = 64
"""More than a chat template adds to a message."""


@dataclass(frozen=True, slots=True)
class Said:
    """One turn. `answer` is what was shown, of an interrupted answer the beginning.

    `remembered` turns before it were part of its prompt. `receipt_id` is None while only the ledger knows it, under
    `request_id`. `tokens` are those of prompt and answer together, None if they are not known.
    """

    question: str
    answer: str
    request_id: str
    remembered: int
    interrupted: bool = False
    receipt_id: str | None = None
    tokens: int | None = None


class Conversation:
    """Turns in order. Nothing is forgotten unless somebody asks for it."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Said] = []
        self._forgotten = 0

    @property
    def remembered(self) -> int:
        """Turns that the next prompt repeats: the last ones."""
        return len(self.turns) - self._forgotten

    def messages(self, question: str) -> list[Message]:
        """The prompt for `question`."""
        first = [] if self.system is None else [Message("system", self.system)]
        for turn in self._kept():
            first += [Message("user", turn.question), Message("assistant", turn.answer)]
        return [*first, Message("user", question)]

    def prompt_bound(self, question: str) -> int:
        """A number of tokens that the prompt for `question` stays under.

        Turns whose tokens are not known count a token for each byte; there is no smaller one.
        """
        kept = self._kept()
        counted = kept[-1].tokens if kept and kept[-1].remembered + 1 >= len(kept) else None
        messages = self.messages(question)
        if counted is not None:
            messages = messages[-1:]
        return (counted or 0) + sum(len(each.content.encode()) + _TEMPLATE_TOKENS for each in messages)

    def add(self, turn: Said) -> None:
        self.turns.append(turn)

    def forget_oldest(self) -> Said | None:
        """The turn that later prompts do not repeat any more; None if there is none."""
        if not self.remembered:
            return None
        self._forgotten += 1
        return self.turns[self._forgotten - 1]

    def forget_all(self) -> None:
        """Later prompts begin afresh."""
        self._forgotten = len(self.turns)

    def _kept(self) -> list[Said]:
        return self.turns[self._forgotten :]
