"""A fake vLLM, SGLang or llama-server on a loopback port: honest, or wrong in one of the ways that tests ask for."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from services.generation.engine.text.tokenizer import Tokenizer


class Dropped(Exception):
    """The connection ends here."""


@dataclass
class FakeUpstream:
    """The next token is a digest of those before it, of the seed and of `taste`: fakes of one taste agree.

    `fault` is how it fails: `hang` and `drop` after `after` tokens, and `idle` (events without a token), `comments`,
    `line` (a line without an end); `short` (ends without a last event), `text`, `ids` (has none), `prompt`, `many`,
    `busy`, `loading`, `refuse`, `grammar` (refuses that), `garbage`; `cut` and `stopped` end after two tokens without a
    reason; `unsteady` answers otherwise each time, `first` the first time alone, `cached` if it may reuse a prefix,
    `crowded` beside other requests; `gone` ends the connection before an answer; `fails`, `page`, `event` and `moved`
    are errors in its place, as is the JSON `instead`; `locked` refuses every key. `twist` makes of each event what
    is sent. A stream of SGLang is refused in its first event, with a token that is none's, as are constraints by
    vLLM.
    """

    kind: str
    tokenizer: Tokenizer
    speculates: bool = False
    version: str = "1.2.3"
    vocabulary_size: Any = None
    model: str = "house-model"
    ftype: str = "Q8_0"
    speculation: str | None = None  # as llama-server's slots name it
    taste: str = "plain"
    fault: str | None = None
    instead: str | None = None
    after: int = 2
    whole: int = 0  # answers that come to their end before it fails
    differs_at: int | tuple[int, ...] | None = None  # the places of tokens that are others
    vocabulary: Sequence[int] = ()
    ends_after: int | None = None  # tokens, with an end-of-sequence token
    twist: Callable[[dict[str, Any]], Any] = lambda event: event
    pace: float = 0.0  # seconds a token
    context: int = 256
    tail: str = ""  # of the text of a llama-server's whole answer
    counts: bool = True  # reports its speculation
    gap: float | None = 2.0  # nats from a token to the next best; None: it reports no log-probabilities
    cached: int = 0  # tokens of prompts that it has not computed, as it states
    port: int = 0
    open: int = 0  # requests
    salts: set[str] = field(default_factory=set)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    closed_early: int = 0  # answers whose reader left

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _best(self, told: list[Any], place: int) -> tuple[int, int]:
        """The best token and the next best."""
        differs = place in self.differs_at if isinstance(self.differs_at, tuple) else place == self.differs_at
        drawn = int.from_bytes(hashlib.sha256(json.dumps(told).encode()).digest()[:4]) + differs
        return self.vocabulary[drawn % len(self.vocabulary)], self.vocabulary[(drawn + 1) % len(self.vocabulary)]

    def tokens(self, prompt: Sequence[int], seed: int, most: int, state: str = "") -> list[int]:
        """The whole output for a prompt."""
        made: list[int] = []
        many = most + 1 if self.fault == "many" else most
        while len(made) < many:
            if self.ends_after is not None and len(made) == self.ends_after:
                return [*made, self.tokenizer.fast.get_vocab()["<|end|>"]]
            differs = {"unsteady": len(self.bodies), "first": len(self.bodies) == 1}.get(self.fault or "", 0)
            told = [self.taste, seed, *prompt, *made, int(differs)]
            made.append(self._best([*told, state] if state and len(made) == 1 else told, len(made))[0])
        return made

    def _state(self, body: dict[str, Any]) -> str:
        """The circumstances that change what this engine computes."""
        salt = body.get("cache_salt", body.get("extra_key", "one for all" if body.get("cache_prompt") else None))
        reused = salt in self.salts
        if salt is not None:
            self.salts.add(salt)
        return {"cached": "reused" if reused else "", "crowded": "crowd" if self.open > 1 else ""}.get(
            self.fault or "", ""
        )

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(Dropped, ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := (await reader.readline()).decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(path, json.loads(data) if method == "POST" else None, writer)
        writer.close()

    async def _answer(self, path: str, body: dict[str, Any] | None, writer: asyncio.StreamWriter) -> None:
        if self.fault == "locked":
            await _send(writer, 401, '{"error": {"message": "no such key"}}', "application/json")
            return
        if path in ("/v1/completions", "/generate", "/completion") and body is not None:
            if self.kind != "llama-server" and (unknown := self._bias_beyond(body)) is not None:
                message = {
                    "sglang": f"logit_bias must has keys in [0, {self._last_token()}], got {unknown}.",
                    "vllm": f"[{unknown}] in logit_bias contain out-of-vocab token ids. "
                    f"Vocabulary size: {self._last_token() + 1}",
                }[self.kind]
                await _send(writer, 400, json.dumps({"error": {"message": message}}), "application/json")
                return
            self.bodies.append(body)
            self.open += 1
            try:
                await self._complete(body, writer)
            finally:
                self.open -= 1
            return
        status, document = 200, self._about(path, body or {})
        if document is None:
            status, document = 404, {"error": {"message": "no such path"}}
        kind = "text/plain" if isinstance(document, str) else "application/json"
        await _send(writer, status, document if isinstance(document, str) else json.dumps(document), kind)

    def _last_token(self) -> int:
        return max(self.tokenizer.fast.get_vocab().values())

    def _bias_beyond(self, body: dict[str, Any]) -> int | None:
        biases = body.get("sampling_params", body).get("logit_bias") or {}
        return next((int(token) for token in biases if int(token) > self._last_token()), None)

    def _about(self, path: str, body: dict[str, Any]) -> Any:
        models = {
            "data": [{"id": self.model, "max_model_len": self.context, "meta": {"n_vocab": self.vocabulary_size}}]
        }
        spec = "vllm:spec_decode_num_drafts_total 0\n" if self.speculates else ""
        text = body.get("prompt", body.get("content", ""))
        match path:
            case "/version":
                return {"version": self.version}
            case "/v1/models":
                return models
            case "/metrics":
                return f'vllm:cache_config_info{{block_size="16",engine="0"}} 1\n{spec}'
            case "/props":
                return {"build_info": self.version, "model_alias": self.model, "model_ftype": self.ftype,
                        "default_generation_settings": {"n_ctx": 256}}  # fmt: skip
            case "/slots":
                return [{"speculative": self.speculates, "params": {"speculative.types": self.speculation}}]
            case "/lora-adapters":
                return []
            case "/server_info":
                return {"version": self.version, "speculative_algorithm": "NGRAM" if self.speculates else None}
            case "/tokenize" if "messages" in body:
                return {"tokens": self.tokenizer.encode(" ".join(turn["content"] for turn in body["messages"]))}
            case "/apply-template":
                return {"prompt": " ".join(turn["content"] for turn in body["messages"])}
            case "/tokenize":
                return {"tokens": self.tokenizer.encode(text)}
            case "/detokenize":
                return {"prompt": self.tokenizer.decode(body["tokens"])}
        return None

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        refusals = {
            "busy": (429, {"error": {"message": "too many"}}),
            "loading": (503, {"error": {"message": "Loading model"}}),
            "refuse": (400, {"error": {"message": "top_k is too large", "param": "top_k"}}),
            "grammar": (400, {"error": {"message": "Failed to compile regex grammar: the parenthesis is not closed"}}),
            "salt": (400, {"error": {"message": "'cache_salt' must not contain '/'", "param": "cache_salt"}}),
        }
        if set("@/\\") & set(body.get("cache_salt", "")):  # as vLLM does
            self.fault = "salt"
        pages = {
            "fails": (500, "no memory", "text/plain"), "page": (200, "<html></html>", "text/html"),
            "moved": (302, "", "text/plain"),
            "event": (200, 'data: {"error": {"message": "no memory"}}\n\n', "text/event-stream"),
        }  # fmt: skip
        if self.instead is not None:
            await _send(writer, 200, self.instead, "application/json")
            return
        if self.fault == "gone":
            raise Dropped
        if self.fault in pages:
            await _send(writer, *pages[self.fault])
            return
        if self.fault in refusals:
            status, document = refusals[self.fault]
            late = {"sglang": {"busy", "refuse", "grammar"}, "vllm": {"grammar"}}.get(self.kind, set())
            if self.fault in late and body["stream"]:
                event = json.dumps(_refused_late(self.kind, self.fault, document["error"]["message"]))
                await _send(writer, 200, f"data: {event}\n\ndata: [DONE]\n\n", "text/event-stream")
                return
            await _send(writer, status, json.dumps(document), "application/json")
            return
        stream, fault = body["stream"], self.fault  # as it is when the request comes
        if len(self.bodies) <= self.whole:
            fault = None
        kind = "text/event-stream" if stream else "application/json"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        events = self._events(body, fault) if stream else [event async for event in self._events(body, fault)]
        if isinstance(events, list):
            whole = _whole(events)
            await _chunk(writer, json.dumps(whole | ({"content": whole["content"] + self.tail} if self.tail else {})))
        else:
            async for event in events:
                if isinstance(event, bytes):
                    await _chunk(writer, event.decode())
                    continue
                sent = event if isinstance(event, str) else self.twist(event)
                await _chunk(writer, f"data: {sent if isinstance(sent, str) else json.dumps(sent)}\n\n")
            await _chunk(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _events(self, body: dict[str, Any], fault: str | None) -> AsyncIterator[Any]:
        sampling = body.get("sampling_params", body)
        prompt: list[int] = body["input_ids" if "input_ids" in body else "prompt"]
        most = sampling.get("max_new_tokens", sampling.get("n_predict", sampling.get("max_tokens")))
        seed = sampling.get("sampling_seed", sampling.get("seed"))
        await asyncio.sleep(0.02 if fault == "crowded" else 0.0)  # until all of them have come
        ids = self.tokens(prompt, seed, most, self._state(body))
        ended = self.ends_after is not None and len(ids) == self.ends_after + 1
        if self.fault in ("cut", "stopped"):
            ids = ids[:2]
        decoder, so_far = self.tokenizer.stream(prompt), ""
        for place, token in enumerate(ids):
            if place == self.after:
                await self._fail(fault)
                async for piece in self._endless(fault, prompt, ids[:place], so_far):
                    yield piece
            if self.fault == "garbage":
                yield "no JSON"
            text = decoder.feed(token) if not (ended and place == len(ids) - 1) else ""
            so_far += "x" + text if self.fault == "text" else text
            event = self._event(prompt, ids[: place + 1], text if self.fault != "text" else "x" + text, so_far)
            if self.gap is not None and (body.get("logprobs") or body.get("n_probs") or body.get("return_logprob")):
                self._tell(event, [self.taste, seed, *prompt, *ids[:place], 0], ids[: place + 1])
            yield event
            await asyncio.sleep(self.pace)
        if self.fault != "short":
            for event in self._last(ids, so_far, "stop" if ended or self.fault == "stopped" else "length"):
                yield event

    async def _fail(self, fault: str | None) -> None:
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop":
            raise Dropped

    async def _endless(
        self, fault: str | None, prompt: Sequence[int], ids: Sequence[int], so_far: str
    ) -> AsyncIterator[dict[str, Any] | bytes]:
        if fault == "line":
            yield b"data: "
        while fault in ("idle", "comments", "line"):
            nothing: dict[str, Any] = {"choices": []}
            if self.kind == "sglang":
                nothing = self._event(prompt, ids, "", so_far)
            if self.kind == "llama-server":
                nothing = {"content": "", "tokens": [], "stop": False, "tokens_predicted": len(ids)}
            endless: dict[str, dict[str, Any] | bytes] = {
                "idle": nothing, "comments": b": still here\n\n", "line": b"x" * 65_536
            }  # fmt: skip
            yield endless[fault]
            await asyncio.sleep(0.001)

    def _event(self, prompt: Sequence[int], ids: Sequence[int], text: str, so_far: str) -> dict[str, Any]:
        new = [] if self.fault == "ids" else list(ids[-1:])
        match self.kind:
            case "vllm":
                choice = {"text": text, "token_ids": None if self.fault == "ids" else new}
                if len(ids) == 1:
                    choice["prompt_token_ids"] = [*prompt, 1] if self.fault == "prompt" else list(prompt)
                return {"choices": [choice]}
            case "llama-server":
                tokens = {} if self.fault == "ids" else {"tokens": new}
                return {"content": text, "stop": False, "tokens_predicted": len(ids), **tokens}
        ours = {} if self.fault == "ids" else {"output_ids": list(ids)}
        return {"text": so_far, "meta_info": {"completion_tokens": len(ids), "finish_reason": None}, **ours}

    def _tell(self, event: dict[str, Any], told: list[Any], ids: Sequence[int]) -> None:
        """Add log-probabilities of the last token and of the next best one."""
        best, second = self._best(told, -2)
        known = {best: -0.5, second: -0.5 - (self.gap or 0.0)}
        token = ids[-1]
        match self.kind:
            case "vllm":
                event["choices"][0]["logprobs"] = {
                    "tokens": [f"token_id:{token}"], "token_logprobs": [known.get(token, -9.0)],
                    "top_logprobs": [{f"token_id:{each}": value for each, value in known.items()}],
                }  # fmt: skip
            case "llama-server":
                top = [{"id": each, "logprob": value} for each, value in known.items()]
                event["completion_probabilities"] = [
                    {"id": token, "logprob": known.get(token, -9.0), "top_logprobs": top}
                ]

    def _last(self, ids: Sequence[int], text: str, reason: str) -> list[dict[str, Any]]:
        accepted = len(ids) // 2 if self.speculates else 0
        proposed = accepted + 1 if self.speculates else 0
        match self.kind:
            case "vllm":
                told = {"num_draft_tokens": proposed, "num_accepted_draft_tokens": accepted}
                counts = {"metrics": {"speculative_decoding": told}} if self.counts and self.speculates else {}
                usage = {"prompt_tokens_details": {"cached_tokens": self.cached}}
                return [{"choices": [{"text": "", "token_ids": [], "finish_reason": reason}]},
                        {"choices": [], "usage": usage, **counts}]  # fmt: skip
            case "llama-server":
                timings = {"draft_n": proposed, "draft_n_accepted": accepted} if self.speculates else {}
                timings |= {"cache_n": self.cached} if self.cached else {}
                stopped = {"stop": "eos", "length": "limit"}[reason]
                return [{"content": "", "tokens": [], "stop": True, "stop_type": stopped, "tokens_predicted": len(ids),
                         "timings": timings}]  # fmt: skip
        meta: dict[str, Any] = {
            "completion_tokens": len(ids),
            "finish_reason": {"type": reason},
            "cached_tokens": self.cached,
        }
        if self.counts and self.speculates:
            meta |= {"spec_verify_ct": 1, "spec_num_proposed_drafts": proposed, "spec_num_correct_drafts": accepted}
        return [{"text": text, "output_ids": list(ids), "meta_info": meta}]


def _refused_late(kind: str, fault: str, message: str) -> dict[str, Any]:
    """The first event for a refused request, as SGLang 0.5.23 and vLLM 0.32.0 send it."""
    if kind == "vllm":
        return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
    if fault == "refuse":
        return {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}
    reason = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
    if fault == "busy":
        reason = {"type": "abort", "status_code": 503, "message": "The request queue is full."}
        return {"text": "", "output_ids": [], "meta_info": {"finish_reason": reason, "completion_tokens": 0}}
    told = {"finish_reason": reason, "prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
    return {"text": "-", "output_ids": [29], "meta_info": told}


def _whole(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The events of a stream in one."""
    if "meta_info" in events[-1]:
        return events[-1]
    if "choices" not in events[-1]:
        ids = [token for event in events for token in event["tokens"]]
        probabilities = [each for event in events for each in event.get("completion_probabilities", ())]
        whole = {"content": "".join(event["content"] for event in events), "tokens": ids}
        return events[-1] | whole | ({"completion_probabilities": probabilities} if probabilities else {})
    choices = [event["choices"][0] for event in events if event["choices"]]
    ids, text = [token for each in choices for token in each["token_ids"]], "".join(each["text"] for each in choices)
    parts = [each["logprobs"] for each in choices if each.get("logprobs")]
    told = {name: [value for part in parts for value in part[name]] for name in (parts[0] if parts else ())}
    return events[-1] | {"choices": [{**choices[-1], "text": text, "token_ids": ids, "logprobs": told or None}]}


async def _send(writer: asyncio.StreamWriter, status: int, text: str, kind: str) -> None:
    data = text.encode()
    writer.write(f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


@asynccontextmanager
async def listening(upstream: FakeUpstream) -> AsyncIterator[FakeUpstream]:
    """Serve it, on its port if it has one: as after a restart."""
    writers: set[asyncio.StreamWriter] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        await upstream.handle(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", upstream.port)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
