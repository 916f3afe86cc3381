"""Checks a ledger's database against its guard and the notes that witnesses have cosigned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ledger.errors import StoreDamaged
from ledger.fsck.fsck import fsck
from ledger.fsck.report import Depth, FsckReport, unreadable
from ledger.keys.trusted_keys import TrustedKeys
from ledger.sql.guard import SqlGuard
from ledger.sql.inspection import SqlInspection
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.cosignature_store import newest_signed


def check_database(
    place: Path | str,
    guard: Path | str | None,
    notes: Path,
    keys: TrustedKeys,
    depth: Depth,
    origin: str | None,
    content_keys: Path | str | None = None,
) -> FsckReport:
    """Check a database. `place`, `guard` and `content_keys` are files or URLs. `notes` is a folder of checkpoints.

    Guard and notes are read first: the database of a running ledger may be ahead of them, but never behind.

    Raises NotFound, StoreError.
    """
    newest = newest_signed(notes, keys.keys("log"), origin)
    try:
        guarded = () if guard is None else _guarded(guard)
    except StoreDamaged as damage:
        return unreadable(depth, damage, "guard")
    try:
        inspection = SqlInspection.open(place, content_keys)
    except StoreDamaged as damage:
        return unreadable(depth, damage)
    witnessed = () if newest is None else (newest,)
    with closing(inspection):
        return fsck(inspection, keys, depth, guarded=guarded, witnessed=witnessed, origin=origin)


def _guarded(guard: Path | str) -> Sequence[Checkpoint]:
    with closing(SqlGuard.open_for_reading(guard)) as opened:
        return opened.heads()
