"""A model's tokenizer, which reads a conversation for whoever verifies one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.errors import ProofError
from services.cli.exits import UsageError

if TYPE_CHECKING:
    from services.generation.engine.text.tokenizer import Tokenizer


class ConversationReader:
    """Implements `ledger.bundle.transcript.TranscriptReader`. Loads the tokenizer when it is asked for.

    Its methods raise UsageError where the model has no tokenizer that loads, ProofError for what it cannot read.
    """

    def __init__(self, model: Path) -> None:
        self._model = model

    @cached_property
    def tokenizer_cid(self) -> str:
        from services.generation.target.errors import TargetError
        from services.generation.target.identity import tokenizer_cid

        try:
            return tokenizer_cid(self._model)
        except TargetError as error:
            raise UsageError(f"--model: {error}") from error

    def prompt(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        try:
            return self._tokenizer.encode_chat([{"role": role, "content": content} for role, content in messages])
        except ValueError as error:
            raise ProofError(f"the conversation cannot be read: {error}") from error

    def text(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> str:
        stream = self._tokenizer.stream(prompt_token_ids)
        return "".join(map(stream.feed, output_token_ids)) + stream.flush()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from services.generation.engine.text.tokenizer import Tokenizer
        from services.generation.target.errors import TargetError

        try:
            return Tokenizer(self._model)
        except TargetError as error:
            raise UsageError(f"--model: {error}") from error
