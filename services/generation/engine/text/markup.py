"""The markup of a tokenizer: added tokens that structure a prompt, and an encoder of text that never produces one."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer

_LONG = 4096  # characters that are encoded in some milliseconds
_BLANK = " \t\r\n\u2581"  # SentencePiece writes a space as U+2581
_MARK = re.compile(r"<[^\s<>]+>|<[|\uff5c].*[|\uff5c]>|\[[/|@]?[^\W\d][^\s\[\]]*\]", re.DOTALL)
"""The shapes of templates' marks: `<think>`, `<|im_end|>`, DeepSeek's `<｜User｜>`, Mistral's `[/INST]`."""
_HTML = re.compile(
    "</?(a|abbr|article|aside|b|big|blockquote|body|br|caption|center|cite|code|col|colgroup|dd|del|details|dfn|div|dl"
    "|dt|em|figcaption|figure|font|footer|h[1-6]|head|header|hr|html|i|img|input|ins|kbd|label|li|link|main|mark|meta"
    "|nav|ol|option|p|pre|q|s|samp|script|section|select|small|span|strike|strong|style|sub|sup|svg|table|tbody|td"
    "|textarea|tfoot|th|thead|title|tr|tt|u|ul|var|video)/?>"
)
"""Tags that are text, though Gemma's vocabulary has tokens for them."""


def encoded(tokenizer: FastTokenizer, text: str, *, add_special_tokens: bool) -> Encoding:
    """The library's encoding. Its `encode` holds the interpreter's lock, for a second a MB, `encode_batch` does not."""
    if len(text) < _LONG:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    (encoding,) = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
    return encoding


def is_markup(content: str, *, special: bool) -> bool:
    """Whether an added token is markup: it is flagged special, or has the shape of a mark and is not a tag of HTML.

    Other added tokens are text: runs of blanks and newlines, words.
    """
    text = content.strip(_BLANK)
    return special or (_MARK.fullmatch(text) is not None and _HTML.fullmatch(text) is None)


def embedded_tokens(tokenizer: FastTokenizer, rows: int) -> int:
    """One more than the largest id below `rows`, the number of the model's embeddings. Markup may have larger ids, such
    as Gemma 3's for images, which are no outputs. Raises ValueError for text that has.
    """
    added = tokenizer.get_added_tokens_decoder()
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    for index in sorted(index for index in ids if index >= rows):
        if index not in added or not is_markup(added[index].content, special=added[index].special):
            raise ValueError(f"its tokenizer has a token {index}, its weights have embeddings for {rows}")
    return max((index for index in ids if index < rows), default=-1) + 1


@dataclass(frozen=True, slots=True)
class Mark:
    """A markup token in a text, at characters `start` to `end`, the last one not included. Blanks around it that
    belong to the token are included; `first` and `last` are the mark's own characters.
    """

    token_id: int
    text: str
    start: int
    end: int
    first: int
    last: int


