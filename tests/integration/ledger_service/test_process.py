"""`python -m services.ledger` as a process: first start, restart, refusals."""

import signal
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.client.errors import KolmError, Unavailable
from services.client.ledger.ledger import LedgerClient
from tests.access import open_access_file
from tests.forked import Forked
from tests.unit.ledger.builders import KEYS, content, receipt_id, retention, signed, signed_receipt

PATIENCE = 240.0
"""Seconds that anything may take on a busy machine; only a test that fails gets there."""


def _started(data: Path, *flags: str) -> Forked:
    where = ("--listen", "127.0.0.1:0", "--data-dir", str(data), "--principals", str(open_access_file()))
    return Forked("services.ledger", *where, *flags)


@contextmanager
def _ledger(data: Path, *flags: str) -> Iterator[tuple[Forked, LedgerClient]]:
    with _started(data, *flags) as process:
        line = process.stderr.readline()
        assert line.startswith("ledger listening on ")
        with LedgerClient.connect(line.split()[-1], wait=PATIENCE) as client:
            yield process, client


def _refusal(data: Path, *flags: str) -> tuple[int, str]:
    with _started(data, *flags) as process:
        _, errors = process.communicate(PATIENCE)
        assert "Traceback" not in errors
        return process.wait() or 0, errors


def test_a_first_start_makes_a_private_key_and_publishes_its_public_half(tmp_path: Path) -> None:
    with _ledger(tmp_path) as (_, client):
        assert client.checkpoint().tree_size == 0
    assert stat.S_IMODE((tmp_path / "keys" / "log.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert len(list((tmp_path / "public").glob("log-*.pub"))) == 1
    assert (tmp_path / "public" / "log.vkey").read_bytes() == (tmp_path / "log.vkey").read_bytes()
    assert list((tmp_path / "trusted").iterdir()) == []  # a person puts it there


def test_the_process_erases_what_a_policy_ends(tmp_path: Path) -> None:
    with _ledger(tmp_path, "--retention-seconds", "0.1") as (_, client):
        for role in ("receipts", "operator"):
            KEYS[role].publish(tmp_path / "trusted")
        client.append(signed_receipt(0), content(0))
        with LedgerClient.connect(client.connection.target) as operator:
            operator.append(signed(retention(30)))
        with client.watch(2, follow=True, kinds=("expiry",)) as entries:
            assert next(iter(entries)).index == 2
        shown = client.receipt(receipt_id(0))
        assert (shown.content_state, shown.erasure_index) == ("ERASED", 2)


def test_a_restart_goes_on_where_the_log_ended_under_the_same_key(tmp_path: Path) -> None:
    with _ledger(tmp_path) as (process, client):
        KEYS["receipts"].publish(tmp_path / "trusted")
        client.append(signed_receipt(0))
        note = client.checkpoint().note
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    with _ledger(tmp_path) as (_, client):
        assert client.checkpoint().note == note
        assert client.append(signed_receipt(1)).index == 1


def test_the_log_and_its_guard_may_live_in_postgresql(tmp_path: Path, postgres_url: str) -> None:
    flags = ("--database-url", postgres_url, "--guard-url", postgres_url)
    with _ledger(tmp_path, *flags) as (process, client):
        KEYS["receipts"].publish(tmp_path / "trusted")
        assert client.append(signed_receipt(0)).index == 0
        code, talk = _refusal(tmp_path, *flags)
        assert (code, "open for writing by another process (pid" in talk) == (1, True)
        process.kill()
        process.wait(PATIENCE)
    with _ledger(tmp_path, *flags) as (_, client):
        again = client.append(signed_receipt(0))
        assert again.index == 0
    assert not list(tmp_path.glob("*.sqlite3"))


def test_a_database_that_cannot_be_reached_is_refused_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://kolm:hunter2@/nowhere?host={tmp_path}"
    for flags in (("--database-url", url), ("--database-url", "mysql://kolm:hunter2@host/db")):
        code, talk = _refusal(tmp_path, *flags)
        assert code == 1
        assert "cannot open the ledger" in talk
        assert "hunter2" not in talk


def test_a_following_watch_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    with _ledger(tmp_path, "--grace-seconds=3600") as (process, client), client.watch(follow=True) as entries:
        KEYS["receipts"].publish(tmp_path / "trusted")
        client.append(signed_receipt(0))
        next(entries)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(Unavailable):
            next(entries)
        assert process.wait(PATIENCE) == 0


def test_a_ledger_whose_database_was_changed_underneath_stops_taking_entries_and_says_so(tmp_path: Path) -> None:
    with _ledger(tmp_path) as (_, client):
        KEYS["receipts"].publish(tmp_path / "trusted")
        client.append(signed_receipt(0))
        health = health_pb2_grpc.HealthStub(client.connection.channel).Watch(health_pb2.HealthCheckRequest())
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
        _add_forged_leaf(tmp_path / "ledger.sqlite3")
        with pytest.raises(KolmError):
            client.append(signed_receipt(1))
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert client.entry(0).envelope.to_bytes() == signed_receipt(0)


def _add_forged_leaf(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(leaves)")]
        row = dict(zip(columns, connection.execute("SELECT * FROM leaves").fetchone(), strict=True))
        forged = row | {"index": 1, "envelope_digest": b"forged".ljust(32)}
        marks = ", ".join("?" for _ in columns)
        names = ", ".join(f'"{column}"' for column in columns)
        connection.execute(f"INSERT INTO leaves ({names}) VALUES ({marks})", [forged[name] for name in columns])


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with _ledger(tmp_path):
        pass
    (tmp_path / "keys" / "log.pem").chmod(0o640)
    code, talk = _refusal(tmp_path)
    assert code == 1
    assert "chmod 600" in talk
