"""What `auto` has learned, kept over restarts: it saves the first requests after one from being the ones that learn."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.kept import from_document, to_document
from services.generation.durable_file import write_durably

_log = logging.getLogger(__name__)
_LONGEST = 1 << 20  # bytes; some kilobytes are usual


class RecordFile:
    """A file that may be lost, and that is read as if anybody had written it. On the event loop."""

    def __init__(self, path: Path, base_cid: str, auto: AutoDrafter) -> None:
        self._path, self._base_cid, self._auto = path, base_cid, auto
        self._kept = b""

    def load(self) -> None:
        """Before the engine starts. A file that is not right is named in the log, and counts as none."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_LONGEST + 1)
            if len(data) > _LONGEST:
                raise ValueError(f"more than {_LONGEST} bytes")
            self._auto.restore(from_document(json.loads(data), self._base_cid))
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("cannot read what auto had learned in %s, learning anew: %s", self._path, error)

    async def keep(self) -> None:
        """Write down what has been learned by now, if anything was learned since the last time."""
        data = json.dumps(to_document(self._base_cid, self._auto.records)).encode()
        if data == self._kept or not self._auto.records:
            return
        try:
            await asyncio.to_thread(write_durably, self._path, data)
            self._kept = data
        except OSError as error:
            _log.error("cannot keep what auto has learned in %s: %s", self._path, error)

    async def keep_up(self, every: float) -> None:
        """For ever, every so many seconds. Run as a task."""
        while True:
            await asyncio.sleep(every)
            await self.keep()
