"""What models say before they answer: thoughts, and how chat templates of today's families write them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThoughtSyntax:
    """An output that thinks: `open`, thought, one of `closes`, answer; or `bare` and the answer.

    Of a closing with a space, what is behind the space belongs to what follows. `begun`: the prompt ends with `open`.
    """

    open: str
    closes: tuple[str, ...]
    bare: str = ""
    begun: bool = False


TAGS = ("<think>", "</think>", "<seed:think>", "</seed:think>", "[THINK]", "[/THINK]")
"""Tags that models write around thoughts, and that chat templates look for in an assistant's content."""

_TAGS = ThoughtSyntax("<think>", ("</think>",))
"""Qwen3's, which DeepSeek-R1, SmolLM3 and others write too; the tags are not special tokens."""
_HARMONY = ThoughtSyntax("analysis", ("assistantfinal", "assistantcommentary", "assistant to="), "final")
"""gpt-oss's channels, as decoded text has them: special tokens mark them, and their names are ordinary text."""


def known_thoughts(template: str) -> ThoughtSyntax | None:
    """The syntax of thoughts in a chat template; None where it is of no known kind."""
    if "<|channel|>" in template and "analysis" in template:
        return _HARMONY
    return _TAGS if _TAGS.open in template and _TAGS.closes[0] in template else None
