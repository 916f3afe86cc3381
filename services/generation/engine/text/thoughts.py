"""Thoughts of models before their answer, in the forms of chat templates."""

from __future__ import annotations

from dataclasses import dataclass

TAGS = ("<think>", "</think>", "<seed:think>", "</seed:think>", "[THINK]", "[/THINK]")
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


_TAGS = ThoughtSyntax("<think>", ("</think>",))
"""The form of Qwen3, DeepSeek-R1, SmolLM3 and others; the tags are not special tokens."""
HARMONY = ThoughtSyntax("analysis", ("assistantfinal", "assistantcommentary", "assistant to="), "final")
"""gpt-oss's channels in decoded text: special tokens mark them, and their names are ordinary text."""


def known_thoughts(template: str) -> ThoughtSyntax | None:
    """The syntax of thoughts in a chat template; None if it is of no known kind."""
    if "<|channel|>" in template and "analysis" in template:
        return HARMONY
    return _TAGS if _TAGS.open in template and _TAGS.closes[0] in template else None
