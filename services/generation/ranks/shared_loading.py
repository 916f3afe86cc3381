"""Rank 0's side: brings the other ranks up, loads with them, and watches over them while the model is served."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.generation.ranks.work import Work
from services.generation.ranks.workers import Workers
from services.generation.settings import GenerationSettings
from services.generation.target.canonical.kernels.machine import cpus
from services.generation.target.canonical.program.share import Share
from services.generation.target.errors import RankLost
from services.generation.target.parallel.leader import SharedTarget
from services.generation.target.parallel.link import Link
from services.generation.target.parallel.loading import load_leader
from services.generation.target.parallel.meeting import Launched, meet_by_environment, meet_in_folder

_log = logging.getLogger(__name__)

_ASK_SECONDS = 1.0  # between two answers of idle ranks


class SharedLoading:
    """`LoadTarget` of a base that `--tensor-parallel` ranks share: starts those of this host, or meets those that
    torchrun, or an operator, has started on several. Loads one model.
    """

    def __init__(self, settings: GenerationSettings, launched: Launched | None) -> None:
        self._settings, self._launched = settings, launched
        self._folder = tempfile.TemporaryDirectory(prefix="kolm-ranks-")
        self.workers: Workers | None = None
        self._target: SharedTarget | None = None

    def __call__(
        self,
        directory: Path,
        *,
        context_length: int | None = None,
        cache_tokens: int | None = None,
        cache_bytes: int | None = None,
        adapters: Mapping[str, Path] | None = None,
    ) -> SharedTarget:
        """Seconds, on the calling thread. Raises RankLost, RanksDisagree and other TargetErrors."""
        given = {"context_length": context_length, "cache_tokens": cache_tokens, "cache_bytes": cache_bytes}
        on_host = self._launched.on_host if self._launched else self._settings.tensor_parallel
        options = rank_options(self._settings, on_host) | given
        adapters = adapters or {}
        link = self._meet() if self._launched else self._start(directory, adapters, options)
        try:
            self._target = load_leader(directory, link=link, adapters=adapters, **options)
        except RankLost:
            if self.workers is not None:
                self.workers.check()  # says which one
            raise
        return self._target

    def _meet(self) -> Link:
        return meet_by_environment(Share(0, self._settings.tensor_parallel), self._settings.tensor_parallel_seconds)

    def _start(self, directory: Path, adapters: Mapping[str, Path], options: Mapping[str, Any]) -> Link:
        settings = self._settings
        folder = self._folder.name
        paths = {name: str(path) for name, path in adapters.items()}
        self.workers = Workers(
            [
                Work(
                    model=str(directory),
                    rank=rank,
                    ranks=settings.tensor_parallel,
                    folder=folder,
                    seconds=settings.tensor_parallel_seconds,
                    adapters=paths,
                    options=options,
                    log_level=settings.log_level,
                    log_format=settings.log_format,
                )
                for rank in range(1, settings.tensor_parallel)
            ]
        )
        share = Share(0, settings.tensor_parallel)
        return meet_in_folder(Path(folder), share, settings.tensor_parallel_seconds, self.workers.check)

    def close(self) -> None:
        """Tell the other ranks to stop, and end those of this host."""
        told = self._target is not None and self._target.stop()
        if self.workers is not None:
            self.workers.close(told=told)
        self._folder.cleanup()


def rank_options(settings: GenerationSettings, on_host: int) -> dict[str, Any]:
    """Of `load_target`, for one of so many ranks on a host; context and cache as the settings have them."""
    return {
        "context_length": settings.context_length,
        "cache_tokens": None,
        "cache_bytes": None if settings.cache_bytes is None else int(settings.cache_bytes),
        "cache_dtype": settings.cache_dtype,
        "arithmetic": settings.arithmetic,
        "threads": settings.threads or max(1, cpus() // on_host),
    }


@contextmanager
def watched(target: SharedTarget, on_lost: Callable[[RankLost], None]) -> Iterator[None]:
    """In this block every rank answers each second while none computes; `on_lost` hears, on a thread of its own, of the
    first that does not.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_ASK_SECONDS):
            try:
                target.ask(_ASK_SECONDS)
            except RankLost as error:
                _log.critical("%s", error)
                on_lost(error)
                return

    threading.Thread(target=watch, name="ranks", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
