"""One upstream over HTTP: its description, answers event by event, errors by status."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from services.generation.engine.request import ContextExceeded, EngineFull, EngineStopped, InvalidRequest
from services.generation.remote.answer import UpstreamError
from services.generation.remote.connections import ConnectionBroken, Connections, HttpAnswer
from services.generation.remote.dialects import About, Dialect

_SIGN = re.compile(r"[^0-9a-zA-Z.+_-]")
_LONGEST_VERSION = 63
_CONNECT_SECONDS = 5.0
_ABOUT_SECONDS = 10.0
_REFUSAL_SECONDS = 5.0  # after the head: a refusal comes in less than one, a first token may take minutes
_FIELDS = {
    "max_new_tokens": "max_tokens", "n_predict": "max_tokens", "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty", "n_probs": "logprobs", "top_logprobs_num": "logprobs",
    "sampling_seed": "seed", "json_schema": "structured_outputs", "ebnf": "structured_outputs",
    "grammar": "structured_outputs", "regex": "structured_outputs", "lora_path": "adapter", "input_ids": "prompt",
}  # fmt: skip
"""Request fields by their names in engines."""
_KNOWN = (
    "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "stop_token_ids", "stop",
    "ignore_eos", "logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "structured_outputs", "prompt",
)  # fmt: skip
_NAMES = {each: each for each in _KNOWN} | _FIELDS
_NAMED = re.compile(rf"(?<![a-z])({'|'.join(sorted(_NAMES, key=len, reverse=True))})s?(?![a-z])")
"""A name as a word or as words of a longer name (`top_logprobs`), the longest of several at one place."""
_LONGEST_DESCRIPTION = 16 << 20  # bytes; metrics are the longest
_LONGEST_TEXT = 256  # characters of a name or a flag
_LEAST_BYTES, _TOKEN_BYTES = 1 << 16, 256  # of an event: of names, and of each token or log-probability


class UpstreamDown(Exception):
    """The upstream did not answer, or broke off; the same request may succeed later. `sent`: how often it was sent."""

    sent = 1


class KeyRefused(UpstreamError):
    """The upstream refuses the key of this process, or expects one."""


class Upstream:
    """One server of the engine. Used on one event loop; no request waits for another."""

    def __init__(self, dialect: Dialect, url: str, key: str | None, silence_seconds: float) -> None:
        """`key` is sent as a bearer token. `silence_seconds` without a byte end a request."""
        self.url, self.silence_seconds = url, silence_seconds
        self._dialect = dialect
        shown = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._connections = Connections(
            url,
            {"Accept-Encoding": "identity", **shown},
            connect_seconds=_CONNECT_SECONDS,
            silence_seconds=silence_seconds,
        )

    async def about(self) -> About:
        """The upstream's description of itself. Raises UpstreamDown, UpstreamError."""
        try:
            found = await self._dialect.about(self.ask)
            return _sound(replace(found, version=_SIGN.sub("-", found.version)[:_LONGEST_VERSION]))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise UpstreamError(
                f"{self.url} does not describe itself as {self._dialect.name} does: {error!r}"
            ) from error

    async def ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """See `Ask`. Raises UpstreamDown, UpstreamError."""
        sent = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(_ABOUT_SECONDS), self._connections.asked(path, sent) as answer:
                data = await _whole(answer, _LONGEST_DESCRIPTION)
        except (ConnectionBroken, TimeoutError) as error:
            raise UpstreamDown(f"{self.url} does not answer: {error!r}") from error
        text = data.decode(errors="replace")
        if answer.status in (429, 502, 503, 504):
            raise UpstreamDown(f"{self.url} is not ready: {text[:200]}")
        if answer.status in (401, 403):
            raise KeyRefused(f"{self.url}{path} answers {answer.status}: set its API key with --engine-key-file")
        if answer.status != 200:
            raise UpstreamError(f"{self.url}{path} answers {answer.status}: {text[:200]}")
        if "json" not in answer.headers.get("content-type", ""):
            return text
        try:
            return msgspec.json.decode(data)
        except (ValueError, RecursionError) as error:
            raise UpstreamError(f"{self.url}{path} answers with {text[:80]!r}; expected JSON") from error

    async def answer(
        self,
        body: Mapping[str, Any],
        numbers: int,
        read: Callable[[Mapping[str, Any]], None],
        taken: Callable[[], None] = lambda: None,
        *,
        new_connection: bool = False,
        by_event: bool = False,
    ) -> None:
        """Call `taken` when the engine has accepted the request, then `read` with each event.

        Cancelling it ends the request at the engine. `numbers`: the most tokens and log-probabilities of an event; a
        longer event is an error. `new_connection`: not on a kept one, so that it is sent once. `by_event`: the first
        event, and not the head of the stream, accepts the request.

        Raises InvalidRequest naming the field, EngineFull, EngineStopped, UpstreamDown, UpstreamError, and errors of
        `read`.
        """
        most = _LEAST_BYTES + numbers * _TOKEN_BYTES
        try:
            async with self._connections.asked(
                self._dialect.path, msgspec.json.encode(body), new_connection=new_connection
            ) as answer:
                if answer.status != 200:
                    raise _refusal(self.url, answer.status, await _whole(answer, _LONGEST_DESCRIPTION))
                if "event-stream" not in answer.headers.get("content-type", ""):
                    event = _sound_event(_parsed(await _whole(answer, most)))
                    taken()
                    read(event)
                    return
                _check_encoding(answer)
                stream = _Stream(self._dialect, self.url, read, taken)
                lines = _Lines(stream.event, most)
                with stream.accepted(waits=by_event or self._dialect.refuses_by_event(body)):
                    await answer.read(lines.feed)
                    lines.end()
        except ConnectionBroken as error:
            down = UpstreamDown(f"{self.url} broke off: {error}")
            down.sent = error.sent
            raise down from error

    async def close(self) -> None:
        self._connections.close()


