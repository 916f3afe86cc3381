"""The revision of a database's tables, and the first version of kolm that knows it, in a table of one row."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, inspect, select

from ledger.errors import OtherRevision

GUARD_AND_KEYS = 1
"""The revision of the tables of guards and content keys. Kolm 0.1.0 made the same tables without a number."""


def version_table(name: str, metadata: MetaData) -> Table:
    """A table of one row: the revision, and the oldest kolm that knows it."""
    return Table(
        name,
        metadata,
        Column("revision", Integer, primary_key=True, autoincrement=False),
        Column("kolm", String, nullable=False, server_default="0.1.0"),
    )


def found_revision(connection: Connection, version: Table, newest: int, name: str) -> int | None:
    """The revision of the tables, None for tables without a number.

    `name` is the database's, for messages. Raises OtherRevision for a revision above `newest`.
    """
    there = inspect(connection)
    found = connection.execute(select(version.c.revision)).scalar() if there.has_table(version.name) else None
    if found is not None and found > newest:
        columns = {column["name"] for column in there.get_columns(version.name)}
        needs = connection.execute(select(version.c.kolm)).scalar() if "kolm" in columns else None
        use = f"use kolm >= {needs}" if needs else "use a newer kolm"
        raise OtherRevision(name, found, f"this version knows revisions up to {newest}; {use}", needs)
    return found


def check_guard_or_keys(connection: Connection, version: Table, name: str) -> int | None:
    """The revision of a guard's or of content keys' tables, None for the unnumbered ones of kolm 0.1.0.

    There is one revision, so nothing is migrated. Raises OtherRevision for every other one.
    """
    found = found_revision(connection, version, GUARD_AND_KEYS, name)
    if found is not None and found < GUARD_AND_KEYS:
        raise OtherRevision(name, found, f"revision {GUARD_AND_KEYS} was the first; bring the database back")
    return found


def make_guard_or_keys(connection: Connection, version: Table, name: str) -> None:
    """Make the tables of a guard or of content keys, and number them, if they are missing. Raises OtherRevision."""
    found = check_guard_or_keys(connection, version, name)
    version.metadata.create_all(connection)
    if found is None:
        connection.execute(insert(version), {"revision": GUARD_AND_KEYS, "kolm": "0.1.0"})
