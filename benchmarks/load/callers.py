"""Callers of two tenants, each with one streaming request after another, and what they see."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.engines import KINDS, conversations
from benchmarks.load.stack import Stack
from services.client import AsyncRuntime, Chunk, Finished, Message, Request, SamplingParams, SpecDecodeConfig
from services.client.errors import KolmError

TENANTS = ("acme", "globex")
_OUTPUTS = (16, 48, 32, 96)  # tokens of the answers, in turn
_TEMPERATURES = (0.0, 0.7, 0.0)
_PROMPTS_OF_KIND = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and the method that it asks for where speculation is on."""

    request: Request
    method: str


@dataclass(slots=True)
class Seen:
    """Times in seconds. `outputs`: the text or a digest of the tokens of each request, by its number."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # from the call to the first token
    gaps: list[float] = field(default_factory=list)  # between two chunks of a stream
    outputs: dict[int, str] = field(default_factory=dict)
    receipts: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)


def requests(count: int, methods: Sequence[str]) -> list[Asked]:
    """Prompts of four kinds, answers of four lengths, three temperatures, the tenants and methods in turn."""
    messages = [[Message(each["role"], each["content"]) for each in conversation] for conversation in prompts()]
    asked = []
    for number in range(count):
        sampling = SamplingParams(
            temperature=_TEMPERATURES[number % 3], seed=number, max_tokens=_OUTPUTS[number % 4], ignore_eos=True
        )
        tenant = TENANTS[number % 2]
        request = Request(messages=messages[number % len(messages)], sampling=sampling, tenant=tenant)
        asked.append(Asked(request, methods[number % len(methods)]))
    return asked


def prompts() -> Iterator[list[dict[str, str]]]:
    """Conversations of four kinds in turn, as messages with role and content."""
    for turn in zip(*(conversations(kind, _PROMPTS_OF_KIND) for kind in KINDS), strict=True):
        yield from turn


async def serve(stack: Stack, asked: Sequence[Asked], callers: int, *, off: bool) -> Seen:
    """All requests, `callers` at a time, each caller on a connection of its own."""
    seen, left = Seen(), iter(enumerate(asked))
    started = time.perf_counter()
    await asyncio.gather(*(_caller(stack, left, seen, off) for _ in range(callers)))
    seen.seconds = time.perf_counter() - started
    return seen


async def _caller(stack: Stack, left: Iterator[tuple[int, Asked]], seen: Seen, off: bool) -> None:
    async with AsyncRuntime.connect(stack.generation, token=stack.token) as runtime:
        for number, each in left:
            try:
                await _stream(runtime, number, each, seen, off)
            except KolmError as error:
                seen.failures[error.reason] += 1


async def _stream(runtime: AsyncRuntime, number: int, each: Asked, seen: Seen, off: bool) -> None:
    config = SpecDecodeConfig(method="off" if off else each.method)
    tokens: list[int] = []
    last = time.perf_counter()
    async with runtime.stream(each.request, spec_decode=config) as events:
        async for event in events:
            if isinstance(event, Chunk) and event.token_ids:
                now = time.perf_counter()
                (seen.gaps if tokens else seen.first).append(now - last)
                last = now
                tokens += event.token_ids
            if isinstance(event, Finished) and event.receipt is not None:
                seen.receipts.add(event.receipt.receipt_id)
    seen.tokens += len(tokens)
    seen.outputs[number] = hashlib.sha256(repr(tokens).encode()).hexdigest()
