"""Is a database's schema the one that the ledger makes? Tables, indexes, and the triggers that refuse changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, Table, create_engine, inspect, text
from sqlalchemy.types import TypeEngine

from ledger.errors import StoreDamaged
from ledger.sql.database import store_errors
from ledger.sql.schema import metadata
from ledger.sql.schema_version import make_tables

_APPEND_ONLY = ("leaves", "checkpoints")
_REFUSAL = "BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END"
_BEFORE_ANY_CHANGE = 2 + 8 + 16 + 32
"""`pg_trigger.tgtype`: before, for each statement, on DELETE, UPDATE and TRUNCATE."""


def differences(connection: Connection) -> Iterator[str]:
    """Missing objects, objects that differ and, on SQLite, objects that should not be there; in words.

    Raises what the database raises.
    """
    if connection.dialect.name == "sqlite":
        yield from _compared(_sqlite_objects(connection), _made_on_sqlite())
    else:
        yield from _postgres_tables(connection)
        yield from _postgres_triggers(connection)


def check_schema(connection: Connection, name: str) -> None:
    """Raises StoreDamaged for the first difference; `name` is the database's, for the message."""
    with store_errors():
        wrong = next(differences(connection), None)
    if wrong is not None:
        raise StoreDamaged(
            f"{name}: {wrong}; `kolm ledger verify --depth quick` lists what else is not as the ledger made it, and "
            "nothing is written until it is"
        )


def _compared(found: Mapping[str, str], made: Mapping[str, str]) -> Iterator[str]:
    for name, definition in made.items():
        if name not in found:
            yield f"the {name} is missing"
        elif found[name] != definition:
            yield f"the {name} is not the one that the ledger makes"
    yield from (f"the {name} is none that the ledger makes" for name in found if name not in made)


@cache
def _made_on_sqlite() -> Mapping[str, str]:
    """The objects that `make_tables` makes in an empty database."""
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            make_tables(connection, "a new ledger")
            return _sqlite_objects(connection)
    finally:
        engine.dispose()


def _sqlite_objects(connection: Connection) -> Mapping[str, str]:
    """The statement that made each object, by its kind and name. SQLite's own begin with `sqlite_`."""
    rows = connection.exec_driver_sql("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").all()
    return {
        f"{kind} {name}": f"{table}: {' '.join((sql or '').split())}"
        for kind, name, table, sql in rows
        if not str(name).startswith("sqlite_")
    }


def _postgres_tables(connection: Connection) -> Iterator[str]:
    """Tables of others may stand beside the ledger's."""
    there = inspect(connection)
    for table in metadata.sorted_tables:
        if not there.has_table(table.name):
            yield f"the table {table.name} is missing"
            continue
        columns = {str(column["name"]): _column(column["type"], connection) for column in there.get_columns(table.name)}
        for name, kind in _columns(table, connection).items():
            if columns.get(name) != kind:
                yield f"the column {name} of {table.name} is {columns.get(name, 'missing')}, not {kind}"
        indexes = {index["name"] for index in there.get_indexes(table.name)}
        yield from (f"the index {index.name} is missing" for index in table.indexes if index.name not in indexes)


def _columns(table: Table, connection: Connection) -> Mapping[str, str]:
    return {column.name: _column(column.type, connection) for column in table.columns}


def _column(kind: TypeEngine[Any], connection: Connection) -> str:
    return kind.compile(connection.dialect)


def _postgres_triggers(connection: Connection) -> Iterator[str]:
    statement = text(
        "SELECT relname, tgname, tgenabled::text, tgtype, tgqual, tgattr::text, prosrc FROM pg_trigger "
        "JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid "
        "WHERE NOT tgisinternal AND relnamespace = current_schema()::regnamespace"
    )
    found = {(row.relname, row.tgname): row for row in connection.execute(statement)}
    ours = {table.name for table in metadata.sorted_tables}
    for table in _APPEND_ONLY:
        row = found.pop((table, f"{table}_refuse_change"), None)
        if row is None:
            yield f"the trigger {table}_refuse_change is missing"
        elif not _refuses_every_change(row):
            yield f"the trigger {table}_refuse_change is not the one that the ledger makes"
    yield from (f"the trigger {name} is none that the ledger makes" for table, name in found if table in ours)


def _refuses_every_change(trigger: Row[Any]) -> bool:
    always = trigger.tgenabled in ("O", "A") and trigger.tgqual is None and not trigger.tgattr
    return bool(always and trigger.tgtype == _BEFORE_ANY_CHANGE and trigger.prosrc.strip() == _REFUSAL)
