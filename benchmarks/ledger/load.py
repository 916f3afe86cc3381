"""Measurements of one ledger service: appends by many concurrent clients, inclusion proofs, offline verification."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from statistics import median, quantiles
from typing import Any

import grpc

from benchmarks.ledger.service import LedgerLocation, signed_receipts
from benchmarks.machine import Service
from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from ledger.audit.log_verification import verify_appended, verify_log
from ledger.keys.envelope import Envelope
from ledger.log.store import entries_from
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import verify_inclusion
from services.client.ledger.log_wire import content_message

_MIN_VERIFIED = 50
"""At least so many answers of a run have their proof and signature verified; the indexes of all must differ."""

GROUP, IN_FLIGHT = 64, 12
"""Entries of a streamed request, as in kolm's client, and the most unanswered requests: 768 entries in flight, 77 ms of
work at 10,000 entries a second.
"""

# Every client has a connection of its own, as clients on other machines would.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))

_PROOFS = 400


@dataclass(frozen=True, slots=True)
class Answered:
    """One append: the request, the answer, and the seconds between them."""

    envelope: bytes
    answer: ledger_pb2.AppendEntryResponse
    seconds: float


def measure_unary(location: LedgerLocation, service: Service, clients: int, appends: int) -> dict[str, Any]:
    """Measure AppendEntry with `clients` concurrent callers, each with one call at a time."""
    requests = _requests(location, appends, ledger_pb2.AppendEntryRequest)
    measured = _measure(location, service, requests, lambda: _call_unary(service.address, requests, clients))
    return measured | {"clients": clients}


def measure_streaming(location: LedgerLocation, service: Service, appends: int) -> dict[str, Any]:
    """Measure one AppendEntries stream, with GROUP entries a request and at most IN_FLIGHT unanswered requests."""
    entries = _requests(location, appends, ledger_pb2.NewEntry)
    measured = _measure(location, service, entries, lambda: _call_streaming(service.address, entries))
    return measured | {"entries_of_a_request": GROUP, "requests_in_flight": IN_FLIGHT}


def _requests(location: LedgerLocation, count: int, kind: Any) -> list[Any]:
    """`count` requests, signed before the measurement, because signing is the generation service's work."""
    made = islice(signed_receipts(location.key("receipts")), count)
    return [kind(envelope=envelope, content=content_message(content)) for _, envelope, content in made]


def _measure(location: LedgerLocation, service: Service, requests: Sequence[Any], run: Any) -> dict[str, Any]:
    used, own, started = service.processor_seconds(), time.process_time(), time.perf_counter()
    answered = asyncio.run(run())
    seconds, own = time.perf_counter() - started, time.process_time() - own
    used = service.processor_seconds() - used
    _check(location, requests, answered)
    delays = [each.seconds for each in answered]
    return {
        "appends": len(answered),
        "appends_per_second": round(len(answered) / seconds),
        "median_ms": round(1e3 * median(delays), 2),
        "p99_ms": round(1e3 * quantiles(delays, n=100)[-1], 2),
        "server_ms_per_append": round(1e3 * used / len(answered), 4),
        "client_ms_per_append": round(1e3 * own / len(answered), 4),  # CPU time, as the server's
    }


def _check(location: LedgerLocation, requests: Sequence[Any], answered: Sequence[Answered]) -> None:
    """Raise if an answer is missing, two have one index, or a proof is wrong."""
    if len({each.answer.index for each in answered}) != len(requests):
        raise RuntimeError(f"{len(answered)} answers, expected {len(requests)} with different indexes")
    log = location.trusted().keys("log")
    for each in answered[:: max(1, len(answered) // _MIN_VERIFIED)]:
        proof = tuple(each.answer.inclusion_proof.hashes)
        verify_appended(each.envelope, _entry(each), proof, each.answer.checkpoint, log)


def _entry(each: Answered) -> bytes:
    return Entry(each.answer.index, Envelope.from_bytes(each.envelope)).to_bytes()


async def _call_unary(address: str, requests: Sequence[Any], clients: int) -> list[Answered]:
    waiting = iter(requests)
    done = await asyncio.gather(*(_client(address, waiting) for _ in range(clients)))
    return [answered for each in done for answered in each]


async def _client(address: str, waiting: Iterator[Any]) -> list[Answered]:
    answered = []
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        append = LedgerServiceStub(channel).AppendEntry
        for request in waiting:
            started = time.perf_counter()
            answer = await append(request)
            answered.append(Answered(request.envelope, answer, time.perf_counter() - started))
    return answered


async def _call_streaming(address: str, entries: Sequence[Any]) -> list[Answered]:
    groups = [entries[at : at + GROUP] for at in range(0, len(entries), GROUP)]
    sent: list[float] = []
    room = asyncio.Semaphore(IN_FLIGHT)

    async def send() -> AsyncIterator[Any]:
        for group in groups:
            await room.acquire()
            sent.append(time.perf_counter())
            yield ledger_pb2.AppendEntriesRequest(entries=group)

    answered: list[Answered] = []
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        number = 0
        async for response in LedgerServiceStub(channel).AppendEntries(send()):
            room.release()
            seconds = time.perf_counter() - sent[number]
            for entry, result in zip(groups[number], response.results, strict=True):
                if result.WhichOneof("result") != "appended":
                    raise RuntimeError(f"refused: {result.error.message}")
                answered.append(Answered(entry.envelope, result.appended, seconds))
            number += 1
    return answered


def prove(location: LedgerLocation, service: Service, size: int) -> dict[str, Any]:
    """Measure GetInclusionProof of random entries over gRPC; the first call finds nothing in memory."""
    places = random.Random(7).sample(range(size), min(size, _PROOFS))
    delays = []
    with grpc.insecure_channel(service.address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = LedgerServiceStub(channel)
        stub.GetCheckpoint(ledger_pb2.GetCheckpointRequest())  # connects
        for index in places:
            started = time.perf_counter()
            answer = stub.GetInclusionProof(ledger_pb2.GetInclusionProofRequest(index=index))
            delays.append(1e3 * (time.perf_counter() - started))
            head = open_checkpoint(answer.checkpoint, location.trusted().keys("log"))
            proof = answer.inclusion_proof
            verify_inclusion(answer.leaf_hash, index, proof.tree_size, tuple(proof.hashes), head.root)
    return {
        "first_ms": round(delays[0], 2),
        "median_ms": round(median(delays), 2),
        "p99_ms": round(quantiles(delays, n=100)[-1], 2),
        "greatest_ms": round(max(delays), 2),
    }


def verify(location: LedgerLocation, entries: int) -> dict[str, Any]:
    """Measure offline verification of the first entries, by one process: every hash, link, signature and rule."""
    with closing(SqlEntryStore.open_for_reading(location.database)) as store:
        taken = list(islice(entries_from(store), entries))
    started = time.perf_counter()
    report = verify_log(taken, None, location.trusted())
    seconds = time.perf_counter() - started
    if not report.ok:
        raise RuntimeError(report.problem)
    return {"entries": len(taken), "entries_per_second": round(len(taken) / seconds)}
