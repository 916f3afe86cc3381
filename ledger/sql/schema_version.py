"""The tables of this version: made in an empty database, recognised in another."""

from __future__ import annotations

from sqlalchemy import Connection, insert, inspect, select, text

from ledger.errors import StoreError
from ledger.sql.schema import REVISION, fence, metadata, version

_SQLITE = (
    *(
        f"CREATE TRIGGER {table}_refuse_{action.lower()} BEFORE {action} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        for table in ("leaves", "checkpoints")
        for action in ("UPDATE", "DELETE")
    ),
    # REPLACE deletes without firing a DELETE trigger, so a row that is in the way has to be refused at the INSERT.
    "CREATE TRIGGER leaves_refuse_replace BEFORE INSERT ON leaves "
    'WHEN NEW."index" <> (SELECT coalesce(max("index"), -1) + 1 FROM leaves) '
    "OR EXISTS (SELECT 1 FROM leaves WHERE envelope_digest = NEW.envelope_digest) "
    "BEGIN SELECT RAISE(ABORT, 'entries are appended in order, each once'); END",
    "CREATE TRIGGER checkpoints_refuse_replace BEFORE INSERT ON checkpoints "
    "WHEN EXISTS (SELECT 1 FROM checkpoints WHERE size = NEW.size) "
    "BEGIN SELECT RAISE(ABORT, 'checkpoints is append-only'); END",
)
_POSTGRESQL = (
    "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$",
    *(
        f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        for table in ("leaves", "checkpoints")
    ),
)


def make_tables(connection: Connection, name: str) -> None:
    """Make the tables in a database that has none of them, in the connection's transaction: all of it or nothing.

    Raises StoreError for a database of another version (`name` is for that message).
    """
    there = inspect(connection)
    if any(there.has_table(table) for table in metadata.tables):
        return check_revision(connection, name)
    metadata.create_all(connection)
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.execute(text(statement))
    connection.execute(insert(version), {"revision": REVISION})
    connection.execute(insert(fence), {"id": 0, "epoch": 0})


def check_revision(connection: Connection, name: str) -> None:
    """Raises StoreError unless the tables are those of this version."""
    found = None
    if inspect(connection).has_table(version.name):
        found = connection.execute(select(version.c.revision)).scalar()
    if found != REVISION:
        raise StoreError(f"{name} is not a ledger of schema {REVISION} (it says {found or 'nothing'})")
