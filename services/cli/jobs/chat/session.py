"""One turn of a conversation with a generation service."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from services.cli.failures.exits import Failed
from services.cli.jobs.chat.conversation import Conversation, Said
from services.cli.jobs.interruption import until_interrupted
from services.client import Chunk, Finished, Request, Runtime, SamplingParams, SpecDecodeConfig

_LONG_ANSWER = 512
"""Tokens of an answer where nothing else was asked for; the server's own default is meant for completions."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How answers are made; `request` carries everything but the prompt."""

    request: Request
    spec_decode: SpecDecodeConfig
    timeout: float

    @property
    def sampling(self) -> SamplingParams:
        return self.request.params

    def with_seed(self, seed: int | None) -> Wishes:
        return replace(self, request=replace(self.request, sampling=replace(self.sampling, seed=seed)))

    def with_method(self, method: str) -> Wishes:
        """Without the parameters of the former method: depth, head and the rest."""
        return replace(self, spec_decode=SpecDecodeConfig(method=method, verify=self.spec_decode.verify))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it came. `finished` is None if it was interrupted; `tokens` counts those of the answer.

    `seconds` are those that it took.
    """

    turn: Said
    tokens: int
    seconds: float
    finished: Finished | None


class Session:
    """A conversation, its wishes, and the service that answers."""

    def __init__(self, runtime: Runtime, conversation: Conversation, wishes: Wishes, context_length: int) -> None:
        self.conversation = conversation
        self.wishes = wishes
        self._runtime = runtime
        self._context_length = context_length
        self._name = uuid.uuid4().hex[:12]
        self._asked = 0

    def ask(self, question: str, write: Callable[[str], None]) -> Answer:
        """Send the conversation with `question`; writes the answer as it comes.

        Ctrl-C cancels the request: what was written stays in the conversation, if anything was. Raises KolmError,
        Failed; the conversation is then as it was.
        """
        self._asked += 1
        request = self._request(question, f"chat-{self._name}-{self._asked}")
        shown, tokens = "", 0
        started = time.monotonic()
        finished: Finished | None = None
        try:
            events = self._runtime.stream(request, spec_decode=self.wishes.spec_decode, timeout=self.wishes.timeout)
            for event in until_interrupted(events):
                if isinstance(event, Chunk):
                    shown, tokens = shown + event.text, tokens + len(event.token_ids)
                    write(event.text)
                elif isinstance(event, Finished):
                    finished = event
            _check_whole(finished)
        except KeyboardInterrupt:
            pass
        turn = self._said(question, shown, request.request_id, finished)
        if shown or finished is not None:
            self.conversation.add(turn)
        return Answer(turn, tokens, time.monotonic() - started, finished)

    def _request(self, question: str, request_id: str) -> Request:
        asked = self.wishes.request
        sampling = asked.params
        fits = self.conversation.prompt_bound(question) + _LONG_ANSWER <= self._context_length
        if sampling.max_tokens is None and fits:
            sampling = replace(sampling, max_tokens=_LONG_ANSWER)
        return replace(asked, messages=self.conversation.messages(question), sampling=sampling, request_id=request_id)

    def _said(self, question: str, shown: str, request_id: str, finished: Finished | None) -> Said:
        receipt = None if finished is None else finished.receipt
        return Said(
            question=question,
            answer=shown,
            request_id=request_id,
            remembered=self.conversation.remembered,
            interrupted=finished is None,
            receipt_id=None if receipt is None else receipt.receipt_id,
            tokens=None if finished is None else finished.usage.total_tokens,
        )


def _check_whole(finished: Finished | None) -> None:
    """Raises Failed for an answer that the server ended early."""
    if finished is None:
        raise Failed("the stream ended before the answer did")
    if finished.finish_reason not in ("stop", "length"):
        raise Failed(f"the server ended the answer early ({finished.finish_reason})", "ask again")
