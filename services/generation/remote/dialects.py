"""The HTTP APIs of vLLM, SGLang and llama-server: token ids in, token ids out."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Raw

from ledger.documents.engine_profile import DRAWS, MT19937
from services.generation.engine.events import TokenLogprobs
from services.generation.engine.request import EngineRequest, InvalidRequest, SamplingParams, StructuredOutputs
from services.generation.remote.answer import (
    Answer,
    Drafted,
    Refusal,
    UpstreamError,
    count_in,
    finish_of,
    ids_in,
    logprob_in,
)

Ask = Callable[[str, Mapping[str, Any] | None], Awaitable[Any]]
"""The JSON at a path, or the text of other types: a GET, or with a body a POST. Raises UpstreamDown, UpstreamError."""
_SAMPLERS = ["penalties", "top_k", "temperature", "min_p", "top_p"]
"""The samplers with temperature before min_p and top_p, as in other engines; llama.cpp's default has it last."""
_GGUF = re.compile(r".*/([^/]+\.gguf)")
"""The path of a file, which llama-server gives for a name unless it was started with one (--alias)."""
_UNKNOWN = {str(2**31 - 1): 0.0}
"""A bias of an id beyond each vocabulary: refusals of it give the vocabulary's size."""
_NOT_LLAMA = {
    "min_tokens": "leave it out", "stop_token_ids": "name the text of that token in stop",
    "regex": "write it as a grammar (GBNF)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class About:
    """An upstream's description of itself. None: not reported."""

    version: str  # letters, digits and ._+- as in receipts
    model: str
    context_length: int
    vocab_size: int | None = None
    speculates: bool | None = None
    speculation: str | None = None  # as the engine reports it
    flags: Mapping[str, str] = field(default_factory=dict)  # flags that change numbers
    parallelism: str | None = None
    device: str | None = None
    batch_invariant: bool | None = None
    adapters: frozenset[str] = frozenset()


class Dialect(Protocol):
    """The parts of an engine's API that differ between engines."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """The path of completions."""
        ...

    @property
    def refused(self) -> Mapping[str, str]:
        """Fields of a request that the engine does not support, each with a remedy."""
        ...

    @property
    def draws_alike(self) -> bool:
        """Whether an answer above temperature 0 has the random numbers of plain decoding when the engine speculates.
        If not, it has the same distribution and other tokens.
        """
        ...

    def not_drafted(self, params: SamplingParams) -> str | None:
        """A parameter that the engine ignores or refuses if it speculates."""
        ...

    async def about(self, ask: Ask) -> About:
        """Raises UpstreamDown, UpstreamError, and KeyError and the like for members that are missing."""
        ...

    def body(self, request: EngineRequest, model: str, adapter: str | None, *, stream: bool) -> dict[str, Any]:
        """The JSON body of a request for one sequence. Raises InvalidRequest."""
        ...

    def refuses_by_event(self, body: Mapping[str, Any]) -> bool:
        """Whether the first event of the stream, and not its head, accepts or refuses this body."""
        ...

    def refusal(self, event: Mapping[str, Any]) -> Refusal | None:
        """The refusal in a stream's first event."""
        ...

    def read(self, event: Mapping[str, Any], answer: Answer) -> None:
        """Add an event to the answer. Raises UpstreamError, and KeyError and the like for an event in another form."""
        ...

    async def vocabulary(self, ask: Ask) -> int | None:
        """The vocabulary's size of an engine that refuses no ids beyond it before a stream. None if it does, or the
        size is unknown. Raises UpstreamDown, UpstreamError.
        """
        ...


def checked(dialect: Dialect, request: EngineRequest) -> None:
    """Raises InvalidRequest for a field that this engine does not support, before anything is sent."""
    params, plain = request.sampling, SamplingParams()
    if request.k is not None:
        raise InvalidRequest("k", f"is chosen by {dialect.name} for all requests; leave it out")
    for name, instead in dialect.refused.items():
        given = params.structured_outputs.kind == name if params.structured_outputs else False
        if given or (hasattr(plain, name) and getattr(params, name) != getattr(plain, name)):
            where = "structured_outputs" if given else name
            raise InvalidRequest(where, f"{name} is not supported by {dialect.name}; {instead}")


def _changes_probabilities(params: SamplingParams) -> str | None:
    """`logit_bias` or `min_p`, which has no effect on greedy decoding."""
    if params.logit_bias:
        return "logit_bias"
    return "min_p" if params.min_p > 0.0 and params.temperature > 0.0 else None


def read_event(dialect: Dialect, event: Mapping[str, Any], answer: Answer) -> None:
    """Add an event to the answer. Raises UpstreamError, also if members are missing or of another type."""
    try:
        dialect.read(event, answer)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise UpstreamError(f"sent an event in another form than {dialect.name} does: {error!r}") from error


def numbers_of(request: EngineRequest) -> int:
    """The most tokens and log-probabilities of an event: some events contain the whole answer and the prompt."""
    params = request.sampling
    return len(request.prompt) + params.max_tokens * (2 + (params.logprobs or 0))


def seed_of(request: EngineRequest, bits: int) -> int:
    """The seed of a choice, counted as in vLLM. Below 2^bits − 1, which is "random" to llama.cpp."""
    return (request.sampling.seed + request.choice) % ((1 << bits) - 1)


def _salt(request: EngineRequest) -> str:
    """The salt of cached prefixes: one for each tenant, or if the request may not reuse prefixes, one for each call, so
    that not even the same request sent again finds its own.
    """
    if not request.reuse:
        return secrets.token_hex(32)
    return hashlib.sha256((request.tenant or "default").encode()).hexdigest()  # vLLM refuses some signs and long salts


@dataclass(frozen=True, slots=True)
class Vllm:
    """OpenAI's completions with `return_token_ids`, vLLM 0.10.2 and later."""

    name: str = "vllm"
    path: str = "/v1/completions"
    draws_alike: bool = False  # its rejection sampling draws a number for each draft token
    refused: Mapping[str, str] = field(default_factory=dict)

    def not_drafted(self, params: SamplingParams) -> str | None:
        """vLLM 0.32.0 refuses both (`SamplingParams._validate_spec_decode`)."""
        return _changes_probabilities(params)

    async def about(self, ask: Ask) -> About:
        version, models = await ask("/version", None), await ask("/v1/models", None)
        base, *adapters = sorted(models["data"], key=lambda each: each.get("parent") is not None)
        metrics = str(await ask("/metrics", None))
        cache = next((line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")), "")
        info = dict(part.split("=", 1) for part in cache.partition("{")[2].partition("}")[0].split(",") if "=" in part)
        kept = ("block_size", "cache_dtype", "enable_prefix_caching", "sliding_window")
        return About(
            version=version["version"],
            model=base["id"],
            context_length=base["max_model_len"],
            speculates="vllm:spec_decode_num_drafts" in metrics,
            flags={name: info[name].strip('"') for name in kept if name in info},
            adapters=frozenset(each["id"] for each in adapters),
        )

    def body(self, request: EngineRequest, model: str, adapter: str | None, *, stream: bool) -> dict[str, Any]:
        params = request.sampling
        made = _common(params) | {
            "model": adapter or model, "prompt": list(request.prompt), "seed": seed_of(request, 63), "stream": stream,
            "max_tokens": params.max_tokens, "min_tokens": params.min_tokens, "stop_token_ids": params.stop_token_ids,
            "repetition_penalty": params.repetition_penalty, "logprobs": params.logprobs, "priority": 0,
            "logit_bias": {str(token): bias for token, bias in params.logit_bias} or None,
            "return_token_ids": True, "return_tokens_as_token_ids": True, "add_special_tokens": False,
            "cache_salt": _salt(request), "stream_options": {"include_usage": True} if stream else None,
        }  # fmt: skip
        source = params.structured_outputs
        if source is not None:
            is_json = source.kind in ("json", "choice")
            made["structured_outputs"] = {source.kind: _as_written(source.text) if is_json else source.text or True}
        return made

    def read(self, event: Mapping[str, Any], answer: Answer) -> None:
        usage = event.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        answer.cached_tokens = count_in(cached or answer.cached_tokens)
        counts = (event.get("metrics") or {}).get("speculative_decoding")
        if counts is not None:
            proposed, accepted = map(count_in, (counts["num_draft_tokens"], counts["num_accepted_draft_tokens"]))
            histogram = counts.get("acceptance_histogram") or ()
            answer.drafted = Drafted.of_histogram(len(answer.ids), proposed, accepted, histogram)
        for choice in event.get("choices", ()):
            if choice.get("token_ids") is None and (choice.get("text") or choice.get("finish_reason") is None):
                raise UpstreamError("gave no token_ids; expected a vLLM with return_token_ids (0.10.2 or later)")
            if choice.get("prompt_token_ids") is not None:
                answer.prompt = ids_in(choice["prompt_token_ids"])
            answer.ids += ids_in(choice.get("token_ids") or [])
            answer.text += choice.get("text") or ""
            answer.logprobs += _vllm_logprobs(choice.get("logprobs"))
            if choice.get("finish_reason") is not None:
                answer.finish, answer.stop_reason = finish_of(choice["finish_reason"]), choice.get("stop_reason")

    def refuses_by_event(self, body: Mapping[str, Any]) -> bool:
        """vLLM checks these after the head of a stream; a promise waits for no other request's first token."""
        return any(body.get(name) for name in ("structured_outputs", "logit_bias", "logprobs", "stop_token_ids"))

    def refusal(self, event: Mapping[str, Any]) -> Refusal | None:
        return _error_in(event)

    async def vocabulary(self, ask: Ask) -> int | None:
        """vLLM refuses an unknown id in a prompt after the head of a stream; its refusal of a bias gives the size."""
        body = {"prompt": [0], "max_tokens": 1, "logit_bias": _UNKNOWN}
        return await _number_refused(ask(self.path, body), r"Vocabulary size: (\d{1,9})")


def _vllm_logprobs(part: Mapping[str, Any] | None) -> list[TokenLogprobs]:
    def token(text: str) -> int:
        return int(text.removeprefix("token_id:"))

    if part is None:
        return []
    tops = [tuple(logprob_in(token(word), each) for word, each in (top or {}).items()) for top in part["top_logprobs"]]
    chosen = zip(part["tokens"], part["token_logprobs"], tops, strict=True)
    return [TokenLogprobs(*logprob_in(token(text), logprob), top) for text, logprob, top in chosen]


def _common(params: SamplingParams) -> dict[str, Any]:
    """Parameters with the same name in all three engines."""
    return {
        "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k or -1, "min_p": params.min_p,
        "stop": list(params.stop), "ignore_eos": params.ignore_eos, "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """llama.cpp's own completions. A stream omits ids within a character, as `counted` shows."""

    name: str = "llama-server"
    path: str = "/completion"
    draws_alike: bool = True  # it samples each token as without drafts, and compares
    refused: Mapping[str, str] = field(default_factory=lambda: _NOT_LLAMA)

    def not_drafted(self, params: SamplingParams) -> str | None:
        return None

    async def about(self, ask: Ask) -> About:
        props, models = await ask("/props", None), await ask("/v1/models", None)
        try:
            slots = await ask("/slots", None)
        except UpstreamError:  # started with --no-slots
            slots = []
        types = next((each["params"].get("speculative.types") for each in slots if "params" in each), None)
        meta = models["data"][0].get("meta") or {}
        flags = {"model_ftype": props["model_ftype"]} if "model_ftype" in props else {}
        if (props["default_generation_settings"].get("params") or {}).get("backend_sampling") is False:
            flags[DRAWS] = MT19937  # a build that reports this is newer than its present way to draw
        return About(
            version=props["build_info"],
            model=_GGUF.sub(r"\1", props.get("model_alias") or models["data"][0]["id"]),
            context_length=props["default_generation_settings"]["n_ctx"],
            vocab_size=meta.get("n_vocab"),
            speculates=slots[0].get("speculative") if slots else None,
            speculation=None if types == "none" else types,
            flags=flags,
        )

    def body(self, request: EngineRequest, model: str, adapter: str | None, *, stream: bool) -> dict[str, Any]:
        params = request.sampling
        return _common(params) | _llama_constraint(params.structured_outputs) | {
            "prompt": list(request.prompt), "n_predict": params.max_tokens, "seed": seed_of(request, 32),
            "top_k": params.top_k, "repeat_penalty": params.repetition_penalty,
            "repeat_last_n": len(request.prompt) + params.max_tokens,
            "n_probs": 0 if params.logprobs is None else max(params.logprobs, 1),
            "logit_bias": [[token, bias] for token, bias in params.logit_bias], "samplers": _SAMPLERS,
            "cache_prompt": request.reuse, "return_tokens": True, "stream": stream,
        }  # fmt: skip

    def read(self, event: Mapping[str, Any], answer: Answer) -> None:
        if "tokens" not in event:
            raise UpstreamError("gave no tokens; expected a llama-server that supports return_tokens (b4300 or later)")
        answer.ids += ids_in(event["tokens"])
        answer.text += event.get("content") or ""
        for each in event.get("completion_probabilities") or ():
            top = tuple(logprob_in(one["id"], one["logprob"]) for one in each["top_logprobs"])
            answer.logprobs.append(TokenLogprobs(*logprob_in(each["id"], each["logprob"]), top))
        answer.counted = event.get("tokens_predicted", answer.counted)
        if event.get("stop"):
            answer.finish = finish_of(event["stop_type"])
            answer.stop_reason = event.get("stopping_word") or None
            timings = event.get("timings") or {}
            names = ("cache_n", "draft_n", "draft_n_accepted")
            answer.cached_tokens, proposed, accepted = (count_in(timings.get(name) or 0) for name in names)
            answer.drafted = Drafted(count_in(answer.counted or 0) - accepted, proposed, accepted)

    def refuses_by_event(self, body: Mapping[str, Any]) -> bool:
        return False

    def refusal(self, event: Mapping[str, Any]) -> Refusal | None:
        return None

    async def vocabulary(self, ask: Ask) -> int | None:
        return None


def _as_written(text: str) -> Raw:
    """A JSON value with every digit. Raises InvalidRequest unless the text is one value, which cannot add others."""
    try:
        json.loads(text)
        return Raw(text.encode())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("structured_outputs", f"is not JSON: {error}") from error


def _llama_constraint(source: StructuredOutputs | None) -> dict[str, Any]:
    match source:
        case None:
            return {}
        case StructuredOutputs("json", text):
            return {"json_schema": _as_written(text)}
        case StructuredOutputs("json_object"):
            return {"json_schema": {"type": "object"}}
        case StructuredOutputs("choice", text):
            return {"grammar": "root ::= " + " | ".join(json.dumps(each) for each in json.loads(text))}
        case StructuredOutputs(_, text) if "::=" in text:
            return {"grammar": text}
    raise InvalidRequest("structured_outputs", "is not in GBNF, the form of grammars that llama-server takes")


@dataclass(frozen=True, slots=True)
class Sglang:
    """SGLang's own /generate, with token ids in both directions."""

    name: str = "sglang"
    path: str = "/generate"
    draws_alike: bool = False
    refused: Mapping[str, str] = field(default_factory=lambda: {"choice": "write it as a regex"})

    def not_drafted(self, params: SamplingParams) -> str | None:
        """Its verification of drafts applies neither to every token (sgl-project/sglang issue 10617)."""
        return _changes_probabilities(params)

    async def about(self, ask: Ask) -> About:
        info, models = await ask("/server_info", None), await ask("/v1/models", None)
        base, *adapters = sorted(models["data"], key=lambda each: each.get("parent") is not None)
        algorithm = info.get("speculative_algorithm")
        kept = "dtype quantization kv_cache_dtype attention_backend sampling_backend chunked_prefill_size"
        sizes = [f"{name}={info[name]}" for name in ("tp_size", "pp_size", "dp_size") if info.get(name, 1) != 1]
        return About(
            version=info["version"],
            model=base["id"],
            context_length=base["max_model_len"],
            speculates=algorithm is not None,
            speculation=algorithm,
            flags={name: str(info[name]) for name in kept.split() if info.get(name) is not None},
            parallelism=", ".join(sizes) or None,
            device=info.get("device"),
            batch_invariant=info.get("enable_deterministic_inference"),
            adapters=frozenset(each["id"] for each in adapters),
        )

    def body(self, request: EngineRequest, model: str, adapter: str | None, *, stream: bool) -> dict[str, Any]:
        params = request.sampling
        sampling = _common(params) | {
            "max_new_tokens": params.max_tokens, "min_new_tokens": params.min_tokens,
            "sampling_seed": seed_of(request, 31), "stop_token_ids": list(params.stop_token_ids),
            "repetition_penalty": params.repetition_penalty,
            "logit_bias": {str(token): bias for token, bias in params.logit_bias} or None,
        }  # fmt: skip
        source = params.structured_outputs
        if source is not None:
            kinds = {"json": "json_schema", "json_object": "json_schema", "grammar": "ebnf"}
            sampling[kinds.get(source.kind, source.kind)] = source.text or '{"type":"object"}'
        made = {
            "input_ids": list(request.prompt), "sampling_params": sampling, "stream": stream, "lora_path": adapter,
            "extra_key": _salt(request),
        }  # fmt: skip
        if params.logprobs is not None:
            made |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
        return made

    def refuses_by_event(self, body: Mapping[str, Any]) -> bool:
        return True

    def refusal(self, event: Mapping[str, Any]) -> Refusal | None:
        """SGLang checks parameters after the head, and compiles a grammar after a first event with a made-up token."""
        return _error_in(event) or _aborted(event)

    def read(self, event: Mapping[str, Any], answer: Answer) -> None:
        """An event contains the whole answer so far, or with SGLang's --incremental-streaming-output the new part."""
        if "output_ids" not in event:
            raise UpstreamError("gave no output_ids; expected SGLang's /generate")
        if (aborted := _aborted(event)) is not None:  # its ids belong to no answer
            raise UpstreamError(f"broke off with {aborted.message[:400]}")
        ids, info, text = ids_in(event["output_ids"]), event["meta_info"], event.get("text") or ""
        if whole := len(ids) == info["completion_tokens"]:
            text = text or answer.text
            if ids[: len(answer.ids)] != answer.ids or not text.startswith(answer.text):
                raise UpstreamError("takes back a part of its answer")
            answer.ids, answer.text = ids, text
        else:
            answer.ids, answer.text = answer.ids + ids, answer.text + text
        values, tops = info.get("output_token_logprobs") or [], info.get("output_top_logprobs") or []
        for position in range(len(answer.logprobs) if whole else 0, len(values)):
            logprob, token, _ = values[position]
            top = tops[position] if position < len(tops) and tops[position] else ()
            best = tuple(logprob_in(each[1], each[0]) for each in top)
            answer.logprobs.append(TokenLogprobs(*logprob_in(token, logprob), best))
        answer.cached_tokens = count_in(info.get("cached_tokens") or 0)
        if info.get("finish_reason") is not None:
            answer.finish = finish_of(info["finish_reason"]["type"])
            answer.stop_reason = info["finish_reason"].get("matched")
            if info.get("spec_verify_ct"):  # without a verified draft it leaves the others out
                names = ("spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_verify_ct")
                proposed, accepted, drafts = (count_in(info[name]) for name in names)
                answer.drafted = Drafted(len(answer.ids) - accepted, proposed, accepted, drafts)

    async def vocabulary(self, ask: Ask) -> int | None:
        """SGLang crashes on an unknown id in a prompt; its refusal of a bias names the known ids."""
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "logit_bias": _UNKNOWN}, "stream": False}
        last = await _number_refused(ask(self.path, body), r"logit_bias must ha\w+ keys in \[0, (\d{1,9})\]")
        return None if last is None else last + 1


def _error_in(event: Mapping[str, Any]) -> Refusal | None:
    """The refusal in an event that has a status."""
    error = event.get("error")
    if not isinstance(error, dict) or type(error.get("code")) is not int:
        return None
    return Refusal(error["code"], str(error.get("message", error)))


async def _number_refused(asked: Awaitable[Any], pattern: str) -> int | None:
    """The number in the message of a refusal; None if the request is not refused, or without it."""
    try:
        await asked
    except UpstreamError as refused:
        found = re.search(pattern, str(refused))
        return int(found[1]) if found else None
    return None


def _aborted(event: Mapping[str, Any]) -> Refusal | None:
    """The refusal in an event that SGLang's scheduler has aborted; without a status the caller has left."""
    info = event.get("meta_info")
    reason = info.get("finish_reason") if isinstance(info, dict) else None
    if not isinstance(reason, dict) or type(reason.get("status_code")) is not int:
        return None
    message = str(reason.get("message"))
    return Refusal(429 if "queue is full" in message else reason["status_code"], message)


DIALECTS: Mapping[str, Dialect] = {each.name: each for each in (Vllm(), Sglang(), LlamaServer())}
