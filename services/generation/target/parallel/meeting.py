"""How ranks find each other: in a folder of one host, or by the variables that torchrun sets on several."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from services.generation.target.canonical.program.share import Share
from services.generation.target.errors import RankLost, RanksUnsupported
from services.generation.target.parallel.link import Link, Store

COMING_SECONDS = 600.0  # for all ranks to come: hosts are started one after another
_dist: Any = torch.distributed
_LOOK_SECONDS = 0.05
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Launched:
    """The environment as torchrun, or an operator in its place, sets it: the share, ranks on this host, and the
    address at which all meet.
    """

    share: Share
    on_host: int
    meets_at: str

    @classmethod
    def of(cls, environment: dict[str, str], ranks: int) -> Launched | None:
        """None where nobody has set MASTER_ADDR: then this process starts the others itself.

        Raises RanksUnsupported for a variable that is missing or does not fit `ranks`.
        """
        if "MASTER_ADDR" not in environment:
            return None
        if not environment.get("MASTER_PORT", "").isdecimal():
            raise RanksUnsupported("MASTER_PORT: expected the port at which rank 0 meets the others")
        rank, size = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if size != ranks:
            raise RanksUnsupported(f"WORLD_SIZE is {size}; expected {ranks}, as --tensor-parallel says")
        if rank >= size:
            raise RanksUnsupported(f"RANK is {rank}; expected at most {size - 1}, for WORLD_SIZE is {size}")
        on_host = _number({"LOCAL_WORLD_SIZE": "1"} | environment, "LOCAL_WORLD_SIZE")
        return cls(Share(rank, size), max(1, on_host), environment["MASTER_ADDR"])


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not value.isdecimal():
        raise RanksUnsupported(f"{name} is {value!r}; expected a whole number, for MASTER_ADDR is set")
    return int(value)


def meet_in_folder(folder: Path, share: Share, seconds: float, alive: Callable[[], None] = lambda: None) -> Link:
    """Ranks of one host, over its loopback; the folder is theirs alone. Raises as `_met` does."""
    return _met(_dist.FileStore(str(folder / "ranks"), share.ranks), share, seconds, alive, _LOOPBACK)


def meet_by_environment(share: Share, seconds: float) -> Link:
    """Ranks of several hosts at MASTER_ADDR and MASTER_PORT. Raises as `_met` does."""
    try:
        store, _, _ = next(_dist.rendezvous("env://", timeout=timedelta(seconds=COMING_SECONDS)))
    except (RuntimeError, ValueError) as error:
        raise RankLost(f"no rank 0 at MASTER_ADDR and MASTER_PORT: {error}") from error
    return _met(_dist.PrefixStore("kolm", store), share, seconds, lambda: None, "")


def _met(store: Store, share: Share, seconds: float, alive: Callable[[], None], address: str) -> Link:
    """Wait until all have come, then connect. `alive` raises RankLost where one has ended meanwhile.

    Raises RankLost: not all came.
    """
    names = [f"rank {rank}" for rank in range(share.ranks)]
    end = time.monotonic() + COMING_SECONDS
    store.set(names[share.rank], "here")
    while not store.check(names):
        alive()
        if time.monotonic() > end:
            missing = ", ".join(name for name in names if not store.check([name]))
            raise RankLost(f"{missing} of {share.ranks} did not come within {COMING_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)
    return Link(store, share, seconds=seconds, address=address)
