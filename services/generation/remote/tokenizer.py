"""The tokenizer and chat template of an engine, over HTTP, if its weights are not on this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import httpx2
import msgspec

from services.generation.engine.request import EngineStopped
from services.generation.engine.text.conversation import Conversation, MarkupInText, Text, texts_of
from services.generation.engine.text.infill import InfillMarks
from services.generation.engine.text.tokenizer import StreamDecoder
from services.generation.engine.text.tool_calls import PLAIN, ToolCallSyntax, Turn, laid_out, plain_turns
from services.generation.remote.answer import UpstreamError, ids_in

_SECONDS = 30.0
_LONGEST = 64 << 20  # bytes of an answer
_KEPT_TOKENS = 65_536  # whose texts are cached
_MARK = re.compile(
    r"<[|\uff5c][^<>\n]{1,80}>|<[^<>\s]{1,80}[|\uff5c]>|</?\w{1,40}[_:]\w{1,40}>|</?(?:think|s|unk|pad|bos|eos)>|\[/?[A-Z_]{1,40}\]"
)
"""Shapes of marks that are not ordinary tokens of any vocabulary, unlike `<T>`."""
_MOST_ASKED = 1000  # texts of a conversation, each with a call of the engine


class RemoteTokenizer:
    """A `TextCodec` over HTTP. Tools are described in text, as for templates without tools.

    Calls raise ValueError if the engine refuses the text or the ids, EngineStopped if it does not answer as it should.
    """

    is_remote = True
    has_chat_template = True  # without one the engine refuses the messages
    chat_template_digest: str | None = None
    tool_calls: ToolCallSyntax = PLAIN
    markup: Mapping[str, int] = MappingProxyType({})  # its vocabulary is not known
    hidden: frozenset[str] = frozenset()
    infill: InfillMarks | None = None

    def __init__(self, engine: str, url: str, model: str, key: str | None) -> None:
        self._llama, self._model = engine == "llama-server", {} if engine == "llama-server" else {"model": model}
        shown = {"Accept-Encoding": "identity"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        self._client = httpx2.Client(base_url=url, headers=shown, timeout=_SECONDS, trust_env=False)
        self._text_of = lru_cache(_KEPT_TOKENS)(self._asked_text)
        self._is_token = lru_cache(_KEPT_TOKENS)(self._asked_token)

    def thoughts(self, prompt: Sequence[int]) -> None:
        """None: its chat template is not known, and thoughts are text."""

    def encode(self, text: str) -> list[int]:
        return self._tokens(text, special=True)

    def encode_output(self, text: str) -> list[int]:
        return self._tokens(text, special=False)

    def encode_plain(self, text: str) -> list[int]:
        if self._llama:
            return self._ids("/tokenize", {"content": text, "add_special": False, "parse_special": False})
        raise ValueError("this engine's tokenizer has no option to encode markup as text")

    def may_spell_markup(self, texts: Iterable[str]) -> bool:
        return True

    def encode_chat(
        self, messages: Sequence[Turn], tools: Sequence[dict[str, Any]] = (), *, continued: bool = False
    ) -> list[int]:
        """Ids of a conversation rendered by the engine. Raises MarkupInText for a text that contains a mark."""
        self._refuse_markup(texts_of(Conversation(messages, tools)))
        calling = tools or any(turn["role"] == "tool" or "tool_calls" in turn for turn in messages)
        if self._llama and messages[-1]["role"] == "assistant" and not continued:
            raise ValueError("llama-server continues a last message of the assistant: set continue_final_message")
        how = {"add_generation_prompt": not continued} | ({"continue_final_message": True} if continued else {})

        def lay_out(turns: list[Turn]) -> list[int]:
            turns = plain_turns(turns, tools) if calling else turns
            if self._llama:
                return self.encode(str(self._asked("/apply-template", {"messages": turns}, "prompt")))
            return self._ids("/tokenize", {**self._model, "messages": turns, **how})

        return laid_out(messages, lay_out)

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        raise ValueError("the marks of another engine's model are not known here")

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._text_of(tuple(token_ids)) if len(token_ids) == 1 else self._asked_text(tuple(token_ids))

    def decode_all(self, token_ids: Sequence[int]) -> str:
        return self.decode(token_ids)

    def bytes_of(self, token_id: int) -> bytes | None:
        text = self.decode([token_id])
        return None if "\N{REPLACEMENT CHARACTER}" in text else text.encode()

    def stream(self, prompt: Sequence[int] = ()) -> StreamDecoder | None:
        return None

    def close(self) -> None:
        self._client.close()

    def _tokens(self, text: str, *, special: bool) -> list[int]:
        if self._llama:
            return self._ids("/tokenize", {"content": text, "add_special": special, "parse_special": True})
        return self._ids("/tokenize", {**self._model, "prompt": text, "add_special_tokens": special})

    def _refuse_markup(self, texts: Sequence[Text]) -> None:
        looking = {found: text.path for text in reversed(texts) for found in _MARK.findall(text.content)}
        if len(looking) > _MOST_ASKED:
            raise ValueError(f"they contain {len(looking)} texts like markup, at most {_MOST_ASKED} are taken")
        until = time.monotonic() + _SECONDS
        for found, path in looking.items():
            if time.monotonic() > until:
                raise _stopped(f"takes longer than {_SECONDS:g} s for {len(looking)} texts like markup")
            if self._is_token(found):
                raise MarkupInText(path, found, "the engine that renders it cannot encode it as text")

    def _asked_token(self, text: str) -> bool:
        """Whether a text is one token, markup included."""
        return len(self._tokens(text, special=False)) == 1

    def _ids(self, path: str, body: Mapping[str, Any]) -> list[int]:
        found = self._asked(path, body, "tokens")
        try:
            return ids_in(found)
        except UpstreamError as error:
            raise _stopped(str(error)) from error

    def _asked_text(self, token_ids: tuple[int, ...]) -> str:
        if not token_ids:
            return ""
        body = {**self._model, "tokens": token_ids, "skip_special_tokens": True}
        return str(self._asked("/detokenize", body, "content", "prompt", "text"))

    def _asked(self, path: str, body: Mapping[str, Any], *names: str) -> Any:
        """The first existing member of the answer among `names`."""
        data = bytearray()
        try:
            with self._client.stream("POST", path, json=body) as response:
                for piece in response.iter_raw():
                    data += piece
                    if len(data) > _LONGEST:
                        raise ValueError(f"more than {_LONGEST} bytes")
            document = msgspec.json.decode(data)
        except (httpx2.TransportError, ValueError, RecursionError) as error:
            raise _stopped(f"does not answer: {error!r}") from error
        if not isinstance(document, dict):
            raise _stopped("does not answer with an object")
        if response.status_code in (400, 404, 413, 422):
            raise ValueError(f"the engine answers: {str(document.get('error', document))[:300]}")
        if response.status_code != 200:
            raise _stopped(f"answers {response.status_code}: {str(document.get('error', document))[:300]}")
        found = [document[name] for name in names if name in document]
        if not found:
            raise _stopped(f"answers {path} without {' or '.join(names)}")
        return found[0]


def _stopped(problem: str) -> EngineStopped:
    return EngineStopped("prompt", f"the engine's tokenizer {problem}")
