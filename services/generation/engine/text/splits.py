"""How text is split into words before their bytes are merged, by the names that llama.cpp gave to it.

A GGUF file has no regular expressions, only `tokenizer.ggml.pre`. These are the expressions of the tokenizer.json that
each name stands for, and so are normalisation and what happens to whole words.
"""

from __future__ import annotations

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """`expressions` apply one after the other; what each matches is a word, and so is what lies between."""

    expressions: tuple[str, ...]
    whole_words: bool = False  # a word that is in the vocabulary is a token, whatever the merges would make of it
    composed: bool = False  # text is brought into Unicode's form NFC first
    begins: bool = False  # a prompt begins with BOS where the file does not say


_SMOLLM = Splitting((r"\p{N}", _GPT2))
_LLAMA_BPE = Splitting((_LLAMA3,), whole_words=True, begins=True)
_QWEN = Splitting((_QWEN2,), composed=True)

SPLITTINGS = {
    "gpt-2": Splitting((_GPT2,)),
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "tekken": Splitting((_TEKKEN,), whole_words=True, begins=True),
}
"""By `tokenizer.ggml.pre`."""
