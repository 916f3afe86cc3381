"""The role of this process under `--tensor-parallel`: rank 0, which serves, or one that follows it.

Ranks are connected by torch.distributed, which no other server imports.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from services.generation.settings import GenerationSettings
from services.generation.target.errors import TargetError
from services.generation.target.target import LoadTarget
from services.runtime.listening import is_loopback
from services.runtime.process import CannotStart

if TYPE_CHECKING:
    from services.generation.target.parallel.meeting import Launched

_log = logging.getLogger(__name__)


def followed(settings: GenerationSettings) -> bool:
    """Whether this process is not rank 0; it has then followed that, on the calling thread, to the end.

    Raises CannotStart.
    """
    rank = _launched(settings)
    if rank is None or rank.share.rank == 0:
        return False
    from services.generation.ranks.following import follow_on_this_host
    from services.generation.ranks.shared_loading import rank_options

    options = rank_options(settings, rank.on_host)
    try:
        follow_on_this_host(rank.share, settings.tensor_parallel_seconds, settings.model, settings.adapters, options)
    except TargetError as error:
        raise CannotStart(f"rank {rank.share.rank} ends: {error}") from error
    return True


@asynccontextmanager
async def base_loader(settings: GenerationSettings) -> AsyncIterator[LoadTarget | None]:
    """A loader of the base for several ranks that share it; they end with this block. Raises CannotStart."""
    if settings.tensor_parallel == 1:
        yield None
        return
    from services.generation.ranks.shared_loading import SharedLoading

    loading = SharedLoading(settings, _launched(settings))
    try:
        yield loading
    finally:
        await asyncio.to_thread(loading.close)


def _launched(settings: GenerationSettings) -> Launched | None:
    if settings.tensor_parallel == 1:
        return None
    from services.generation.target.parallel.meeting import Launched

    try:
        launched = Launched.of(dict(os.environ), settings.tensor_parallel)
    except TargetError as error:
        raise CannotStart(str(error)) from None
    if launched is not None and not is_loopback(launched.meets_at):
        _check_exposed(launched.meets_at, settings)
    return launched


def _check_exposed(address: str, settings: GenerationSettings) -> None:
    """Ranks know no TLS: everybody on their network can read prompts and change tokens."""
    if not settings.insecure:
        raise CannotStart(
            f"MASTER_ADDR: ranks would meet at {address}, beyond this machine, and what they send is neither encrypted "
            "nor authenticated; expected a loopback address, or --insecure on a network that only ranks are on"
        )
    _log.warning("ranks meet at %s without encryption: everybody on that network can read and change it", address)
