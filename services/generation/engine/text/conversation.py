"""Conversations as token ids: the chat template's markup as tokens, everything from callers as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from services.generation.engine.text.markup import Mark, Markup
from services.generation.engine.text.thoughts import TAGS
from services.generation.engine.text.tool_calls import THOUGHTS, Turn

_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools in the form of transformers, arguments and parameters as values.

    A message has role and content, perhaps tool_calls, tool_call_id and reasoning_content. `continued`: the model
    continues the last message, which is the assistant's, instead of a new message.
    """

    messages: Sequence[Turn]
    tools: Sequence[dict[str, Any]] = ()
    continued: bool = False


Render = Callable[[Conversation], str]
"""Renders a conversation as the text of a prompt. Raises ValueError if the chat template refuses it."""


class MarkupInText(ValueError):
    """A caller's text spells markup and cannot be encoded as text. `path` is within the conversation, as
    `messages[2].content`.
    """

    def __init__(self, path: str, spelled: str, why: str) -> None:
        super().__init__(f"spells {spelled!r}, which is markup of this model: {why}; leave it out")
        self.path = path


def encode_conversation(conversation: Conversation, render: Render, markup: Markup, template: str) -> list[int]:
    """Ids of a conversation in which no text of a caller becomes a markup token, except tags of an assistant's
    thoughts.

    If callers spell no markup, the ids are those of the whole rendered text. `template`: the chat template.

    A conversation is rendered twice, the second time with characters of callers replaced by characters that the prompt
    does not contain, which shows the markup of the template itself.

    Raises MarkupInText; ValueError as `render`, if the last message cannot be continued, and if the tokenizer cannot
    tell text from markup.
    """
    texts = texts_of(conversation)
    only_contents = len(texts) == len(conversation.messages) and not conversation.continued
    if only_contents and not any(markup.may_spell(text.content) for text in texts):
        return markup.encode(render(conversation), lambda _: False)
    used = set[str]().union(*(text.content for text in texts))
    characters = sorted(markup.characters | markup.alike(used, markup.characters))
    last, *others = _unused(used.union(template), 1 + len(characters))
    end = last if conversation.continued else ""
    masks = _Masks(markup, dict(zip(characters, others, strict=True)))
    for mask in (masks.whole, masks.wide, masks.narrow):
        text = _cut(render(_mapped(conversation, lambda text: text.content, end)), end)
        with suppress(ValueError):  # a template may refuse masked texts
            masked = _cut(render(_mapped(conversation, mask, end)), end)
            if (is_text := masks.shown(masked, text)) is not None:
                return markup.encode(text, is_text)
    for sent in texts:
        for mark in masks.spelled(sent):
            why = "the chat template changes the text so that it cannot be told from the template's own markup"
            raise MarkupInText(sent.path, mark.text, why)
    return markup.encode(text, lambda _: False)


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a caller. `thinks`: it is an assistant's content, from which templates split off thoughts."""

    content: str
    path: str = ""
    thinks: bool = False


Map = Callable[[Text], str]


