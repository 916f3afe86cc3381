"""The revision of a database's tables, and the first version of kolm that knows it, in a table of one row."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, inspect, select

from ledger.errors import OtherRevision, StoreError

GUARD_AND_KEYS = 1
"""The revision of the tables of guards and content keys."""


def version_table(name: str, metadata: MetaData) -> Table:
    """A table of one row: the revision, and the oldest kolm that knows it."""
    return Table(
        name,
        metadata,
        Column("revision", Integer, primary_key=True, autoincrement=False),
        Column("kolm", String, nullable=False, server_default="0.1.0"),
    )


def check_version(connection: Connection, version: Table, expected: int, name: str) -> None:
    """Raises OtherRevision for tables of another revision, StoreError for tables without one. `name` is the database's,
    for messages.
    """
    there = inspect(connection).has_table(version.name)
    found = connection.execute(select(version.c.revision)).scalar() if there else None
    if found is None:
        raise StoreError(
            f"{name} has no revision of its tables in {version.name}: it is another program's or from before the first "
            "release; use another database"
        )
    if found > expected:
        needs = str(connection.execute(select(version.c.kolm)).scalar_one())
        raise OtherRevision(name, found, f"this version opens revision {expected}; use kolm >= {needs}", needs)
    if found < expected:
        raise OtherRevision(
            name,
            found,
            f"they are from before the first release; this version opens revision {expected}. Read them with the kolm "
            "that made them, and begin a new log in an empty folder or database",
        )


def make_guard_or_keys(connection: Connection, version: Table, name: str) -> None:
    """Make the tables of a guard or of content keys, and number them, if the database has none of them; otherwise
    check their revision. Raises OtherRevision, StoreError.
    """
    if version.metadata.tables.keys().isdisjoint(inspect(connection).get_table_names()):
        version.metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(version), {"revision": GUARD_AND_KEYS, "kolm": "0.1.0"})
    else:
        check_version(connection, version, GUARD_AND_KEYS, name)
