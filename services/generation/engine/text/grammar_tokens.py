"""A model's tokens for llguidance: markup separate from text, and text encoded without markup."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any

from llguidance import LLTokenizer
from tokenizers import Tokenizer as FastTokenizer

from services.generation.engine.text.markup import Markup, embedded_tokens
from services.generation.engine.text.token_bytes import BYTE_LEVEL

_RECENT = 16
"""Texts whose ids are remembered: the library asks for the rest of a forced text in each mask and each draft, of every
choice of a request.
"""
_MARKER = b"\xff"
"""First byte of tokens that are not text, by the library's convention. No UTF-8 text has this byte."""


def grammar_tokenizer(document: str, vocab_size: int, eos: int) -> LLTokenizer:
    """The tokenizer of all grammars: of trials, of the engine and of replays.

    `document`: tokenizer.json. Raises errors of several kinds, from the libraries.
    """
    return LLTokenizer(GrammarTokens(document, vocab_size, eos))  # type: ignore[arg-type]


class GrammarTokens:
    """A tokenizer for llguidance's `TokenizerWrapper`. Safe from any thread.

    A grammar's text, forced or free, is matched by text tokens. Markup, the end of the sequence and ids without a token
    are matched only by symbols of their own (`<[151657]>`, `<think>`).

    Attributes:
        tokens: the bytes of each id.
        text_ids: ids of tokens that are text.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()  # they have the marker already

    def __init__(self, document: str, vocab_size: int, eos: int) -> None:
        fields = json.loads(document)
        fast = FastTokenizer.from_str(json.dumps(fields) if _goes_on(fields) else document)
        embedded_tokens(fast, vocab_size)
        self._markup, bytes_of = Markup(fast), _bytes_of(fields["decoder"])
        self.eos_token_id, marks = eos, {*self._markup.ids.values(), eos}
        self.tokens: list[bytes] = []
        for index in range(vocab_size):
            name = fast.id_to_token(index) or ""
            data = b"" if index in marks else bytes_of(name)
            self.tokens.append(data or _MARKER + (name or f"<[{index}]>").encode())
        self.text_ids = frozenset(index for index, data in enumerate(self.tokens) if not data.startswith(_MARKER))
        self._spelled = lru_cache(_RECENT)(self._spell)
        with suppress(ValueError):  # here, and not on the engine's thread at the first text
            self._markup.encode_plain("".join(self._markup.ids))

    def __call__(self, text: str) -> list[int]:
        """Ids of a text, all of them text tokens; their bytes are the text's."""
        return self._spelled(text).tolist()

    def _spell(self, text: str) -> array[int]:
        data = text.encode()
        with suppress(ValueError):
            ids = self._markup.encode_plain(text)
            if self.text_ids.issuperset(ids) and b"".join(self.tokens[index] for index in ids) == data:
                return array("i", ids)
        return array(
            "i", self._longest_tokens(data)
        )  # a normalizer changes the text, or every encoding contains markup

    def _longest_tokens(self, data: bytes) -> Iterator[int]:
        """Ids of the longest encodable beginning: the library continues with masks."""
        start, longest = 0, max(map(len, self._ids), default=0)
        while start < len(data):
            ends = range(min(len(data), start + longest), start, -1)
            if (end := next((end for end in ends if data[start:end] in self._ids), None)) is None:
                return
            yield self._ids[data[start:end]]
            start = end

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {self.tokens[index]: index for index in sorted(self.text_ids, reverse=True)}


def _goes_on(tokenizer: dict[str, Any]) -> bool:
    """Remove the blank that SentencePiece's tokenizers put before a text; returns whether there was one."""
    before = json.dumps([tokenizer["normalizer"], tokenizer["pre_tokenizer"]])
    tokenizer["normalizer"] = _without_prepend(tokenizer["normalizer"])
    for step in _steps(tokenizer["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
        elif step["type"] == "ByteLevel":
            step["add_prefix_space"] = False
    return before != json.dumps([tokenizer["normalizer"], tokenizer["pre_tokenizer"]])


def _without_prepend(normalizer: Any) -> Any:
    if normalizer is None or normalizer["type"] == "Prepend":
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    steps = [step for step in map(_without_prepend, normalizer["normalizers"]) if step is not None]
    return normalizer | {"normalizers": steps}


def _steps(step: Any, below: str) -> Iterator[dict[str, Any]]:
    """A component of tokenizer.json, or the components of a sequence."""
    if step is not None and step["type"] == "Sequence":
        for each in step[below]:
            yield from _steps(each, below)
    elif step is not None:
        yield step


def _bytes_of(decoder: Any) -> Callable[[str], bytes]:
    """A function from a token's name in the vocabulary to its bytes, as the tokenizers library decodes it."""
    steps = list(_steps(decoder, "decoders"))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" not in kinds:
        raise ValueError("its tokens are not bytes; expected a decoder of ByteLevel or ByteFallback")
    blank = next((step["pattern"].get("String", " ") for step in steps if step.get("content") == " "), " ")
    return lambda name: _byte_fallback(name, blank)


def _byte_fallback(name: str, blank: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        with suppress(ValueError):
            return bytes.fromhex(name[3:5])
    return name.replace(blank, " ").encode()


def _byte_level(name: str) -> bytes:
    try:
        return bytes(map(BYTE_LEVEL.__getitem__, name))
    except KeyError:
        return name.encode()  # an added token
