"""`/v1/responses`: the request of its body, and its answer."""

from __future__ import annotations

from collections.abc import Mapping

from services.client import Request
from services.client.generation.completion import Resolved
from services.http.members.fields import NAMES
from services.http.responses.response_answer import ResponseAnswer
from services.http.responses.response_fields import ResponseFields


class Responses:
    """The dialect of responses."""

    def __init__(self, fields: ResponseFields) -> None:
        self.fields = fields

    @property
    def names(self) -> Mapping[str, str]:
        names = {**NAMES, "messages": "input", "sampling.logprobs": "top_logprobs"}
        names["sampling.max_tokens"] = "max_output_tokens"
        if self.fields.text is not None and self.fields.text.format is not None:
            names["sampling.structured_outputs.json"] = "text.format.schema"
        return names

    def request(self) -> Request:
        asked = self.fields
        sampling = asked.sampling(asked.max_output_tokens, asked.logprobs)
        return asked.request(sampling, messages=asked.turns(), tools=asked.callable())

    def answer(
        self, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool = False
    ) -> ResponseAnswer:
        return ResponseAnswer(self.fields, asked, resolved, promise, files=files or self.fields.wants_files)
