"""Migration of an earlier version's tables to this version: step by step, in one transaction.

Signed bytes are never changed: steps change columns, indexes and views, and fill them from the entries.
"""

from __future__ import annotations

import io
import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import BigInteger, Column, Connection, Integer, String, update

from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.durable_file import sync_path
from ledger.errors import ChainError, StoreError
from ledger.log.store import receipt_counts
from ledger.sql.connect import connect, connect_for_reading
from ledger.sql.database import Database, run
from ledger.sql.queries import entry_bytes
from ledger.sql.schema import AUDITED_RECEIPTS, check_nothing_missing, fence, revision_of, version
from ledger.tree.entry import Entry

_PAGE = 1000

_RECEIPTS_AFTER = 'SELECT "index", entry FROM leaves WHERE kind = \'receipt\' AND "index" > ? ORDER BY "index" LIMIT ?'
_PUT_COUNTS = (
    "UPDATE receipts SET prompt_tokens = ?, output_tokens = ?, tokens_proposed = ?, tokens_accepted = ?, "
    'target_passes = ? WHERE "index" = ?'
)


@dataclass(frozen=True, slots=True)
class Step:
    """The step from one revision to the next: `change` alters tables, `fill` writes rows that follow from the
    entries.
    """

    to: int
    kolm: str
    words: str
    change: Callable[[Operations], None]
    fill: Callable[[Connection], None]


def _add_counts(ops: Operations) -> None:
    place = BigInteger().with_variant(Integer, "sqlite")
    ops.add_column("ledger_version", Column("kolm", String, nullable=False, server_default="0.1.0"))
    for name in ("prompt_tokens", "output_tokens"):
        ops.add_column("receipts", Column(name, place, nullable=False, server_default="0"))
    for name in ("tokens_proposed", "tokens_accepted", "target_passes"):
        ops.add_column("receipts", Column(name, place))
    ops.execute(AUDITED_RECEIPTS)


def _fill_counts(connection: Connection) -> None:
    last = -1
    while rows := run(connection, _RECEIPTS_AFTER, last, _PAGE).fetchall():
        for index, column in rows:
            receipt = read_document(Entry.from_bytes(entry_bytes(index, column)).envelope)
            if not isinstance(receipt, Receipt):
                raise ChainError(index, "is indexed as a receipt and is not one")
            run(connection, _PUT_COUNTS, *receipt_counts(receipt).values(), index)
        last = rows[-1][0]


STEPS = (
    Step(
        to=10,
        kolm="0.1.0",
        words="receipts get their tokens and drafts as columns, and the view audited_receipts",
        change=_add_counts,
        fill=_fill_counts,
    ),
)
"""By rising revision, without a gap from `schema.OLDEST` on. A released step is never changed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A migration: the revision before it, its steps, and their SQL without the values that `fill` computes."""

    database: str
    before: int
    steps: tuple[Step, ...]
    sql: str

    @property
    def after(self) -> int:
        return self.steps[-1].to if self.steps else self.before


def planned(target: Path | str) -> Plan:
    """The steps to this version's tables; writes nothing, and a ledger may run. Raises NotFound, StoreError."""
    with closing(connect_for_reading(target)) as database, database.reading() as connection:
        return _plan(database, connection)


def migrate(target: Path | str, *, backup: Path | None = None) -> Plan:
    """Take all steps or none. With `backup`, an SQLite file is copied there first.

    Raises StoreLocked while a ledger runs on the database, StoreError, ChainError for an entry that is damaged.
    """
    with closing(connect(target, "ledger")) as database:
        with database.reading() as connection:
            plan = _plan(database, connection)
        if not plan.steps:
            return plan
        if backup is not None:
            _copy(Path(database.name), backup)
        with database.writing() as connection:
            _take(connection, plan)
            check_nothing_missing(connection, database.name)
    return plan


def _plan(database: Database, connection: Connection) -> Plan:
    before = revision_of(connection, database.name)
    steps = tuple(step for step in STEPS if step.to > before)
    return Plan(database.name, before, steps, "".join(_sql(step, connection.dialect.name) for step in steps))


def _sql(step: Step, dialect: str) -> str:
    """The statements of a step, as alembic writes them for a person to read."""
    written = io.StringIO()
    context = MigrationContext.configure(dialect_name=dialect, opts={"as_sql": True, "output_buffer": written})
    step.change(Operations(context))
    return written.getvalue()


def _take(connection: Connection, plan: Plan) -> None:
    operations = Operations(MigrationContext.configure(connection))
    for step in plan.steps:
        step.change(operations)
        step.fill(connection)
        connection.execute(update(version).values(revision=step.to, kolm=step.kolm))
    connection.execute(update(fence).values(epoch=fence.c.epoch + 1))  # earlier writers can never write again


def _copy(database: Path, backup: Path) -> None:
    """Copy an SQLite file: `backup` is complete and on the disk, or not there.

    Raises StoreError if there is a file of that name, or no room.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=backup.parent) as folder:
            draft = Path(folder, backup.name)
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(draft)) as copy:
                source.backup(copy)
            sync_path(draft)
            os.link(draft, backup)
        sync_path(backup.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"cannot copy {database} to {backup}: {error}") from None