class _Masks:
    """Replaces characters of markup in callers' texts, by the mapping `characters`."""

    def __init__(self, markup: Markup, characters: dict[str, str]) -> None:
        self._markup = markup
        self._of = characters
        self._all = str.maketrans(characters)
        self._ends = str.maketrans({end: characters[end] for end in markup.alike(characters, markup.ends)})
        back = {mask: character for character, mask in characters.items()}
        self._back = str.maketrans(back)
        self._forms: tuple[dict[str, str], ...] = (
            {},
            back,
            {mask: _escaped(character) for mask, character in back.items()},
        )
        """Ways to write masks back: as they are; if the template escapes masks; if it escapes all but ASCII."""
        self._characters = frozenset(characters.values())

    def whole(self, text: Text) -> str:
        """A text with every character of markup masked, except thoughts' tags."""
        return _translated(text, self._all)

    def wide(self, text: Text) -> str:
        """A text with first and last characters of markup masked, because the template may search for words in it."""
        return _translated(text, self._ends)

    def narrow(self, text: Text) -> str:
        """A text with the first character of each markup masked, because the template may search for anything else."""
        while marks := self.spelled(text):
            characters = list(text.content)
            for mark in marks:
                characters[mark.first] = self._of[characters[mark.first]]
            text = replace(text, content="".join(characters))
        return text.content

    def spelled(self, text: Text) -> list[Mark]:
        """The markup that a text spells, except thoughts' tags."""
        marks = self._markup.marks(text.content) if self._markup.may_spell(text.content) else []
        known = (mark for mark in marks if text.content[mark.first] in self._of)
        return [mark for mark in known if not (text.thinks and text.content[mark.first : mark.last + 1] in TAGS)]

    def shown(self, masked: str, text: str) -> Callable[[int], bool] | None:
        """Whether each character of the rendered `text` is masked in `masked`; None if they differ in anything else."""
        for form in self._forms:
            shown = masked
            for mask, written in form.items():
                shown = shown.replace(_escaped(mask), mask * len(written))
            restored = shown
            for mask, written in form.items():
                restored = restored.replace(mask * len(written), written)
            if restored.translate(self._back) == text:
                return lambda place: shown[place] in self._characters
        return None


def _escaped(character: str) -> str:
    """The character as JSON in ASCII writes it."""
    return json.dumps(character)[1:-1]


def _translated(text: Text, table: dict[int, str]) -> str:
    if not text.thinks:
        return text.content.translate(table)
    return "".join(piece if piece in TAGS else piece.translate(table) for piece in _TAG.split(text.content))


def texts_of(conversation: Conversation) -> list[Text]:
    """Every text from callers. Roles, and ids and types of calls, were checked before."""
    found: list[Text] = []

    def keep(text: Text) -> str:
        found.append(text)
        return text.content

    _mapped(conversation, keep)
    return found


def _mapped(conversation: Conversation, change: Map, end: str = "") -> Conversation:
    """The conversation with changed texts, and `end` after the last message's content."""
    messages = [_message(message, change, f"messages[{place}]") for place, message in enumerate(conversation.messages)]
    messages[-1] = messages[-1] | {"content": messages[-1]["content"] + end}
    tools = [
        tool | {"function": _values(tool["function"], change, f"tools[{place}]")}
        for place, tool in enumerate(conversation.tools)
    ]
    return replace(conversation, messages=messages, tools=tools)


def _message(message: Turn, change: Map, path: str) -> Turn:
    content = Text(message["content"], f"{path}.content", thinks=message["role"] == "assistant")
    calls = [
        call | {"function": _values(call["function"], change, f"{path}.tool_calls[{place}]")}
        for place, call in enumerate(message.get("tool_calls", ()))
    ]
    changed = {"content": change(content)} | ({"tool_calls": calls} if calls else {})
    if THOUGHTS in message:
        changed[THOUGHTS] = change(Text(message[THOUGHTS], f"{path}.{THOUGHTS}"))
    return message | changed


def _values(members: dict[str, Any], change: Map, path: str) -> dict[str, Any]:
    """The members of a function, each with the last name of its path."""
    return {name: _value(value, change, f"{path}.{name}") for name, value in members.items()}


def _value(value: Any, change: Map, path: str) -> Any:
    if isinstance(value, str):
        return change(Text(value, path))
    if isinstance(value, dict):
        return {change(Text(name, path)): _value(inner, change, path) for name, inner in value.items()}
    if isinstance(value, list):
        return [_value(inner, change, path) for inner in value]
    return value


def _unused(used: set[str], count: int) -> list[str]:
    """`count` private-use characters of Unicode that are not in `used`. Raises ValueError if there are fewer."""
    found = list(islice((character for character in map(chr, chain(*_PRIVATE)) if character not in used), count))
    if len(found) < count:
        raise ValueError("they use every private-use character of Unicode, and none is left to tell markup from text")
    return found


def _cut(rendered: str, end: str) -> str:
    """The text before `end`. Raises ValueError unless `end` occurs once."""
    before, *rest = rendered.split(end) if end else (rendered, "")
    if len(rest) != 1:
        raise ValueError("the chat template changes the last message, so that it cannot be continued")
    return before
