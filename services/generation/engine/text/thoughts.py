"""Thoughts of models before their answer, in the forms of chat templates."""

from __future__ import annotations

from collections.abc import Collection

from services.generation.engine.request import ThoughtSyntax

_PAIRS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))
TAGS = tuple(tag for pair in _PAIRS for tag in pair)
"""Tags around thoughts, which chat templates search for in an assistant's content."""


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
