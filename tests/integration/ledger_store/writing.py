"""A SQL ledger that is written to."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.sequencer import Sequencer
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED
from tests.unit.ledger.log.memory_store import MemoryGuard


@contextmanager
def writing(
    target: Path | str, keys: Path | None = None, guard: Path | None = None, key: SigningKey = KEYS["log"],
    trusted: TrustedKeys = TRUSTED, **options: Any,
) -> Iterator[tuple[SqlEntryStore, Sequencer]]:  # fmt: skip
    """A store and its sequencer; without a file for the guard, its heads are in memory."""
    with (
        closing(SqlEntryStore.open(target, keys)) as store,
        closing(SqlGuard.open(guard) if guard else MemoryGuard()) as watch,
        closing(Sequencer(store, key, trusted, ORIGIN, guard=watch, **options)) as sequencer,
    ):
        yield store, sequencer
