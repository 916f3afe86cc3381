"""The other ranks of a model that several share: each computes its part of rank 0's passes."""

from __future__ import annotations

import numpy as np

from services.generation.target.cpu import CpuTarget
from services.generation.target.parallel import order
from services.generation.target.parallel.agreement import said_by_all
from services.generation.target.parallel.leader import said_of
from services.generation.target.parallel.link import Link
from services.generation.target.parallel.order import Kind


def follow(own: CpuTarget, link: Link) -> None:
    """Do what rank 0 orders until it says stop. Raises RankLost where it, or another rank, is gone."""
    while True:
        kind, arrays = order.take(link)
        if kind is Kind.STOP:
            return
        if kind is Kind.ANSWER:
            said_by_all(link, {})
        elif kind is Kind.FORWARD:
            own.forward(order.rows_of(arrays))
        elif kind is Kind.MOVE:
            own.move(arrays[0].tolist(), arrays[1].tolist())
        elif kind is Kind.EMBED:
            own.embed(arrays[0].astype(np.int64))
        else:
            said_by_all(link, said_of(own.probe_kernels_in(arrays[0].tolist())))
