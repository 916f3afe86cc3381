"""The markup of a tokenizer: added tokens that structure a prompt, and an encoder of text that never gives one."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

_BLANK = " \t\r\n\u2581"  # SentencePiece writes a space as U+2581
_MARK = re.compile(r"<[^\s<>]+>|<[|\uff5c].*[|\uff5c]>|\[[/|@]?[^\W\d][^\s\[\]]*\]", re.DOTALL)
"""The shapes of templates' marks: `<think>`, `<|im_end|>`, DeepSeek's `<｜User｜>`, Mistral's `[/INST]`."""
_HTML = re.compile(
    "</?(a|abbr|article|aside|b|big|blockquote|body|br|caption|center|cite|code|col|colgroup|dd|del|details|dfn|div|dl"
    "|dt|em|figcaption|figure|font|footer|h[1-6]|head|header|hr|html|i|img|input|ins|kbd|label|li|link|main|mark|meta"
    "|nav|ol|option|p|pre|q|s|samp|script|section|select|small|span|strike|strong|style|sub|sup|svg|table|tbody|td"
    "|textarea|tfoot|th|thead|title|tr|tt|u|ul|var|video)/?>"
)
"""Tags that models write as text; Gemma's vocabulary has tokens for them."""


def is_markup(content: str, *, special: bool) -> bool:
    """Whether an added token is markup: it is flagged special, or has the shape of a mark and is no tag of HTML.

    Other added tokens are text: runs of blanks and newlines, words.
    """
    text = content.strip(_BLANK)
    return special or (_MARK.fullmatch(text) is not None and _HTML.fullmatch(text) is None)


class Markup:
    """The markup of one tokenizer. Safe from any thread.

    Attributes:
        ids: ids of all markup tokens by their texts.
        hidden: texts of the tokens flagged special, which decoding leaves out.
    """

    def __init__(self, tokenizer: FastTokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        marks = {index: token for index, token in added.items() if is_markup(token.content, special=token.special)}
        self.ids: Mapping[str, int] = {token.content: index for index, token in marks.items()}
        self.hidden = frozenset(token.content for token in marks.values() if token.special)
        self._tokenizer = tokenizer
        self._marks = frozenset(marks)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is markup: those that the tokenizer gives where its markup has other texts.

        Decoded, they are the text wherever the tokenizer's own ids are. No special tokens are put around them.

        Raises ValueError where a markup token comes out all the same.
        """
        ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        if self._marks.isdisjoint(ids):
            return ids
        ids = list(self._renamed.encode(text, add_special_tokens=False).ids)
        if wrong := self._marks.intersection(ids) - {self._unknown}:
            raise ValueError(f"the tokenizer makes the markup token {min(wrong)} of text that is none")
        return ids

    @cached_property
    def _unknown(self) -> int | None:
        """The token that stands for characters which the vocabulary lacks."""
        name = getattr(self._renamed.model, "unk_token", None)
        return None if name is None else self._renamed.token_to_id(name)

    @cached_property
    def _names(self) -> dict[str, str]:
        """Another text for each markup token, drawn at random so that no caller can spell it."""
        drawn = secrets.token_hex(16)
        return {text: f"<{drawn}:{index:08x}>" for text, index in self.ids.items()}

    @cached_property
    def _renamed(self) -> FastTokenizer:
        """The tokenizer in which markup tokens have other texts. Raises ValueError where ids change with them."""
        document = json.loads(self._tokenizer.to_str())
        for token in document["added_tokens"]:
            token["content"] = self._names.get(token["content"], token["content"])
        document["post_processor"] = None  # it asks for special tokens by their texts
        _rename(document["model"], self._names)
        renamed = FastTokenizer.from_str(json.dumps(document))
        for text, index in self.ids.items():
            if renamed.token_to_id(self._names[text]) != index:
                raise ValueError(f"the tokenizer's token {text!r} cannot be told from text: its id depends on its text")
        return renamed


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename tokens of a vocabulary. Without merges that make one of them, or are made of one, no text gives them."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): index for token, index in vocabulary.items()}
    else:  # of Unigram: tokens in the order of their ids, with scores
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [[left, right] for left, right in pairs if not names.keys() & {left, right, left + right}]
