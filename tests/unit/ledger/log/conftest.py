"""An empty store and guard, and a sequencer over the store."""

from collections.abc import Iterator

import pytest

from ledger.log.sequencer import Sequencer
from tests.unit.ledger.log.faulty_store import open_sequencer
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard


@pytest.fixture
def store() -> MemoryEntryStore:
    return MemoryEntryStore()


@pytest.fixture
def guard() -> MemoryGuard:
    return MemoryGuard()


@pytest.fixture
def sequencer(store: MemoryEntryStore) -> Iterator[Sequencer]:
    sequencer = open_sequencer(store)
    yield sequencer
    sequencer.close()
