"""Loading a model that several ranks share: each reads its part, once all have agreed on what they load."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from services.generation.target.cpu import CpuTarget
from services.generation.target.errors import TargetError
from services.generation.target.identity import base_cid
from services.generation.target.loading import load_target
from services.generation.target.parallel.agreement import agree, said_by_all
from services.generation.target.parallel.follower import follow
from services.generation.target.parallel.leader import SharedTarget
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
    return SharedTarget(*_loaded(directory, link, options))


def load_follower(directory: Path, *, link: Link, **options: Any) -> None:
    """On another rank: load, and follow rank 0 to its end. Raises as `load_leader` does."""
    own, _, _ = _loaded(directory, link, options)
    follow(own, link)


def _loaded(directory: Path, link: Link, options: dict[str, Any]) -> tuple[CpuTarget, Link, list[str]]:
    """This rank's part, the link, and a description of each rank's machine."""
    chosen = {name: value for name, value in options.items() if name not in _OWN}
    agree(link, {"code": code_version(), "base": _base(directory), "ranks": link.share.ranks, "options": chosen})
    own = load_target(directory, peers=link, **options)
    assert isinstance(own, CpuTarget)
    adapters = [adapter.cid for adapter in own.adapters]
    agree(link, {"adapters": adapters, "cache blocks": own.blocks.total, **own.numerics})
    said = said_by_all(link, {"machine": machine_described(), "memory": resident_bytes()})
    resident = ", ".join(f"{int(str(each['memory'])) / 2**20:.0f}" for each in said)
    if link.share.rank == 0:
        _log.info("%d ranks share the model; they take %s MiB of memory", link.share.ranks, resident)
    return own, link, [str(each["machine"]) for each in said]


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