class _Stream:
    """The events of an answer: the first one may refuse the request."""

    def __init__(
        self, dialect: Dialect, url: str, read: Callable[[Mapping[str, Any]], None], taken: Callable[[], None]
    ) -> None:
        self._dialect, self._url, self._read, self._taken, self._waits = dialect, url, read, taken, True

    @contextmanager
    def accepted(self, *, waits: bool) -> Iterator[None]:
        """Accept the request now, or if it `waits`, by its first event, or after _REFUSAL_SECONDS without one."""
        timer = asyncio.get_running_loop().call_later(_REFUSAL_SECONDS, self._accept)
        if not waits:
            self._accept()
        try:
            yield
        finally:
            timer.cancel()

    def _accept(self) -> None:
        self._waits = False
        self._taken()

    def event(self, found: Mapping[str, Any]) -> None:
        """Raises as Upstream.answer does."""
        if self._waits and (refusal := self._dialect.refusal(found)) is not None:
            raise _refusal(self._url, refusal.status, refusal.message.encode())
        sound = _sound_event(found)
        if self._waits:
            self._accept()
        self._read(sound)


class _Lines:
    """Splits an event stream into lines. Methods raise UpstreamError, and errors of `read`."""

    def __init__(self, read: Callable[[Mapping[str, Any]], None], most: int) -> None:
        """`read` is called with the events. A line of more than `most` bytes is an error before it is complete."""
        self._read, self._most, self._begun = read, most, bytearray()

    def feed(self, piece: bytes) -> None:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            self._line(bytes(self._begun + line) if self._begun else line)
            self._begun.clear()
        self._begun += rest
        if len(self._begun) > self._most:
            raise UpstreamError(f"sent a line of more than {self._most} bytes")

    def end(self) -> None:
        self._line(bytes(self._begun))

    def _line(self, line: bytes) -> None:
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            self._read(_parsed(data))


async def _whole(answer: HttpAnswer, most: int) -> bytes:
    """The whole body. Raises UpstreamError for more than `most` bytes."""
    data = bytearray()

    def take(piece: bytes) -> None:
        data.extend(piece)
        if len(data) > most:
            raise UpstreamError(f"sent more than {most} bytes")

    _check_encoding(answer)
    await answer.read(take)
    return bytes(data)


def _check_encoding(answer: HttpAnswer) -> None:
    """Raises UpstreamError for a compressed body, whose length is unbounded."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise UpstreamError("compresses its answers in spite of Accept-Encoding: identity")


def _sound(found: About) -> About:
    """The description. Raises ValueError for values that a profile cannot hold."""
    texts = (found.speculation, found.parallelism, found.device, *found.flags.values())
    for text in (found.version, found.model, *(text for text in texts if text is not None)):
        if not isinstance(text, str) or not 0 < len(text) <= _LONGEST_TEXT:
            raise ValueError(f"expected a text of 1 to {_LONGEST_TEXT} characters, got {str(text)[:80]!r}")
    for size in (found.context_length, 1 if found.vocab_size is None else found.vocab_size):
        if type(size) is not int or not 0 < size < 2**31:
            raise ValueError(f"expected a size in tokens, got {str(size)[:80]!r}")
    return found


def _parsed(data: bytes) -> Mapping[str, Any]:
    """The JSON object. Raises UpstreamError for anything else, such as NaN or half surrogate pairs."""
    try:
        event = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise UpstreamError(f"sent {data[:80]!r}; expected a JSON object")
    return event


def _sound_event(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event. Raises UpstreamError if it is an error."""
    if event.get("error"):
        raise UpstreamError(f"broke off with {_message(event)}")
    return event


def _message(document: object) -> str:
    error = document.get("error", document) if isinstance(document, dict) else document
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:400]


def _refusal(url: str, status: int, data: bytes) -> Exception:
    """The error for an HTTP status."""
    try:
        document = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        document = data.decode(errors="replace")
    message = _message(document)
    if status == 429:
        return EngineFull("request_id", f"the engine accepts no more requests now: {message}")
    if status in (502, 503, 504):
        return UpstreamDown(f"{url} is not ready: {message}")
    if status in (401, 403):
        return EngineStopped("request_id", "the engine refuses the key of --engine-key-file")
    if status in (400, 404, 413, 422):
        context = "context" in message and ("length" in message or "size" in message)
        if context or "maximum allowed length" in message:  # SGLang's, a few tokens below the context
            return ContextExceeded("max_tokens", f"the engine answers: {message}")
        return InvalidRequest(_field(document, message), f"the engine refuses it: {message}")
    return UpstreamError(f"answers {status}: {message}")


def _field(document: object, message: str) -> str:
    """The request's field that a refusal names, in `param` or as the first known name in its message."""
    inner = document.get("error") if isinstance(document, dict) else None
    named = inner.get("param") if isinstance(inner, dict) else None
    if isinstance(named, str) and named in _NAMES:
        return _NAMES[named]
    found = _NAMED.search(message.lower())
    return "prompt" if found is None else _NAMES[found[1]]
