"""Loading a model that several ranks share: each reads its part, once all have agreed on what they load."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import TargetError
from services.generation.target.folders.identity import base_cid
from services.generation.target.loading import load_target
from services.generation.target.parallel.agreement import agree, said_by_all
from services.generation.target.parallel.follower import follow
from services.generation.target.parallel.leader import Holding, SharedTarget
from services.generation.target.parallel.link import Link
from services.generation.target.probing.kept_probes import code_version, machine_described

_log = logging.getLogger(__name__)
_OWN = ("threads", "adapters")  # options in which ranks may differ: the paths of adapters are a host's own


def load_leader(directory: Path, *, link: Link, **options: Any) -> SharedTarget:
    """On rank 0; the options are those of `load_target` on the CPU.

    Raises:
        RanksDisagree: ranks were started with other models, versions or options.
        RankLost: another rank has ended.
        TargetError: as `load_target` does.
    """
    own = _loaded(directory, link, options)
    ranks = [Holding(**said) for said in said_by_all(link, asdict(holding(own)))]
    for number, rank in enumerate(ranks):
        _log.info(
            "rank %d of %d holds %.1f MiB of weights and takes %.0f MiB of memory",
            number, len(ranks), rank.weights / 2**20, rank.memory / 2**20,
        )  # fmt: skip
    link.loaded()
    return SharedTarget(own, link, ranks)


def load_follower(directory: Path, *, link: Link, **options: Any) -> None:
    """On another rank: load, and follow rank 0 to its end. Raises as `load_leader` does."""
    own = _loaded(directory, link, options)
    said_by_all(link, asdict(holding(own)))
    link.loaded()
    follow(own, link)


def _loaded(directory: Path, link: Link, options: dict[str, Any]) -> CpuTarget:
    """This rank's part."""
    chosen = {name: value for name, value in options.items() if name not in _OWN}
    agree(link, {"code": code_version(), "base": _base(directory), "ranks": link.share.ranks, "options": chosen})
    own = load_target(directory, peers=link, **options)
    assert isinstance(own, CpuTarget)
    adapters = [adapter.cid for adapter in own.adapters]
    agree(link, {"adapters": adapters, "cache blocks": own.blocks.total, **own.numerics})
    return own


def holding(own: CpuTarget) -> Holding:
    return Holding(own.held_bytes, resident_bytes(), machine_described())


def _base(directory: Path) -> str:
    """The base's identifier, or why there is none: every rank is to hear of it."""
    try:
        return base_cid(directory)
    except (TargetError, OSError) as error:
        return f"none ({error})"


def resident_bytes() -> int:
    """Memory of this process that no file backs; 0 where the system does not tell."""
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
