"""Load of 1 to 64 callers on any OpenAI-compatible server, by OpenAI's client; all engines get the same requests."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from benchmarks.engines import KINDS, conversations
from benchmarks.specbench.questions import OWN, load_questions

CALLERS = (1, 4, 16, 64)
_PROMPTS_OF_KIND = 4
_LENGTHS = (0, 100, 300, 500, 900)
_TOKENS = 64
_REQUESTS = 3
"""Requests of a caller, at least: the longer a round is, the less its end counts, when some callers are idle."""
_SECONDS = 600.0
_Send = Callable[[int, Any, "Seen"], Awaitable[None]]


@dataclass(slots=True)
class Seen:
    """Times in seconds. `outputs`: the text of each request, by its number."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # from the call to the first token
    by_prompt: list[tuple[int, float]] = field(default_factory=list)  # prompt tokens, and seconds to the first output
    gaps: list[float] = field(default_factory=list)  # between two chunks of a stream
    outputs: dict[int, str] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)


def prompts() -> Iterator[list[dict[str, str]]]:
    """Conversations of the six `KINDS` in turn, as messages with role and content."""
    for turn in zip(*(conversations(kind, _PROMPTS_OF_KIND) for kind in KINDS), strict=True):
        yield from turn


def long_prompts() -> Iterator[list[dict[str, str]]]:
    """Questions of Spec-Bench's six kinds in turn, as messages: prompts of 30 to 1,500 tokens. A prompt of
    summarization or rag joins several questions.
    """
    pieces, questions = {"summarization": 11, "rag": 4}, load_questions(OWN)
    for number, turn in enumerate(zip(*questions.values(), strict=True)):
        for question in turn:
            count, others = 1 + number % pieces.get(question.kind, 1), questions[question.kind]
            texts = [others[(number + more) % len(others)].turns[0] for more in range(count)]
            yield [{"role": "user", "content": "\n\n".join(texts)}]


def measure(
    url: str, extra: Mapping[str, Any], *, rounds: int = 3, counts: Sequence[int] = CALLERS, long: bool = False
) -> dict[str, Any]:
    """Measure streamed chats, T = 0, 64 tokens each, of the six `KINDS`, the same ones for every number of callers.

    `long`: prompts of 30 to 1,500 tokens instead, and times to the first token by the length of the prompt.
    `url` is the server's base, such as http://127.0.0.1:8000/v1; $OPENAI_API_KEY is sent if it is set. `extra` are
    members of each request besides OpenAI's, `counts` the numbers of callers. Ends of sequences are ignored if the
    server supports it. Raises OpenAIError if it does not answer.
    """
    return asyncio.run(_measure(url, extra, rounds, counts, long))


async def _measure(
    url: str, extra: Mapping[str, Any], rounds: int, counts: Sequence[int], long: bool
) -> dict[str, Any]:
    client = AsyncOpenAI(
        base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0, timeout=_SECONDS
    )
    model = (await client.models.list()).data[0].id
    asked, send = (
        list(long_prompts() if long else prompts()),
        partial(_stream, client, model, {"ignore_eos": True, **extra}),
    )
    await _serve(send, asked[:16], 4)  # warm up: every server has compiled and cached
    gc.collect()
    gc.freeze()  # a garbage collection of imported modules would halt all callers for 0.3 s
    cases = []
    for callers in counts:
        turns = asked * -(-_REQUESTS * callers // len(asked))
        runs = [await _serve(send, turns, callers) for _ in range(rounds)]
        case = {"callers": callers, **figures(runs), **(first_tokens(runs) if long else {})}
        print(case, file=sys.stderr, flush=True)
        cases.append(case)
    name = Path(model).name if model.endswith(".gguf") else model  # llama-server's id is the path of its file
    return {"url": url, "model": name, "extra": extra, "tokens": _TOKENS, "long_prompts": long, "cases": cases}


async def _serve(send: _Send, asked: Sequence[Any], callers: int) -> Seen:
    seen, left = Seen(), iter(enumerate(asked))
    started = time.perf_counter()
    await asyncio.gather(*(_caller(send, left, seen) for _ in range(callers)))
    seen.seconds = time.perf_counter() - started
    return seen


async def _caller(send: _Send, left: Iterator[tuple[int, Any]], seen: Seen) -> None:
    for number, messages in left:
        try:
            await send(number, messages, seen)
        except OpenAIError as error:
            seen.failures[type(error).__name__] += 1


async def _stream(
    client: AsyncOpenAI, model: str, extra: Mapping[str, Any], number: int, messages: Any, seen: Seen
) -> None:
    text, last, first = "", time.perf_counter(), 0.0
    chunks = await client.chat.completions.create(
        model=model, messages=messages, temperature=0.0, max_tokens=_TOKENS, stream=True,
        stream_options={"include_usage": True}, extra_body=extra,
    )  # fmt: skip
    async for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            now = time.perf_counter()
            (seen.gaps if text else seen.first).append(now - last)
            first = first or now - last
            last, text = now, text + chunk.choices[0].delta.content
        if chunk.usage is not None:
            seen.by_prompt.append((chunk.usage.prompt_tokens, first))
            seen.tokens += chunk.usage.completion_tokens
    seen.outputs[number] = text


def figures(runs: list[Seen]) -> dict[str, Any]:
    """Figures of several runs of the same requests: percentiles over all runs, and the median rate."""
    first, gaps = ([value for seen in runs for value in values(seen)] for values in map(attrgetter, ("first", "gaps")))
    return {
        "requests": sum(len(seen.outputs) for seen in runs),
        "failures": dict(sum((seen.failures for seen in runs), Counter[str]())),
        "tokens_per_second": round(median(seen.tokens / seen.seconds for seen in runs), 1),
        "first_token_ms": {"p50": _ms(first, 50), "p99": _ms(first, 99)},
        "inter_token_ms": {"p50": _ms(gaps, 50), "p99": _ms(gaps, 99)},
    }


def first_tokens(runs: list[Seen]) -> dict[str, Any]:
    """Times to the first token by the length of the prompt, in tokens."""
    lengths = {}
    for least, end in pairwise((*_LENGTHS, 1 << 30)):
        times = sorted(time for seen in runs for tokens, time in seen.by_prompt if least <= tokens < end)
        if len(times) > 1:
            worst = round(1e3 * times[-1], 1)
            lengths[f"{least}+"] = {
                "requests": len(times), "p50": _ms(times, 50), "p95": _ms(times, 95), "worst": worst,
            }  # fmt: skip
    return {"first_token_ms_by_prompt": lengths}


def _ms(values: list[float], percent: int) -> float:
    return round(1e3 * quantiles(values, n=100, method="inclusive")[percent - 1], 1)
