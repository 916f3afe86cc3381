"""The number of a database's tables, and the first version of kolm that knows them, in a table of one row."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, inspect, select

from ledger.errors import StoreError

BESIDE = 1
"""The number of the tables of guards and content keys. Those of before kolm 0.1.0 have none and are the same."""


def version_table(name: str, metadata: MetaData) -> Table:
    """A table of one row with the number, and the oldest kolm that knows it."""
    return Table(
        name,
        metadata,
        Column("revision", Integer, primary_key=True, autoincrement=False),
        Column("kolm", String, nullable=False, server_default="0.1.0"),
    )


def found_revision(connection: Connection, version: Table, known: int, name: str) -> int | None:
    """The number, None where there is none. Raises StoreError for one above `known`; `name` is the database's."""
    there = inspect(connection)
    found = connection.execute(select(version.c.revision)).scalar() if there.has_table(version.name) else None
    if found is not None and found > known:
        columns = {column["name"] for column in there.get_columns(version.name)}
        needed = connection.execute(select(version.c.kolm)).scalar() if "kolm" in columns else None
        use = f"use kolm >= {needed}" if needed else "use a newer kolm"
        raise StoreError(f"{name} has tables of revision {found}, this version knows those up to {known}: {use}")
    return found


def keep_revision(connection: Connection, version: Table, name: str) -> None:
    """Make the tables beside a ledger's log, with their number, where they are missing. Raises StoreError as
    `found_revision` does.
    """
    found = found_revision(connection, version, BESIDE, name)
    version.metadata.create_all(connection)
    if found is None:
        connection.execute(insert(version), {"revision": BESIDE, "kolm": "0.1.0"})
