"""Writes what a ledger of this version leaves on a disk, for later versions to read.

    python -m tests.vectors.make_release tests/vectors/releases/0.1.0.tar.gz

Run once for a release, from its own checkout: the file is then never made again. It holds the folder of a small ledger
on SQLite, the dump of the same log on PostgreSQL (which has to be installed), a bundle of the whole log, and
`expected.json`. Keys and nonces of contents are random, so no two runs write the same bytes.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from ledger.bundle.export import Export, export_bundle
from ledger.bundle.folder import archive
from ledger.documents.signed_document import Document, kind_of
from ledger.sql.schema import REVISION
from ledger.sql.store import SqlEntryStore
from tests.integration.ledger_store.writing import writing
from tests.postgres import running_cluster, url_of
from tests.unit.ledger.builders import (
    KEYS,
    ORIGIN,
    TRUSTED,
    at,
    content,
    draw,
    engine_profile,
    erasure,
    foreign_receipt,
    halt,
    key_entry,
    kscore,
    policy,
    publication,
    receipt,
    resume,
    retention,
    signed,
    verdict,
    withdrawal,
)

DOCUMENTS: tuple[Document, ...] = (
    key_entry("receipts"),
    policy(1.0),
    *(receipt(number, tenant=tenant) for number, tenant in enumerate(("acme", "zeta", "acme", "übung ‮"))),
    verdict(2, 0),
    verdict(3, 1, "DEVIATION"),
    halt(7),
    resume(8),
    engine_profile(),
    foreign_receipt(4),
    publication(),
    kscore(),
    withdrawal(),
    retention(tenant="acme"),
    erasure(4, 2),
    draw(2, bytes(32)),
    receipt(5, halt_epoch=1),
)
_CONTENTS = {2: 0, 3: 1, 4: 2, 5: 3, 11: 4}


def fill(database: Path | str, keys: Path, guard: Path) -> bytes:
    """Append the documents; returns the newest checkpoint."""
    with writing(database, keys, guard) as (_, sequencer):
        for index, document in enumerate(DOCUMENTS):
            number = _CONTENTS.get(index)
            sequencer.append(signed(document), None if number is None else content(number)).result()
    prune(database, keys)
    return sequencer.board.latest().note


def prune(database: Path | str, keys: Path) -> None:
    """Drop the content keys that were made ahead and not taken: random bytes that no file shrinks."""
    url = f"sqlite:///{database}" if isinstance(database, Path) else database
    engine = create_engine(url)
    with engine.connect() as connection:
        used = [bytes(row[0]) for row in connection.execute(text("SELECT key_id FROM contents"))]
    engine.dispose()
    with closing(sqlite3.connect(keys, isolation_level=None)) as kept:
        kept.execute(f"DELETE FROM content_keys WHERE key_id NOT IN ({', '.join('?' * len(used))})", used)
        kept.execute("VACUUM")


def dumped(folder: Path) -> str:
    """The same log in a PostgreSQL of its own, as SQL."""
    with running_cluster() as cluster:
        maintenance = create_engine(url_of(cluster, "postgres"), isolation_level="AUTOCOMMIT")
        with maintenance.connect() as connection:
            connection.execute(text("CREATE DATABASE released"))
        maintenance.dispose()
        fill(url_of(cluster, "released"), folder / "keys-of-postgresql.sqlite3", folder / "guard-of-postgresql.sqlite3")
        command = [
            "pg_dump",
            "-h",
            str(cluster),
            "-U",
            "kolm",
            "--inserts",
            "--no-owner",
            "--no-privileges",
            "released",
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return "".join(line for line in made.splitlines(keepends=True) if not line.startswith(("\\", "--")))


def write(folder: Path) -> None:
    """All files of a release."""
    note = fill(folder / "ledger.sqlite3", folder / "content-keys/keys.sqlite3", folder / "guard.sqlite3")
    for role in KEYS:
        KEYS[role].publish(folder / "trusted")
    with closing(SqlEntryStore.open_for_reading(folder / "ledger.sqlite3")) as store:
        wanted = Export(
            checkpoint=note, start=0, end=len(DOCUMENTS), exported_at=at(900), keys=TRUSTED.by_role, with_content=False
        )
        (folder / "bundle.tar.gz").write_bytes(b"".join(archive(export_bundle(store, wanted))))
    (folder / "postgresql.sql").write_text(dumped(folder), encoding="utf-8")
    expected: dict[str, Any] = {
        "revision": REVISION,
        "origin": ORIGIN,
        "kinds": [kind_of(document) for document in DOCUMENTS],
        "contents": {str(index): number for index, number in _CONTENTS.items()},
        "erased": [4],
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


def main(target: Path) -> None:
    if target.exists():
        raise SystemExit(f"{target} is there: a release is written once")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:gz") as archived:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.name.endswith((".lock", "-shm", "-wal")):
                    archived.add(path, path.relative_to(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
