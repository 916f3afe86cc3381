"""The tables of this version: made in an empty database, recognised in another, looked for in a damaged one."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, insert, inspect, select, text

from ledger.errors import StoreDamaged, StoreError
from ledger.sql.database import store_errors
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
_TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
    "WHERE tgenabled IN ('O', 'A') AND relnamespace = current_schema()::regnamespace",
}
"""The names of the triggers that fire, by the name of the dialect."""


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


def missing_objects(connection: Connection) -> Iterator[str]:
    """Tables, columns, indexes and triggers that the ledger makes and that are not there; in words.

    Definitions are not compared: somebody who changes one can change rows as well, which the entries tell. This is for
    a copy that lost something on its way. Raises what the database raises.
    """
    there = inspect(connection)
    for table in metadata.sorted_tables:
        if not there.has_table(table.name):
            yield f"the table {table.name} is missing"
            continue
        columns = {str(column["name"]) for column in there.get_columns(table.name)}
        lost = [column.name for column in table.columns if column.name not in columns]
        yield from (f"the column {name} of {table.name} is missing" for name in lost)
        indexes = {index["name"] for index in there.get_indexes(table.name)}
        yield from (f"the index {index.name} is missing" for index in table.indexes if index.name not in indexes)
    dialect = connection.dialect.name
    triggers = set(connection.execute(text(_TRIGGERS[dialect])).scalars())
    for statement in _SQLITE if dialect == "sqlite" else _POSTGRESQL:
        _, kind, name, *_ = statement.split()
        if kind == "TRIGGER" and name not in triggers:
            yield f"the trigger {name} is missing"


def check_nothing_missing(connection: Connection, name: str) -> None:
    """Raises StoreDamaged for the first object that is missing; `name` is the database's, for the message."""
    with store_errors():
        missing = next(missing_objects(connection), None)
    if missing is not None:
        raise StoreDamaged(
            f"{name}: {missing}; `kolm ledger verify --depth quick` lists what else is, and nothing is written until "
            "all is there"
        )
