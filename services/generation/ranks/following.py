"""A process that is not rank 0: it loads its part, follows, and ends when rank 0 says so or is gone."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from services.generation.ranks.work import Work
from services.generation.target.canonical.program.share import Share
from services.generation.target.errors import TargetError
from services.generation.target.parallel.link import Link
from services.generation.target.parallel.loading import load_follower
from services.generation.target.parallel.meeting import meet_by_environment, meet_in_folder
from services.runtime.logs import say

_log = logging.getLogger(__name__)


def follow_in_folder(work: Work) -> int:
    """A rank that rank 0 started on its host; returns the process's exit code, after a line that says why."""
    adapters = {name: Path(directory) for name, directory in work.adapters.items()}
    try:
        link = meet_in_folder(Path(work.folder), Share(work.rank, work.ranks), work.seconds)
        _follow(link, Path(work.model), adapters, work.options)
    except TargetError as error:
        say(f"rank {work.rank} ends: {error}")
        return 1
    return 0


def follow_on_this_host(
    share: Share, seconds: float, model: Path, adapters: Mapping[str, Path], options: Mapping[str, Any]
) -> None:
    """A rank on a host of its own, until rank 0 stops; a signal ends it at once. Raises TargetError."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _follow(meet_by_environment(share, seconds), model, adapters, options)


def _follow(link: Link, model: Path, adapters: Mapping[str, Path], options: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)  # passes have a team of their own
    _log.info("rank %d of %d loads its part of %s", link.share.rank, link.share.ranks, model)
    load_follower(model, link=link, adapters=adapters, **options)
    _log.info("rank 0 has stopped; so does this rank")