class Markup:
    """The markup of one tokenizer. Safe from any thread.

    Attributes:
        ids: ids of all markup tokens by their texts.
        hidden: texts of the tokens flagged special, which decoding omits.
        ends: the first and the last character of every markup text, as it is and normalized, blanks aside.
        characters: all characters of markup texts, as they are and normalized, without blanks.
    """

    def __init__(self, tokenizer: FastTokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        marks = {index: token for index, token in added.items() if is_markup(token.content, special=token.special)}
        self.ids: Mapping[str, int] = {token.content: index for index, token in marks.items()}
        self.hidden = frozenset(token.content for token in marks.values() if token.special)
        self._normalizer = tokenizer.normalizer
        contents = [token.content for token in marks.values()]
        texts = [text for each in (*contents, *map(self._normalized, contents)) if (text := each.strip(_BLANK))]
        self.ends = frozenset(text[place] for text in texts for place in (0, -1))
        self.characters = frozenset().union(*texts) - frozenset(_BLANK)
        self._tokenizer = tokenizer
        self._texts = {index: token.content for index, token in marks.items()}
        drawn = secrets.token_hex(16)  # here, not in a cached_property: two threads would draw different names
        self._names = {text: f"<{drawn}:{index:08x}>" for text, index in self.ids.items()}
        """Another text for each markup token, drawn at random so that no caller can spell it."""
        self._building = Lock()

    def may_spell(self, text: str) -> bool:
        """Whether a text has a first or last character of markup, as it is or normalized."""
        return not (self.ends.isdisjoint(text) and self.ends.isdisjoint(self._normalized(text)))

    def alike(self, characters: Iterable[str], those: Set[str]) -> set[str]:
        """The `characters` in whose normal form the tokenizer has one of `those`, such as a full-width <."""
        return {each for each in characters if not those.isdisjoint(self._normalized(each))}

    def _normalized(self, text: str) -> str:
        return text if self._normalizer is None else str(self._normalizer.normalize_str(text))

    def marks(self, text: str) -> list[Mark]:
        """The markup that the tokenizer finds in a text, in order."""
        return self._found(text, self._encoded(text))

    def encode(self, text: str, is_text: Callable[[int], bool]) -> list[int]:
        """Ids of a text. A mark is text if any of its characters `is_text`.

        Without such marks they are the tokenizer's own ids; otherwise the ids of a tokenizer in which these marks have
        other texts. No special tokens are put around them.

        Raises ValueError if the ids contain other markup tokens than the marks that are left.
        """
        encoding = self._encoded(text)
        found = self._found(text, encoding)
        kept = [mark for mark in found if not any(map(is_text, range(mark.first, mark.last + 1)))]
        return list(encoding.ids) if len(kept) == len(found) else self._encode(text, kept)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is markup. Raises ValueError as `encode` does.

        They decode to the text if the tokenizer's own ids do.
        """
        return self.encode(text, lambda _: True)

    def _encode(self, text: str, kept: Sequence[Mark]) -> list[int]:
        """Ids of a text in which only `kept` is markup."""
        pieces, place = [], 0
        for mark in kept:
            pieces += [text[place : mark.start], self._names[mark.text]]
            place = mark.end
        ids = list(encoded(self._renamed, "".join([*pieces, text[place:]]), add_special_tokens=False).ids)
        found = [index for index in ids if index in self._texts and index != self._unknown]
        if found != [mark.token_id for mark in kept if mark.token_id != self._unknown]:
            raise ValueError(
                "the tokenizer cannot tell this text from markup: its ids have markup tokens that the text has not"
            )
        return ids

    def _encoded(self, text: str) -> Encoding:
        return encoded(self._tokenizer, text, add_special_tokens=False)

    def _found(self, text: str, encoding: Encoding) -> list[Mark]:
        if self._texts.keys().isdisjoint(encoding.ids):
            return []
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        marks = (self._mark(text, index, *span) for index, span in spans if index in self._texts)
        return [mark for mark in marks if mark.token_id != self._unknown or _is_spelled(text, mark)]

    def _mark(self, text: str, token_id: int, start: int, end: int) -> Mark:
        inner = text[start:end]
        first, last = end - len(inner.lstrip(_BLANK)), start + len(inner.rstrip(_BLANK)) - 1
        return Mark(token_id, self._texts[token_id], start, end, min(first, end - 1), max(last, start))

    @cached_property
    def _unknown(self) -> int | None:
        """The token of characters outside the vocabulary."""
        name = getattr(self._tokenizer.model, "unk_token", None)
        return None if name is None else self._tokenizer.token_to_id(name)

    @property
    def _renamed(self) -> FastTokenizer:
        """The tokenizer in which markup tokens have other texts, made once. Raises ValueError if ids change."""
        with self._building:
            return self._made

    @cached_property
    def _made(self) -> FastTokenizer:
        document = json.loads(self._tokenizer.to_str())
        for token in document["added_tokens"]:
            token["content"] = self._names.get(token["content"], token["content"])
        document["post_processor"] = None  # it refers to special tokens by their texts
        _rename(document["model"], self._names)
        renamed = FastTokenizer.from_str(json.dumps(document))
        for text, index in self.ids.items():
            if renamed.token_to_id(self._names[text]) != index:
                raise ValueError(f"the tokenizer's token {text!r} cannot be told from text: its id depends on its text")
        return renamed


def _is_spelled(text: str, mark: Mark) -> bool:
    """Whether the text spells the unknown token, which otherwise represents characters outside the vocabulary."""
    return text[mark.first : mark.last + 1] == mark.text.strip(_BLANK)


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename tokens of a vocabulary, and remove the merges with them, so that no text produces them."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): index for token, index in vocabulary.items()}
    else:  # Unigram: tokens in the order of their ids, with scores
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [[left, right] for left, right in pairs if not names.keys() & {left, right, left + right}]
