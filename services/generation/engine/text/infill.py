"""Filling in the middle: the marks of models trained for it, and their order in a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PREFIX_FIRST = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder (Li et al. 2023), Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # Code Llama (Rozière et al. 2023)
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),  # DeepSeek-Coder
)
_SUFFIX_FIRST = (
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),  # Seed-Coder
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral
)
_ENDS = (
    "\u2581<EOT>", "<|fim_pad|>", "<fim_pad>", "<|file_sep|>", "<file_sep>", "<|file_separator|>", "<|repo_name|>",
    "<repo_name>",
)  # fmt: skip
"""Marks that models write after a middle, instead of or before the end of the sequence, as in llama.cpp."""


@dataclass(frozen=True, slots=True)
class InfillMarks:
    """Ids of the marks before a prefix, before a suffix, and after both (None for Codestral), and of the tokens that
    end a middle. `suffix_first`: the suffix is before the prefix.
    """

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool
    ends: tuple[int, ...]


def infill_marks(markup: Mapping[str, int]) -> InfillMarks | None:
    """The marks among a tokenizer's markup; None for a model without them. `markup`: ids by text."""
    for known, suffix_first in ((_PREFIX_FIRST, False), (_SUFFIX_FIRST, True)):
        for prefix, suffix, middle in known:
            if {prefix, suffix} | ({middle} if middle else set()) <= markup.keys():
                ends = tuple(sorted(markup[end] for end in _ENDS if end in markup))
                return InfillMarks(
                    markup[prefix], markup[suffix], markup[middle] if middle else None, suffix_first, ends
                )
    return None
