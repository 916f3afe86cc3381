"""`/v1/completions`: its body, and its answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from services.client import Chunk, Finished, Request
from services.client.generation.completion import Choice, Resolved
from services.http.completions.answer import Answer
from services.http.members.fields import NAMES, CommonFields, only
from services.http.members.logprobs import text_length, text_logprobs


def _one_prompt(value: Any) -> Any:
    """A text or a list of token ids; either may be the only member of a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        (value,) = value
    is_ids = isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    if isinstance(value, str) or is_ids:
        return value
    raise ValueError("expected one text, or one list of token ids; send several prompts as several requests")


class TextFields(CommonFields):
    """The body."""

    prompt: Annotated[Any, BeforeValidator(_one_prompt)]
    logprobs: int | None = None
    echo: Annotated[Any, only(False)] = None
    best_of: Annotated[Any, only(1)] = None
    suffix: Annotated[Any, only("")] = None


class Text:
    """The dialect of completions."""

    prefix = "cmpl-"
    whole_object = "text_completion"
    piece_object = "text_completion"
    names: Mapping[str, str] = {**NAMES, "token_ids": "prompt"}

    def __init__(self, fields: TextFields) -> None:
        self.fields = fields
        self._written: defaultdict[int, int] = defaultdict(int)  # characters of each choice's tokens so far

    def request(self) -> Request:
        asked = self.fields
        given = {"prompt": asked.prompt} if isinstance(asked.prompt, str) else {"token_ids": asked.prompt}
        return asked.request(asked.sampling(asked.max_tokens, asked.logprobs), **given)

    def answer(self, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool = False) -> Answer:
        return Answer(self, asked, resolved, promise, files=files)

    def choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = None if self.fields.logprobs is None else text_logprobs(choice.logprobs, 0)
        return {"text": choice.text, "logprobs": logprobs}

    def opening(self) -> dict[str, Any] | None:
        return None

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        if self.fields.logprobs is None:
            return [{"text": chunk.text, "logprobs": None}]
        logprobs = text_logprobs(chunk.logprobs, self._written[chunk.index])
        self._written[chunk.index] += text_length(chunk.logprobs)
        return [{"text": chunk.text, "logprobs": logprobs}]

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        return [{"text": "", "logprobs": None, "finish_reason": finished.finish_reason}]
