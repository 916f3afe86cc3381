"""Thoughts of models before their answer, in the forms of chat templates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_PAIRS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))
TAGS = tuple(tag for pair in _PAIRS for tag in pair)
"""Tags around thoughts, which chat templates search for in an assistant's content."""


@dataclass(frozen=True, slots=True)
class ThoughtSyntax:
    """The form of an output with thoughts: `open`, thought, one of `closes`, answer; or `bare` and the answer.

    The part of a closing after a space belongs to the answer. `begun`: the prompt ends with `open`.
    """

    open: str
    closes: tuple[str, ...]
    bare: str = ""
    begun: bool = False

    def is_open(self, text: str) -> bool:
        """Whether a text ends within a thought."""
        _, found, thought = text.rpartition(self.open)
        return bool(found) and not any(close in thought for close in self.closes)


HARMONY = ThoughtSyntax("analysis", ("assistantfinal", "assistantcommentary", "assistant to="), "final")
"""gpt-oss's channels in decoded text: special tokens mark them, and their names are ordinary text."""


def known_thoughts(template: str, hidden: Collection[str] = ()) -> ThoughtSyntax | None:
    """The syntax of thoughts in a chat template; None if it is of no known kind, or its tags are `hidden`: texts that
    decoding omits.
    """
    if "<|channel|>" in template and "analysis" in template:
        return HARMONY
    pairs = (pair for pair in _PAIRS if all(tag in template and tag not in hidden for tag in pair))
    return next((ThoughtSyntax(begin, (end,)) for begin, end in pairs), None)
