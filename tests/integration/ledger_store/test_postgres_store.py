"""A ledger in PostgreSQL whose disk is full."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import InternalError

from ledger.audit.log_verification import verify_log
from ledger.errors import NotWritten
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from tests.postgres import running_cluster, url_of
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, signed_receipt

SEGMENT = 16 * 2**20
"""PostgreSQL's write-ahead log has files of this size. No file may be larger here: a table that would grow beyond it
fails as it does on a full disk.
"""

FILL = text(
    "INSERT INTO contents SELECT -number, '', string_agg(sha256((number * 64 + part)::text::bytea), '') "
    "FROM generate_series(1, 18000) number, generate_series(1, 30) part GROUP BY number"
)


@pytest.mark.usefixtures("postgres_cluster")  # which skips where there is no PostgreSQL
def test_a_full_disk_loses_nothing_and_is_over_once_there_is_room(tmp_path: Path) -> None:
    with running_cluster(within=("prlimit", f"--fsize={SEGMENT}")) as folder:
        url = url_of(folder, "postgres")
        with (
            closing(SqlEntryStore.open(url, tmp_path / "keys.db")) as store,
            closing(SqlGuard.open(tmp_path / "guard.db")) as guard,
            closing(Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=guard, probe_seconds=0.01)) as sequencer,
        ):
            sequencer.append(signed_receipt(0), content(0)).result()
            with without_room(url):
                with pytest.raises(NotWritten, match="File too large"):  # a few still fit between those rows
                    [sequencer.append(signed_receipt(number), content(number)).result() for number in range(1, 40)]
                assert sequencer.failure is None
                assert sequencer.append(signed_receipt(0)).result().index == 0  # what is there is still answered
            for number in range(40):
                assert sequencer.append(signed_receipt(number), content(number)).result().index == number
            assert sequencer.takes_entries
            report = verify_log(entries_from(store), store.latest_checkpoint(), TRUSTED, ORIGIN)
            assert report.ok, report.problem
            assert [store.content(number) for number in range(40)] == [content(number) for number in range(40)]


@contextmanager
def without_room(url: str) -> Iterator[None]:
    """Rows of a transaction that has failed for want of room stay where they are, until somebody cleans up."""
    database = create_engine(url, isolation_level="AUTOCOMMIT")
    with database.connect() as connection:
        with pytest.raises(InternalError, match="File too large"):
            connection.execute(FILL)
        yield
        connection.execute(text("VACUUM contents"))
    database.dispose()
