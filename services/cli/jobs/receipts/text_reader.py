"""A model's tokenizer, which reads texts for whoever verifies them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.documents.sent import Turn
from ledger.errors import ProofError
from services.cli.failures.exits import UsageError

if TYPE_CHECKING:
    from kolm.generation.v1 import generation_pb2 as pb
    from services.generation.engine.text.tokenizer import Tokenizer


class ModelTextReader:
    """Implements `ledger.bundle.text_check.TextReader`. Loads the tokenizer when it is asked for.

    Its methods raise UsageError where the model has no tokenizer that loads, ProofError for what it cannot read.
    """

    def __init__(self, model: Path) -> None:
        self._model = model

    @cached_property
    def tokenizer_cid(self) -> str:
        from services.generation.target.identity import tokenizer_cid

        with _model_errors():
            return tokenizer_cid(self._model)

    def prompt(self, sent: str | Sequence[Turn]) -> list[int]:
        if isinstance(sent, str):
            return self._tokenizer.encode(sent)
        from services.generation.requests.prompt import chat_turns, read_tools
        from services.runtime.errors import InvalidArgument

        try:
            messages = _messages(sent)
            tools = read_tools(messages)
            described = tools.described() if tools else []
            return self._tokenizer.encode_chat(chat_turns(messages.messages), described)
        except (ValueError, InvalidArgument) as error:
            raise ProofError(f"the conversation cannot be read: {error}") from error

    def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
        stream = self._tokenizer.stream(prompt_token_ids)
        return "".join(map(stream.feed, output_token_ids)) + stream.flush()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from services.generation.target.without_torch import spare_torch

        spare_torch()
        from services.generation.engine.text.tokenizer import Tokenizer

        with _model_errors():
            return Tokenizer(self._model)


@contextmanager
def _model_errors() -> Iterator[None]:
    from services.generation.target.errors import TargetError

    try:
        yield
    except TargetError as error:
        raise UsageError(f"--model: {error}") from error


def _messages(sent: Sequence[Turn]) -> pb.ChatMessages:
    """The messages that were sent. Raises ValueError for calls and tools that are not as a receipt has them."""
    from kolm.generation.v1 import generation_pb2 as pb

    messages = pb.ChatMessages()
    for turn in sent:
        if "tools" in turn:
            for name, description, parameters, strict in json.loads(turn["tools"]):
                messages.tools.add(name=name, description=description, parameters=parameters, strict=strict)
            continue
        message = messages.messages.add(role=turn["role"], content=turn["content"])
        message.tool_call_id = turn.get("tool_call_id", "")
        for call_id, name, arguments in json.loads(turn.get("tool_calls", "[]")):
            message.tool_calls.add(id=call_id, name=name, arguments=arguments)
    return messages
