"""Bringing a catalogue's database to the tables that this version knows."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from services.registry.sql.schema import REVISION, VERSION_TABLE

_SCRIPTS = Path(__file__).parent / "migrations"


class ForeignDatabase(Exception):
    """The database was made by a newer version, or by something else."""


def migrate(connection: Connection) -> None:
    """Create the tables, or bring older ones up to date, in the connection's transaction. Raises ForeignDatabase."""
    if connection.dialect.name == "postgresql":  # several registries may start at once
        connection.execute(text("SELECT pg_advisory_xact_lock(7306001)"))
    found = _revision(connection)
    if found == REVISION:
        return
    if found is not None and found > REVISION:
        raise ForeignDatabase(f"it has the tables of version {found}, this is {REVISION}: start a newer kolm")
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it announces its own plugins as news
    # Alembic takes a noticeable time to import, and an up-to-date database does not need it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return str(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar())
