"""`kolm ledger fsck`: does a ledger's database agree with itself, with its guard and with what was signed?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import exits, options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ledger.fsck.report import Depth, FsckReport
    from ledger.keys.trusted_keys import TrustedKeys
    from ledger.tree.checkpoint import Checkpoint

GuardPlace = Annotated[
    str | None, typer.Option("--guard", metavar="FILE|URL", help="The guard. Default: guard.sqlite3 beside the file.")
]


_UNGUARDED = (
    "that this is no old backup was not checked. Name it with --guard; a ledger service with entries and no guard "
    "does not start without --new-guard"
)


def fsck(
    quick: Annotated[bool, typer.Option("--quick", help="Head, tiles and guard agree. The same time always.")] = False,
    structure: Annotated[
        bool, typer.Option("--structure", help="Also chain, tiles, index rows and checkpoints (the default).")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also every signature, every content, the file.")] = False,
    database: options.Database = None,
    guard: GuardPlace = None,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    origin: Annotated[str | None, typer.Option(help="Expect this name of the log in its checkpoints.")] = None,
    json: options.Json = False,
) -> None:
    """Check a ledger's database, stopped or running; changes nothing. Exit code 3, and which rows, if it is wrong."""
    from services.cli.jobs.trust import load_trusted, trusted_directory
    from services.cli.output import data, print_json, talk

    if quick + structure + deep > 1:
        raise exits.UsageError("--quick, --structure and --deep: name one of them")
    place = options.database_place(database) if database else data_dir / "ledger.sqlite3"
    folder = place.parent if isinstance(place, Path) else data_dir
    keys = load_trusted(trusted_directory(trusted, folder if (folder / "trusted").is_dir() else data_dir))
    guard_place = _guard_place(guard, folder)
    report = _report(place, guard_place, folder / "witnessed", keys, _depth(quick, deep), origin)
    if json:
        print_json(_as_json(report, guarded=guard_place is not None))
    else:
        data().print(_as_text(report), soft_wrap=True)
    if guard_place is None and report.size:
        talk().print(f"[yellow]no guard[/] at {folder / 'guard.sqlite3'}: {_UNGUARDED}", soft_wrap=True)
    raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)


def _report(
    place: Path | str, guard: Path | str | None, notes: Path, keys: TrustedKeys, depth: Depth, origin: str | None
) -> FsckReport:
    from ledger.errors import StoreDamaged
    from ledger.fsck.fsck import fsck
    from ledger.fsck.report import unreadable
    from ledger.sql.inspection import SqlInspection
    from ledger.witness.cosignature_store import newest_signed

    # These first: of a ledger that is running meanwhile, the database may be ahead of them and never behind.
    newest = newest_signed(notes, keys.keys("log"), origin)
    try:
        guarded = () if guard is None else _guarded(guard)
    except StoreDamaged as damage:
        return unreadable(depth, damage, "guard")
    try:
        inspection = SqlInspection.open(place)
    except StoreDamaged as damage:
        return unreadable(depth, damage)
    witnessed = () if newest is None else (newest,)
    with closing(inspection):
        return fsck(inspection, keys, depth, guarded=guarded, witnessed=witnessed, origin=origin)


def _guarded(guard: Path | str) -> Sequence[Checkpoint]:
    from ledger.sql.guard import SqlGuard

    with closing(SqlGuard.open_for_reading(guard)) as opened:
        return opened.heads()


def _guard_place(guard: str | None, folder: Path) -> Path | str | None:
    """What was named, else the file where the ledger service keeps it, if it is there."""
    if guard is not None:
        return options.database_place(guard)
    return folder / "guard.sqlite3" if (folder / "guard.sqlite3").is_file() else None


def _depth(quick: bool, deep: bool) -> Depth:
    from ledger.fsck.report import Depth

    return Depth.QUICK if quick else Depth.DEEP if deep else Depth.STRUCTURE


def _as_json(report: FsckReport, *, guarded: bool) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "depth": report.depth.name.lower(),
        "size": report.size,
        "unsigned": report.unsigned,
        "guarded": guarded,
        "findings": [asdict(finding) for finding in report.findings],
    }


def _as_text(report: FsckReport) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    looked = f"{report.size} entries, {report.depth.name.lower()} check"
    if report.unsigned:
        looked += f"; {report.unsigned} not signed yet, which the next start does"
    end = Text("nothing wrong", "green") if report.ok else Text(f"{len(report.findings)} wrong", "bold red")
    return Group(*(Text(str(finding), "red") for finding in report.findings), Text(looked), end)
