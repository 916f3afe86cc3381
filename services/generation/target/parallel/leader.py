"""Rank 0 of a model that several ranks share: a `Target` that tells the others what to compute beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.target.blocks import BLOCK
from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import RankLost
from services.generation.target.parallel import order
from services.generation.target.parallel.agreement import said_by_all
from services.generation.target.parallel.link import Link
from services.generation.target.parallel.order import Kind
from services.generation.target.rows import Rows
from services.generation.target.target import Float32, KernelReport, PassOutput

Int32 = NDArray[np.int32]
_STOP_SECONDS = 5.0
_MOST_FAILURES = 20  # of a rank's probe, that are told of


@dataclass(frozen=True, slots=True)
class Holding:
    """A rank's load: bytes of matrices, bytes of memory that no file backs; and the CPU that it computes on,
    which a kept probe depends on.
    """

    weights: int
    memory: int
    machine: str


class SharedTarget:
    """`Target` of rank 0, whose part of the model is `own`. Its logits are those of the whole model, bit for bit.

    After a rank was lost every call raises RankLost.
    """

    def __init__(self, own: CpuTarget, link: Link, ranks: Sequence[Holding]) -> None:
        self._own, self._link = own, link
        self.config, self.blocks, self.adapters = own.config, own.blocks, own.adapters
        self.base_cid, self.tokenizer_cid = own.base_cid, own.tokenizer_cid
        self.threads, self.numerics = own.threads, own.numerics
        self.ranks, self.machines = tuple(ranks), [rank.machine for rank in ranks]
        self._one_call, self._lost, self._called = threading.Lock(), "", time.monotonic()

    @property
    def weight_bytes(self) -> int:
        """Of this rank's matrices that a pass over one row reads."""
        return self._own.weight_bytes

    @property
    def sent_bytes(self) -> int:
        """From rank 0 to the others, since the start."""
        return self._link.sent_bytes

    @property
    def lost(self) -> str:
        """Why no pass can be computed any more, or nothing."""
        return self._lost

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        """See `Target`."""
        with self._ordered(Kind.FORWARD, *order.arrays_of(rows)):
            return self._own.forward(rows, feature_layers)

    def probe_kernels(self) -> KernelReport:
        """See `Target`: on every rank, of its own part and on its own CPU."""
        table: list[int] = []
        self.blocks.extend(table, BLOCK * min(self._own.blocks_to_probe, self.blocks.free))
        try:
            with self._ordered(Kind.PROBE, np.array(table, np.int32)):
                own = self._own.probe_kernels_in(table)
                reports = said_by_all(self._link, said_of(own))
        finally:
            self.blocks.release(table)
        failures = (f"rank {n}: {failure}" for n, said in enumerate(reports) for failure in said["failures"])
        return KernelReport(sum(said["compared"] for said in reports), tuple(failures))

    def embed(self, tokens: NDArray[np.int64]) -> Float32:
        """See `Target`."""
        with self._ordered(Kind.EMBED, tokens.astype(np.int32)):
            return self._own.embed(tokens)

    def move(self, sources: list[int], targets: list[int]) -> None:
        """See `Target`."""
        with self._ordered(Kind.MOVE, np.array(sources, np.int32), np.array(targets, np.int32)):
            self._own.move(sources, targets)

    def ask(self, idle: float) -> None:
        """Have every rank answer, where nothing was computed for `idle` seconds; from any thread. Raises RankLost."""
        if time.monotonic() - self._called > idle:
            with self._ordered(Kind.ANSWER):
                said_by_all(self._link, {})

    def stop(self) -> bool:
        """Let the other ranks end, and say whether they could be told."""
        if not self._one_call.acquire(timeout=_STOP_SECONDS):
            return False  # a call waits for a rank that does not answer
        try:
            if self._lost:
                return False
            self._lost = "the model has been given up"
            order.give(self._link, Kind.STOP)
            return True
        except RankLost:
            return False
        finally:
            self._one_call.release()

    @contextmanager
    def _ordered(self, kind: Kind, *arrays: Int32) -> Iterator[None]:
        with self._one_call:
            if self._lost:
                raise RankLost(self._lost)
            try:
                order.give(self._link, kind, arrays)
                yield
            except BaseException as error:  # the others may be in the middle of an order
                self._lost = str(error) or repr(error)
                raise
            self._called = time.monotonic()


def said_of(report: KernelReport) -> dict[str, object]:
    """A report as a rank says it; of many failures the first."""
    return {"compared": report.compared, "failures": report.failures[:_MOST_FAILURES]}
