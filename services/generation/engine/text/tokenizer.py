"""Text to token ids and back, by the model's own tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

from services.generation.engine.request import ThoughtSyntax
from services.generation.engine.text.conversation import Conversation, encode_conversation
from services.generation.engine.text.gguf_tokenizer import gguf_tokenizer
from services.generation.engine.text.infill import InfillMarks, infill_marks
from services.generation.engine.text.markup import Markup, encoded
from services.generation.engine.text.thoughts import HARMONY, known_thoughts
from services.generation.engine.text.token_bytes import token_bytes
from services.generation.engine.text.tool_calls import (
    HARMONY_CALLS,
    PLAIN,
    PROBE_TOOL,
    ToolCallSyntax,
    Turn,
    laid_out,
    learned_syntax,
    plain_turns,
)
from services.generation.target.errors import ConfigInvalid, TargetError
from services.generation.target.files.gguf_file import is_gguf

_CONTEXT = 4
"""Tokens of the prompt before the first decoded token."""
_ROLES = ("bos_token", "eos_token")
"""Special tokens of chat templates for which tokenizer classes in transformers have defaults."""
_LONG = 4096  # tokens that are decoded in a millisecond
_LONG_OPEN = 16  # tokens without text, of which the last ones decide: a character has at most four
_TAIL = 8  # tokens at a prompt's end in which a thought may have begun
_TODAY = datetime(2024, 7, 26, tzinfo=UTC)
"""Today, for chat templates: a prompt has to be the same on each day. Llama's templates take it without a clock."""


class TextCodec(Protocol):
    """The tokenizer of a model for requests: `Tokenizer`, or another engine's. Safe from any thread; a `far` tokenizer
    is slow and may raise ValueError.
    """

    @property
    def is_remote(self) -> bool:
        """Whether a call leaves this process."""
        ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def chat_template_digest(self) -> str | None: ...

    @property
    def tool_calls(self) -> ToolCallSyntax: ...

    @property
    def markup(self) -> Mapping[str, int]:
        """Ids of the tokens that structure prompts and outputs, by text (`engine/text/markup.py`)."""
        ...

    @property
    def hidden(self) -> frozenset[str]:
        """Texts of the markup that decoding omits: tokens flagged special."""
        ...

    def thoughts(self, prompt: Sequence[int]) -> ThoughtSyntax | None: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_output(self, text: str) -> list[int]: ...

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is markup. Raises ValueError if the tokenizer cannot tell text from markup."""
        ...

    def may_spell_markup(self, texts: Iterable[str]) -> bool:
        """Whether texts contain a first or last character of markup, whose first encoding as text takes seconds."""
        ...

    def encode_chat(
        self, messages: Sequence[Turn], tools: Sequence[dict[str, Any]] = (), *, continued: bool = False
    ) -> list[int]: ...

    @property
    def infill(self) -> InfillMarks | None:
        """The marks for filling in the middle; None for a model without them."""
        ...

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        """Ids of a prompt whose middle the model writes, for a model with marks. Both are text, whatever they spell."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def decode_all(self, token_ids: Sequence[int]) -> str: ...

    def bytes_of(self, token_id: int) -> bytes | None:
        """The bytes that a token adds to a text, empty if decoding omits it; None if they are not known."""
        ...

    def stream(self, prompt: Sequence[int] = ()) -> StreamDecoder | None:
        """A decoder of one sequence; None if the text of a token depends on its neighbours."""
        ...


