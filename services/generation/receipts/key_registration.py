"""Enters the receipts key in the ledger."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kolm.ledger.v1 import ledger_pb2
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import sign_document
from ledger.encoding.timestamp import timestamp
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from services.generation.durable_file import write_durably
from services.generation.ledger_link import LedgerLink, LedgerRefused, LedgerUnreachable
from services.generation.receipts.outbox import Outbox

_log = logging.getLogger(__name__)


class StateTaken(Exception):
    """Every folder that this server might have is another one's."""

    def __init__(self, folder: Path, replicas: int) -> None:
        who = "another server has it" if replicas == 1 else f"{replicas} servers share it already"
        super().__init__(f"--state-dir: {folder}: {who}; give this one its own, or share one by a larger --replicas")


@contextmanager
def state_folder(folder: Path, replicas: int) -> Iterator[Path]:
    """The folder of this server: `folder` itself, or of several `replicas` the first numbered one in it that is free.

    A replica that takes the place of another finds what that one left. The lock ends with the process, however it
    ends. Raises StateTaken, OSError.
    """
    for candidate in (folder,) if replicas == 1 else (folder / str(number) for number in range(replicas)):
        candidate.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(candidate / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield candidate
        finally:
            os.close(descriptor)
        return
    raise StateTaken(folder, replicas)


_UNREACHABLE_PAUSE = 1.0  # seconds
_REFUSED_PAUSE = 5.0  # an operator has to act meanwhile


def key_envelope(path: Path, key: Signer) -> bytes:
    """The signed key entry, made once for each key and kept at `path`: the same bytes get the same index every time."""
    if not path.exists() or key.public.to_base64().encode() not in Envelope.from_bytes(path.read_bytes()).payload:
        entry = KeyEntry(key.role, key.public, timestamp(datetime.now(UTC)))
        write_durably(path, sign_document(entry, key).to_bytes())
    return path.read_bytes()


async def register_key(envelope: bytes, key: Signer, ledger: LedgerLink, outbox: Outbox) -> None:
    """Append the key entry, trying until it works; then send the receipts that were refused before."""
    refused = False
    while True:
        try:
            await ledger.append(ledger_pb2.AppendEntryRequest(envelope=envelope))
        except LedgerUnreachable:
            await asyncio.sleep(_UNREACHABLE_PAUSE)
        except LedgerRefused as error:
            if not refused:
                _log.error(
                    "the ledger does not take the key %s; have it added to its trusted keys (`kolm trust add`): %s",
                    key.key_id,
                    error,
                )
            refused = True
            await asyncio.sleep(_REFUSED_PAUSE)
        else:
            break
    if refused:
        _log.info("the ledger takes the key %s now", key.key_id)
        outbox.retry_refused()
