"""Brings the database of a service to the tables that this version knows, by alembic."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, inspect, text


class ForeignDatabase(Exception):
    """The database was made by a newer version, or by something else."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """The scripts of a service, the revision that its code knows, and the table with a database's revision."""

    scripts: Path
    revision: str
    version_table: str
    lock: int  # the number of PostgreSQL's lock; the same in every process of the service

    def run(self, connection: Connection) -> None:
        """Create the tables, or bring older ones up to date, in the connection's transaction.

        Raises ForeignDatabase.
        """
        if connection.dialect.name == "postgresql":  # several processes may start at once
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": self.lock})
        found = self._found(connection)
        if found == self.revision:
            return
        if found is not None and found > self.revision:
            raise ForeignDatabase(
                f"its tables are of a newer version, {found}, this is {self.revision}; start a newer kolm"
            )
        logging.getLogger("alembic").setLevel(logging.WARNING)  # else it logs its own plugins
        # Alembic takes a noticeable time to import, and an up-to-date database does not need it.
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(self.scripts))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    def _found(self, connection: Connection) -> str | None:
        if not inspect(connection).has_table(self.version_table):
            return None
        return str(connection.execute(text(f"SELECT version_num FROM {self.version_table}")).scalar())
