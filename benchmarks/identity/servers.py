"""Servers that are asked: any with OpenAI's chat completions, or kolm's own."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.client import KolmError, Message, Request, Runtime, SamplingParams, SpecDecodeConfig


class ServerFailed(Exception):
    """A server gave no answer; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. Seed and temperature are sent as they are."""

    messages: tuple[tuple[str, str], ...]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The text, and the token ids where the server gives them; texts can be alike where tokens are not."""

    text: str
    token_ids: tuple[int, ...] | None = None


class Server(Protocol):
    name: str

    def answer(self, asked: Asked) -> Answer:
        """Raises ServerFailed."""
        ...


class OpenAIServer:
    """POST {base_url}/chat/completions, without streaming. `extra` are members added to every request's body."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str = "",
        extra: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.name = base_url
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._extra = dict(extra or {})
        self._timeout = timeout

    def answer(self, asked: Asked) -> Answer:
        body = {
            "model": self._model,
            "messages": [{"role": role, "content": content} for role, content in asked.messages],
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "seed": asked.seed,
        }
        request = urllib.request.Request(self._url, json.dumps(body | self._extra).encode(), self._headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return read_completion(response.read())
        except urllib.error.HTTPError as error:
            said = error.read(300).decode("utf-8", "replace")
            raise ServerFailed(f"{self._url}: HTTP {error.code}: {said}") from None
        except (OSError, ValueError) as error:
            raise ServerFailed(f"{self._url}: {error}") from None


def read_completion(data: bytes) -> Answer:
    """The first choice of a chat completion, with vLLM's `token_ids` if there. Raises ValueError for anything else."""
    try:
        choice = json.loads(data)["choices"][0]
        text, ids = choice["message"]["content"] or "", choice.get("token_ids")
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"is no chat completion: {error!r}") from None
    if not isinstance(text, str):
        raise ValueError("is no chat completion: its content is no text")
    return Answer(text, tuple(ids) if isinstance(ids, list) else None)


class KolmServer:
    """A generation service of kolm with one method."""

    def __init__(self, address: str, method: str) -> None:
        self.name = f"{address} with {method}"
        self._runtime = Runtime.connect(address)
        self._spec_decode = SpecDecodeConfig(method=method)

    def answer(self, asked: Asked) -> Answer:
        request = Request(
            messages=[Message(role, content) for role, content in asked.messages],
            sampling=SamplingParams(max_tokens=asked.max_tokens, temperature=asked.temperature, seed=asked.seed),
        )
        try:
            completion = self._runtime.serve(request, spec_decode=self._spec_decode)
        except KolmError as error:
            raise ServerFailed(f"{self.name}: {error}") from None
        return Answer(completion.text, completion.token_ids)


def messages_of(turns: Sequence[str], answers: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The prompt of the turn after `answers`."""
    said = [each for pair in zip(turns, answers, strict=False) for each in (("user", pair[0]), ("assistant", pair[1]))]
    return (*said, ("user", turns[len(answers)]))
