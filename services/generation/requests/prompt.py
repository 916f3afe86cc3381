"""The prompt of a request, in any of its forms, as token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kolm.generation.v1 import generation_pb2 as pb
from ledger.encoding.canonical import canonical
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.text.tool_calls import ToolCallSyntax
from services.generation.requests.refusal import CONTEXT_LENGTH_EXCEEDED
from services.generation.requests.tools import Tools, chat_turns, read_tools, sent_turns
from services.runtime.errors import InvalidArgument

_LONGEST_TOKEN_BYTES = 256  # of any tokenizer in use; a text of more bytes a token cannot fit
_MOST_IDS = 1 << 20  # of a call that asks for their text
_INLINE_BYTES = 4096  # shorter texts are tokenized on the event loop, in well under a millisecond


@dataclass(frozen=True, slots=True)
class Prompt:
    """`field` is the request's field that held it, for errors. `text` is what was sent, of a conversation the canonical
    JSON of `ledger.documents.sent`; None for token ids. `tools` are those that the model is told of.
    """

    field: str
    token_ids: tuple[int, ...]
    text: str | None = None
    tools: Tools | None = None


class PromptReader:
    """Reads prompts for a model of `context_length` tokens; texts of more than `max_bytes` are refused unread."""

    def __init__(self, tokenizer: Tokenizer, context_length: int, max_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._max_bytes = max_bytes

    async def read(self, request: pb.GenerateRequest) -> Prompt:
        """Raises InvalidArgument naming prompt, messages or token_ids."""
        kind = request.WhichOneof("input")
        if kind == "token_ids":
            self._check_fits("token_ids", request.token_ids.ids)  # before they are copied
            return Prompt("token_ids", tuple(request.token_ids.ids))
        if kind == "messages":
            prompt = await self._chat(request.messages)
            self._check_fits("messages", prompt.token_ids)
            return prompt
        if kind == "prompt" and request.prompt:
            ids = await self._encoded("prompt", [request.prompt], lambda: self._tokenizer.encode(request.prompt))
            self._check_fits("prompt", ids)
            return Prompt("prompt", ids, request.prompt)
        raise InvalidArgument("prompt", "is empty; expected text, messages or token_ids")

    async def tokens(self, request: pb.TokenizeRequest) -> tuple[int, ...]:
        """However many. Raises InvalidArgument naming prompt or messages."""
        kind = request.WhichOneof("input")
        if kind == "messages":
            return (await self._chat(request.messages)).token_ids
        if kind is None:
            raise InvalidArgument("prompt", "is missing; expected text or messages")
        plain = request.HasField("add_special_tokens") and not request.add_special_tokens
        encode = self._tokenizer.encode_output if plain else self._tokenizer.encode
        return await self._encoded("prompt", [request.prompt], lambda: encode(request.prompt))

    async def text(self, token_ids: Sequence[int], vocab_size: int) -> str:
        """Special tokens included. Raises InvalidArgument for ids that are none, or too many."""
        if len(token_ids) > _MOST_IDS:
            raise InvalidArgument("token_ids", f"has {len(token_ids)} entries, at most {_MOST_IDS} are taken")
        if (largest := max(token_ids, default=0)) >= vocab_size:
            raise InvalidArgument("token_ids", f"holds {largest}; expected whole numbers from 0 to {vocab_size - 1}")
        return await asyncio.to_thread(self._tokenizer.decode_all, token_ids)

    async def prediction(self, text: str) -> tuple[int, ...]:
        """The output that a caller expects. Raises InvalidArgument naming it where no output could be as long."""
        ids = await self._encoded("prediction", [text], lambda: self._tokenizer.encode_output(text)) if text else ()
        if len(ids) > self._context_length:
            raise InvalidArgument(
                "prediction", f"has {len(ids)} tokens, expected at most the {self._context_length} of a context"
            )
        return ids

    @property
    def tool_calls(self) -> ToolCallSyntax:
        """How this model calls tools."""
        return self._tokenizer.tool_calls

    @property
    def special(self) -> Mapping[str, int]:
        """Ids of special tokens by their texts."""
        return self._tokenizer.special_texts

    async def _chat(self, chat: pb.ChatMessages) -> Prompt:
        messages = chat.messages
        if not messages:
            raise InvalidArgument("messages", "is empty; expected at least one message")
        if not self._tokenizer.has_chat_template:
            raise InvalidArgument("messages", "this model has no chat template; send prompt or token_ids")
        if len(messages) > self._context_length:
            raise self._too_long("messages", f"{len(messages)} messages")
        tools, sent = read_tools(chat), sent_turns(chat)
        turns, described = chat_turns(messages), tools.described() if tools else []
        texts = [text for turn in sent for text in turn.values()]
        try:
            ids = await self._encoded("messages", texts, lambda: self._tokenizer.encode_chat(turns, described))
        except ValueError as error:
            raise InvalidArgument("messages", str(error)) from error
        return Prompt("messages", ids, canonical(sent).decode(), tools)

    async def _encoded(self, field: str, texts: list[str], encode: Callable[[], list[int]]) -> tuple[int, ...]:
        size = sum(len(text.encode()) for text in texts)
        if size > self._max_bytes:
            raise InvalidArgument(field, f"measures {size} bytes, at most {self._max_bytes} are taken")
        if size > _LONGEST_TOKEN_BYTES * self._context_length:
            raise self._too_long(field, f"{size} bytes")
        return tuple(encode() if size <= _INLINE_BYTES else await asyncio.to_thread(encode))

    def _check_fits(self, field: str, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise InvalidArgument(field, "has no tokens; expected at least one")
        if len(token_ids) >= self._context_length:
            raise self._too_long(field, f"{len(token_ids)} tokens")

    def _too_long(self, field: str, size: str) -> InvalidArgument:
        longest = f"this model's maximum context length is {self._context_length} tokens"
        description = f"{size} leave no room for output: {longest}"
        return InvalidArgument(field, description, reason=CONTEXT_LENGTH_EXCEEDED)
