"""Bringing a database to the tables of this version."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from ledger.errors import StoreError
from ledger.log.content_seal import ContentKeys
from ledger.sql.schema import REVISION

_log = logging.getLogger(__name__)

_SCRIPTS = Path(__file__).parent / "migrations"
_FIRST = "0001"
_OLDER = (_FIRST, "0002", "0003")


def migrate(connection: Connection, name: str, keys: ContentKeys | None = None) -> bool:
    """Create the tables, or bring older ones up to date, in the connection's transaction: all of it or nothing.

    `keys` seal the contents that older versions kept in clear. Returns whether there was anything to do. Raises
    StoreError for a database that a newer version, or something else, has made (`name` is for that message), and for
    contents in clear where there are no keys.
    """
    found = _revision(connection)
    if found == REVISION:
        return False
    if found not in (None, *_OLDER):
        raise _other_schema(found, name)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it announces its own plugins as news
    # Alembic takes a noticeable time to import, and an up-to-date database does not need it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    config.attributes["content_keys"] = keys
    if found == _FIRST:
        command.stamp(config, _FIRST)
    command.upgrade(config, "head")
    if found is not None:
        _log.info("%s is brought from schema %s to %s", name, found, REVISION)
    return True


def check_revision(connection: Connection, name: str) -> None:
    """Raises StoreError unless the tables are those of this version; a reader cannot bring them there."""
    found = _revision(connection)
    if found in _OLDER:
        raise StoreError(f"{name} has the tables of an older version; start the ledger once to bring it up to date")
    if found != REVISION:
        raise _other_schema(found, name)


def is_of_first_release(connection: Connection) -> bool:
    """Whether the tables are those of the first release, which has no table of versions."""
    return _revision(connection) == _FIRST


def _revision(connection: Connection) -> str | None:
    """The migration a database stands at; None for one without tables."""
    if inspect(connection).has_table("alembic_version"):
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return str(found)
    if connection.dialect.name == "sqlite" and (version := connection.exec_driver_sql("PRAGMA user_version").scalar()):
        return _FIRST if version == 1 else f"user_version {version}"
    return None


def _other_schema(found: str | None, name: str) -> StoreError:
    return StoreError(f"{name} is no ledger of schema {REVISION} (it says {found or 'nothing'})")
