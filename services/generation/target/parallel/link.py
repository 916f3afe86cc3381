"""The connection of ranks: torch.distributed's gloo, which carries bytes and computes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from services.generation.target.canonical.program.share import Share
from services.generation.target.errors import RankLost

_c10d: Any = dist.distributed_c10d
LOADING_SECONDS = 1800.0  # to hash a large model for the first time takes minutes
Store = Any
"""A torch.distributed.Store."""


class Link:
    """`exchange.Peers` over gloo. Used by one thread at a time; calls return when this rank's part is done.

    The connection is neither encrypted nor authenticated: ranks trust each other and the network between them.
    """

    def __init__(self, store: Store, share: Share, *, seconds: float, address: str = "") -> None:
        """Connect with all other ranks, which have come to the store.

        `seconds`: how long a call waits for another rank, once all are loaded. `address`: of this host, that others
        reach it by; by default what its name resolves to, or the interface that GLOO_SOCKET_IFNAME names.

        Raises RankLost.
        """
        self.share = share
        options = _c10d.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=LOADING_SECONDS)
        options._threads = 1
        with _naming_ranks():
            options._devices = [_device(address)]
            self._group = _c10d.ProcessGroupGloo(store, share.rank, share.ranks, options)
        self._to_all, self._to_first, self._from_first = (
            getattr(_c10d, name)() for name in ("AllgatherOptions", "GatherOptions", "BroadcastOptions")
        )
        self._seconds = seconds
        self._wait(LOADING_SECONDS)
        self._to_first.rootRank = self._from_first.rootRank = self._from_first.rootTensor = 0
        self.sent_bytes = 0  # to other ranks, since the start

    def loaded(self) -> None:
        """From now on calls wait as long as was said; before, a rank may take long to read its part."""
        self._wait(self._seconds)

    def _wait(self, seconds: float) -> None:
        for each in (self._to_all, self._to_first, self._from_first):
            each.timeout = timedelta(seconds=seconds)

    def all_gather(self, part: NDArray[Any], out: NDArray[Any]) -> None:
        self._count(part, self.share.ranks - 1)
        with _naming_ranks():
            self._group._allgather_base(torch.from_numpy(out), torch.from_numpy(part), self._to_all).wait()

    def gather(self, part: NDArray[Any], out: NDArray[Any]) -> None:
        first = self.share.rank == 0
        self._count(part, 0 if first else 1)
        pieces = [list(torch.from_numpy(out).chunk(self.share.ranks))] if first else []
        with _naming_ranks():
            self._group.gather(pieces, [torch.from_numpy(part)], self._to_first).wait()

    def broadcast(self, words: NDArray[np.int32]) -> None:
        """On rank 0 send, on others receive."""
        self._count(words, self.share.ranks - 1 if self.share.rank == 0 else 0)
        with _naming_ranks():
            self._group.broadcast([torch.from_numpy(words)], self._from_first).wait()

    def _count(self, array: NDArray[Any], times: int) -> None:
        self.sent_bytes += times * array.nbytes


def _device(address: str) -> Any:
    gloo, interface = _c10d.ProcessGroupGloo, os.environ.get("GLOO_SOCKET_IFNAME", "")
    if address or interface:
        return gloo.create_device(hostname=address) if address else gloo.create_device(interface=interface)
    return gloo.create_default_device()


@contextmanager
def _naming_ranks() -> Iterator[None]:
    """gloo's errors as RankLost."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("This is typically")[0].rpartition("] ")[2].strip() or str(error)
        raise RankLost(
            f"another rank of the model has ended or does not answer ({reason}); its log says why"
        ) from error
