"""Answers the lines of a batch, several at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.cli.jobs.batch.lines import BatchLine, read_lines
from services.cli.jobs.batch.results import Results, answered, refused
from services.client import AsyncRuntime, Completion
from services.client.errors import KolmError, ResourceExhausted, Unavailable
from services.http.calls.api_error import ApiError, of_body, of_kolm
from services.http.calls.dialect import Dialect

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds before a request is tried again; each wait is twice as long


@dataclass(frozen=True, slots=True)
class Terms:
    """How a batch is worked on: requests at once, how often one is tried again, seconds for one, receipts as files."""

    concurrency: int
    retries: int
    timeout: float
    receipt_files: bool


@dataclass(slots=True)
class Progress:
    """Counts of the work done by this call."""

    statuses: Counter[int] = field(default_factory=Counter)  # of answers; 0 for lines that are no requests
    completion_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def lines(self) -> int:
        return self.statuses.total()

    @property
    def failed(self) -> int:
        return self.lines - self.statuses[200]


async def work(
    runtime: AsyncRuntime, requests: Path, results: Results, terms: Terms, on_progress: Callable[[Progress], None]
) -> Progress:
    """Answer all lines that have no result yet. Cancelled, it leaves those that are under way without one."""
    progress, lines = Progress(), (line for line in read_lines(requests) if line.key not in results.done)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(terms.concurrency):
                group.create_task(_worker(runtime, lines, results, terms, progress, on_progress))
    except ExceptionGroup as failed:  # no worker raises but where its result cannot be written
        raise failed.exceptions[0] from None
    return progress


async def _worker(
    runtime: AsyncRuntime,
    lines: Iterator[BatchLine],
    results: Results,
    terms: Terms,
    progress: Progress,
    on_progress: Callable[[Progress], None],
) -> None:
    for line in lines:
        result = refused(line, line.invalid) if line.invalid else await _asked(runtime, line, terms, progress)
        results.add(result)
        progress.statuses[result["response"]["status_code"] if result["response"] else 0] += 1
        on_progress(progress)


async def _asked(runtime: AsyncRuntime, line: BatchLine, terms: Terms, progress: Progress) -> dict[str, Any]:
    assert line.dialect is not None
    try:
        dialect = line.dialect()
    except ValidationError as error:
        return _failed(line, of_body(error), "")
    for attempt in range(terms.retries + 1):
        try:
            return await _whole(runtime, line, dialect, terms, progress)
        except (Unavailable, ResourceExhausted) as error:
            if attempt == terms.retries:
                return _failed(line, of_kolm(error, dialect.names), error.request_id)
            await asyncio.sleep(max(error.retry_after or 0.0, min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT)))
        except KolmError as error:
            return _failed(line, of_kolm(error, dialect.names), error.request_id)
    raise AssertionError("unreachable")


def _failed(line: BatchLine, error: ApiError, request_id: str | None) -> dict[str, Any]:
    return answered(line, error.status, request_id or "", error.body())


async def _whole(
    runtime: AsyncRuntime, line: BatchLine, dialect: Dialect, terms: Terms, progress: Progress
) -> dict[str, Any]:
    asked = dialect.request()
    if not asked.request_id and line.custom_id and _is_name(line.custom_id):
        asked = replace(asked, request_id=line.custom_id)  # the receipt has it, and is found by it
    completion = await runtime.serve(asked, spec_decode=dialect.fields.spec_decode(), timeout=terms.timeout)
    _count(progress, completion)
    answer = dialect.answer(asked, completion.resolved, completion.promise, files=terms.receipt_files)
    return answered(line, 200, completion.resolved.request_id, answer.whole(completion))


def _is_name(text: str) -> bool:
    return len(text) <= 128 and text.isascii() and text.isprintable()


def _count(progress: Progress, completion: Completion) -> None:
    progress.completion_tokens += completion.usage.completion_tokens
    progress.draft_tokens += completion.metrics.num_draft_tokens
    progress.accepted_tokens += completion.metrics.num_accepted_tokens
