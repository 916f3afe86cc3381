"""Times to make and to check a proof in a log of some size."""

from __future__ import annotations

import random
import time
from contextlib import closing
from itertools import islice
from statistics import median, quantiles
from typing import Any

import grpc

from benchmarks.ledger.service import LedgerLocation, Service
from kolm.ledger.v1 import ledger_pb2
from kolm.ledger.v1.ledger_pb2_grpc import LedgerServiceStub
from ledger.audit.log_verification import verify_log
from ledger.log.store import entries_from
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.merkle import verify_inclusion

_PROOFS = 400


def prove(location: LedgerLocation, service: Service, size: int) -> dict[str, Any]:
    """GetInclusionProof of entries all over the log, over the wire; the first one finds nothing in memory."""
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
    """Offline verification of the first entries: every hash, link, signature and rule. One process."""
    with closing(SqlEntryStore.open_for_reading(location.database)) as store:
        taken = list(islice(entries_from(store), entries))
    started = time.perf_counter()
    report = verify_log(taken, None, location.trusted())
    seconds = time.perf_counter() - started
    if not report.ok:
        raise RuntimeError(report.problem)
    return {"entries": len(taken), "entries_per_second": round(len(taken) / seconds)}
