"""A SQL ledger that is written to."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

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


@contextmanager
def database(target: Path | str, **options: Any) -> Iterator[Engine]:
    """The tables past the store; `options` go to `create_engine`."""
    engine = create_engine(f"sqlite:///{target}" if isinstance(target, Path) else target, **options)
    try:
        yield engine
    finally:
        engine.dispose()


def execute(target: Path | str, *statements: str) -> None:
    with database(target) as engine, engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def lose_the_lock(target: Path | str) -> None:
    """A file system without locks; a connection that broke and was made again."""
    if isinstance(target, Path):
        target.with_name(target.name + ".lock").unlink()
        return
    holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = " + (
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    ended = text(f"SELECT bool_and(pg_terminate_backend(pid, 5000)) FROM ({holders}) h")
    with database(target, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
        assert connection.execute(ended).scalar()
