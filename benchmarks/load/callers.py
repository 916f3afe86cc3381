"""Callers of two tenants, each with one streaming request after another, and the processes that they call."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.engines import KINDS, conversations
from benchmarks.machine import Service, resident, serving
from benchmarks.specbench.questions import OWN, load_questions
from services.cli.up.local_services import OWNER, LocalServices, token_file
from services.cli.up.supervisor import Plan
from services.client.errors import KolmError
from services.client.generation.completion import Chunk, Finished
from services.client.generation.request import Message, Request, SamplingParams, SpecDecodeConfig
from services.client.generation.runtime import AsyncRuntime

TENANTS = ("acme", "globex")
_OUTPUTS = (16, 48, 32, 96)  # tokens of the answers, in turn
_TEMPERATURES = (0.0, 0.7, 0.0)
_PROMPTS_OF_KIND = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, with its method if speculation is on."""

    request: Request
    method: str


@dataclass(slots=True)
class Seen:
    """Times in seconds. `outputs`: the text or a digest of the tokens of each request, by its number."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # from the call to the first token
    by_prompt: list[tuple[int, float]] = field(default_factory=list)  # tokens of a prompt, and its first token's time
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


def long_prompts() -> Iterator[list[dict[str, str]]]:
    """Questions of Spec-Bench's six kinds in turn, as messages: prompts of 30 to 1,500 tokens. Texts to summarize and
    passages are several at a time.
    """
    pieces, questions = {"summarization": 11, "rag": 4}, load_questions(OWN)
    for number, turn in enumerate(zip(*questions.values(), strict=True)):
        for question in turn:
            count, others = 1 + number % pieces.get(question.kind, 1), questions[question.kind]
            texts = [others[(number + more) % len(others)].turns[0] for more in range(count)]
            yield [{"role": "user", "content": "\n\n".join(texts)}]


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


@dataclass(frozen=True, slots=True)
class Stack:
    """The addresses of both services, and a caller's token: the owner's, which acts for every tenant."""

    generation: str
    ledger: str
    token: str
    _processes: dict[str, int]

    def resident_mb(self) -> dict[str, float]:
        """Resident memory of each process (Linux)."""
        return {name: round(resident(process) / 2**20, 1) for name, process in self._processes.items()}


@contextmanager
def running(folder: Path, model: str, *flags: str) -> Iterator[Stack]:
    """Both, answering; stopped at the end. `flags` are the generation server's."""
    services = LocalServices(
        folder / "data", Path(model), generation_port=0, ledger_port=0, shared_settings={"log_level": "error"},
    )  # fmt: skip
    services.trust_own_keys()
    with ExitStack() as stack:

        def start(plan: Plan) -> Service:
            command = (plan.module, *plan.flags)
            return stack.enter_context(serving(plan.name, command, plan.ready_file, plan.environment))

        ledger = start(services.ledger())
        generation = start(replace(services.generation(ledger.address), more=flags))
        token = token_file(services.data_dir, OWNER).read_text().strip()
        processes = {"ledger": ledger.process, "generation": generation.process}
        yield Stack(generation.address, ledger.address, token, processes)
