"""`kolm ledger migrate`: converts the tables of an earlier version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from services.cli.frame import options
from services.cli.frame.exits import UsageError
from services.cli.frame.output import answer
from services.cli.frame.values import database_place
from services.cli.frame.views import Styled, View


def migrate(
    database: options.Database = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only show the steps and their SQL; the ledger may run.")
    ] = False,
    backed_up: Annotated[
        bool, Option("--backed-up", help="Make no copy, because you have one; required for PostgreSQL (pg_dump).")
    ] = False,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Convert a ledger's tables to this version, completely or not at all, with the ledger stopped. An SQLite file is
    copied first, next to it.
    """
    from ledger.sql.migration import migrate as migrated
    from ledger.sql.migration import planned

    place = database_place(database) if database else paths.data_dir / "ledger.sqlite3"
    plan = planned(place)
    done, copy = False, None
    if plan.steps and not dry_run:
        copy = None if backed_up else _backup(place, plan.before)
        plan, done = migrated(place, backup=copy), True
    document: dict[str, Any] = {
        "database": plan.database,
        "before": plan.before,
        "after": plan.after,
        "steps": [{"to": step.to, "kolm": step.kolm, "description": step.words} for step in plan.steps],
        "sql": plan.sql,
        "done": done,
        "backup": None if copy is None else str(copy),
    }
    answer(json, document, _view)


def _backup(place: Path | str, revision: int) -> Path:
    """The path of the copy of a database of this revision. Raises UsageError."""
    text = str(place)
    if text.startswith("postgresql"):
        hint = "copy it first: pg_dump -Fc DATABASE > ledger.dump; then run this again with --backed-up"
        raise UsageError("a PostgreSQL database is not copied by this command", hint)
    file = Path(text.removeprefix("sqlite:///"))
    return file.with_name(f"{file.name}.revision-{revision}")


def _view(document: dict[str, Any]) -> list[View]:
    if not document["steps"]:
        return [f"{document['database']} has the tables of this version (revision {document['after']}): nothing to do"]
    lines: list[View] = [f"to revision {step['to']}: {step['description']}" for step in document["steps"]]
    if not document["done"]:
        nothing = "nothing was changed; run it without --dry-run, with the ledger stopped"
        return [*lines, Styled(document["sql"].strip(), "dim"), Styled(nothing, "yellow")]
    if document["backup"]:
        lines.append(f"the tables as they were: {document['backup']}")
    return [*lines, Styled(f"migrated from revision {document['before']} to {document['after']}", "green")]