class Tokenizer:
    """The model's tokenizer. Encoding and decoding are safe from any thread."""

    def __init__(self, path: Path) -> None:
        """Load the tokenizer of a directory or a GGUF file. Raises TargetError if it has no fast tokenizer."""
        try:
            self._tokenizer = gguf_tokenizer(path) if is_gguf(path) else _folder_tokenizer(path)
            self._fast: FastTokenizer = self._tokenizer.backend_tokenizer
            self._fast.no_truncation()  # tokenizer.json may contain settings of its training
            self._fast.no_padding()
            self._markup = Markup(self._fast)
        except TargetError:
            raise
        except Exception as error:  # errors of many kinds, each about these files
            raise ConfigInvalid(f"{path}: the tokenizer does not load: {error}") from error

    is_remote = False

    @property
    def fast(self) -> FastTokenizer:
        """The tokenizers library's own object, which encodes many texts at a time on all cores."""
        return self._fast

    @property
    def has_chat_template(self) -> bool:
        return self._tokenizer.chat_template is not None

    @property
    def chat_template_digest(self) -> str | None:
        """`sha256:<hex>` of the chat template's UTF-8; None without one."""
        if not self.has_chat_template:
            return None
        return "sha256:" + hashlib.sha256(self._tokenizer.get_chat_template().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt, with the special tokens that the tokenizer itself adds (a Llama's BOS)."""
        return list(encoded(self._fast, text, add_special_tokens=True).ids)

    def encode_output(self, text: str) -> list[int]:
        """Ids of a text as an output, without special tokens around it."""
        return list(encoded(self._fast, text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is markup. Raises ValueError if the tokenizer cannot tell text from markup."""
        return self._markup.encode_plain(text)

    def may_spell_markup(self, texts: Iterable[str]) -> bool:
        """Whether texts contain a first or last character of markup, whose first encoding as text takes seconds."""
        return any(map(self._markup.may_spell, texts))

    def encode_chat(
        self, messages: Sequence[Turn], tools: Sequence[dict[str, Any]] = (), *, continued: bool = False
    ) -> list[int]:
        """Ids of a conversation by the model's chat template, ready for the assistant's next turn, or for the rest of
        the last turn if it is `continued`. Markup in texts is text (`engine/text/conversation.py`).

        A message has role and content, perhaps tool_calls, tool_call_id and reasoning_content; messages and `tools`
        have the form of transformers, arguments and parameters as values.

        Raises:
            ValueError: the model has no chat template, the template refuses these messages, or the last one cannot be
                continued.
            MarkupInText: a text spells markup that cannot be told from the template's own.
        """
        template = self._tokenizer.get_chat_template() if self.has_chat_template else ""
        conversation = Conversation(messages, tools, continued)
        try:
            return encode_conversation(conversation, self._rendered, self._markup, template)
        except RecursionError:
            raise ValueError("their arguments or parameters are nested too deep") from None

    def _rendered(self, conversation: Conversation) -> str:
        tools = list(conversation.tools)
        calling = tools or any(turn["role"] == "tool" or "tool_calls" in turn for turn in conversation.messages)
        is_plain = calling and self._native_calls is None

        def lay_out(turns: list[Turn]) -> str:
            turns, shown = (plain_turns(turns, tools), []) if is_plain else (turns, tools)
            try:
                return self._laid_out(turns, not conversation.continued, shown)
            except Exception as error:  # a template is code and may raise any error
                raise ValueError(f"the chat template refuses them: {error}") from error

        return laid_out(conversation.messages, lay_out)

    @cached_property
    def infill(self) -> InfillMarks | None:
        """The marks for filling in the middle; None for a model without them."""
        return infill_marks(self.markup)

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        """Ids of a prompt whose middle the model writes, with the special tokens at its beginning. Both texts are
        encoded without markup. Raises ValueError for a model without marks.
        """
        if (marks := self.infill) is None:
            raise ValueError("this model's tokenizer has no marks for filling in the middle")
        before, after = [marks.prefix, *self.encode_plain(prefix)], [marks.suffix, *self._encode_after(suffix)]
        parts = (after, before) if marks.suffix_first else (before, after)
        return [*self._begins, *parts[0], *parts[1], *([] if marks.middle is None else [marks.middle])]

    @cached_property
    def _begins(self) -> list[int]:
        """The special tokens that the tokenizer puts before a text."""
        whole, text = self.encode("a"), self.encode_output("a")
        begins = (at for at in range(len(whole)) if whole[at : at + len(text)] == text)
        return whole[: next(begins, 0)]

    def _encode_after(self, text: str) -> list[int]:
        """Ids of a text after another text, without the blank that SentencePiece's tokenizers put before a text."""
        if (self._fast.id_to_token(self.encode_plain("a")[0]) or "").startswith("\u2581"):
            newline, both = self.encode_plain("\n"), self.encode_plain("\n" + text)
            if both[: len(newline)] == newline:
                return both[len(newline) :]
        return self.encode_plain(text)

    @property
    def tool_calls(self) -> ToolCallSyntax:
        """The syntax of this model's tool calls, special tokens included."""
        return self._native_calls or PLAIN

    def thoughts(self, prompt: Sequence[int]) -> ThoughtSyntax | None:
        """The syntax of this model's thoughts before its answer to this prompt; None if it shows none."""
        if (syntax := self._thoughts) is None:
            return None
        return replace(syntax, begun=self.decode_all(prompt[-_TAIL:]).rstrip().endswith(syntax.open))

    def is_syntax(self, stated: ThoughtSyntax, prompt: Sequence[int]) -> bool:
        """Whether an answer to this prompt may have thoughts of the `stated` syntax. A message that it continues may
        have begun them.
        """
        if (own := self.thoughts(prompt)) is None:
            return False
        begun = own.begun or (not own.bare and own.is_open(self.decode_all(prompt)))
        return (stated.open, stated.closes) == (own.open, own.closes) and stated.begun in (own.begun, begun)

    @cached_property
    def _thoughts(self) -> ThoughtSyntax | None:
        return known_thoughts(self._tokenizer.get_chat_template(), self.hidden) if self.has_chat_template else None

    @property
    def markup(self) -> Mapping[str, int]:
        """Ids of the tokens that structure prompts and outputs, by text."""
        return self._markup.ids

    @property
    def hidden(self) -> frozenset[str]:
        """Texts of the markup that decoding omits."""
        return self._markup.hidden

    @cached_property
    def _native_calls(self) -> ToolCallSyntax | None:
        """The syntax of calls; None if the chat template has no tools, or does not write calls as JSON."""
        hello = [{"role": "user", "content": "Hello."}]
        try:
            if self._laid_out(hello, True, [PROBE_TOOL]) == self._laid_out(hello, True, []):
                return None
        except Exception:  # a template may raise any error
            return None
        if self._thoughts is HARMONY:
            return HARMONY_CALLS
        return learned_syntax(lambda turns, prompt: self._laid_out(turns, prompt, [PROBE_TOOL]))

    def _laid_out(self, turns: list[dict[str, Any]], prompt: bool, tools: list[Any]) -> str:
        _make_reproducible(self._tokenizer.get_chat_template(tools=tools or None))
        return str(
            self._tokenizer.apply_chat_template(
                turns, tools=tools or None, tokenize=False, add_generation_prompt=prompt
            )
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._decoded(token_ids, skip_special_tokens=True)

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """The text of all tokens, special tokens included."""
        return self._decoded(token_ids, skip_special_tokens=False)

    def _decoded(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text. The library's `decode` holds the interpreter's lock, that of batches does not."""
        if len(token_ids) < _LONG:
            return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))
        (text,) = self._fast.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)
        return str(text)

    def bytes_of(self, token_id: int) -> bytes | None:
        """The bytes that a token adds to a text, empty if decoding omits it; None if they are not known."""
        return token_bytes(self._fast.id_to_token(token_id) or "", self.decode([token_id]))

    def stream(self, prompt: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for one new sequence after `prompt`."""
        return StreamDecoder(self._fast, prompt)


def _make_reproducible(template: str) -> None:
    """Take the clock and random choices from a chat template, in the environment that transformers keeps for it."""
    environment = _compile_jinja_template(template).environment
    environment.globals["strftime_now"] = _strftime_now
    environment.globals.pop("lipsum", None)
    environment.filters.pop("random", None)


def _strftime_now(form: str) -> str:
    """`_TODAY` as `strftime` writes it; the C library takes %s, the seconds since 1970, for local time."""
    seconds = str(int(_TODAY.timestamp()))
    directive = r"%[-_0^#+]*\d*[EO]*([%s])"
    return _TODAY.strftime(re.sub(directive, lambda found: seconds if found[1] == "s" else found[0], form))


def _folder_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a directory: tokenizer.json as it is, if there is one.

    AutoTokenizer replaces the normalizer and the split of several families with its own, whatever the file has.
    """
    if not (path / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    place = path / "tokenizer_config.json"
    given = json.loads(place.read_bytes()) if place.exists() else {}
    missing = [role for role in _ROLES if role not in given and getattr(tokenizer, role) is None]
    if missing:
        with suppress(Exception):  # the configured class cannot load this vocabulary
            usual = AutoTokenizer.from_pretrained(path, local_files_only=True)
            for role in missing:
                token = getattr(usual, role)
                if token is not None and tokenizer.backend_tokenizer.token_to_id(str(token)) is not None:
                    tokenizer.add_special_tokens({role: token})
    return tokenizer


class StreamDecoder:
    """`TokenDecoder` over the tokenizers library's incremental decoder.

    Some decoders strip a text's first space (Llama 2, Mistral 7B), so the end of the prompt is decoded before the first
    token. Accepts any sequence of ids. If a tokenizer falls back to bytes, bytes that are not UTF-8 change the text of
    the bytes before them, and the library's decoder raises; then the open bytes become U+FFFD, and decoding starts
    again.
    """

    def __init__(self, tokenizer: FastTokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._before = self._whole(list(prompt[-_CONTEXT:]))
        self._stream = self._new_stream()
        self._open: list[int] = []  # tokens since the last text
        self._unread: list[int] = []  # those of them that the stream has not read yet
        self._textless: set[int] = set()  # seen tokens that decoding omits

    def feed(self, token: int) -> str:
        if token in self._textless:
            return ""
        try:
            return self._step(token)
        except Exception:  # the library has no type for "Invalid prefix encountered"
            ended = self.flush()
            self._open.clear()
            self._unread.clear()
            self._stream = self._new_stream()
            return ended + self._step(token)

    def _step(self, token: int) -> str:
        self._unread.append(token)
        text = None
        if not self._stays_open(token):
            text = self._stream.step(self._tokenizer, self._unread)
            self._unread.clear()
        if text is None:
            (self._textless.add if self._is_textless(token) else self._open.append)(token)
            return ""
        self._before = [*self._open, token]
        self._open.clear()
        return text

    def _stays_open(self, token: int) -> bool:
        """Whether the end of a long open text shows that the stream, which decodes all of it, would give no text."""
        if len(self._open) < _LONG_OPEN:
            return False
        return self._decoded([*self._open[1 - _LONG_OPEN :], token]).endswith("\N{REPLACEMENT CHARACTER}")

    def _is_textless(self, token: int) -> bool:
        """Whether decoding omits the token wherever it is: it is special, or unknown to the tokenizer."""
        if self._tokenizer.id_to_token(token) is None:
            return True
        return not self._decoded([token]) and bool(self._tokenizer.decode([token], skip_special_tokens=False))

    def _decoded(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def flush(self) -> str:
        return self._decoded(self._open) if self._open else ""

    def _new_stream(self) -> DecodeStream:
        return DecodeStream(ids=self._before, skip_special_tokens=True)

    def _whole(self, ids: list[int]) -> list[int]:
        """`ids`, or none of them if they end within a character: its last bytes are then decoded alone."""
        return [] if self._decoded(ids).endswith("\N{REPLACEMENT CHARACTER}") else ids
