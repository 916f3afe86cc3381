"""The main job with the real processes: serve, speculate, receipt, replay, verify, stop."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from ledger.keys import TrustedKeys
from ledger.verification import verify_receipt
from tests.e2e.command import PATIENCE, children, is_running, until, up

PROMPT = "The ledger keeps one receipt for every request"


def test_one_command_serves_and_every_request_is_receipted_replayed_and_verified(tmp_path: Path, model: Path) -> None:
    with up(tmp_path / "data", model, "--audit-rate=0") as (process, kolm):
        assert kolm.json("health")["healthy"]
        plain = kolm.json("generate", PROMPT, "--max-tokens=48", "--method=off")
        speculated = kolm.json("generate", PROMPT, "--max-tokens=48", "--method=lookahead")
        assert speculated["token_ids"] == plain["token_ids"]
        assert speculated["text"] == plain["text"]
        assert speculated["finish_reason"] == "length"
        assert speculated["usage"]["completion_tokens"] == 48
        assert speculated["metrics"]["method"] == "lookahead"
        assert speculated["ledger_index"] > plain["ledger_index"]
        receipt = verify_receipt(
            speculated["receipt"]["envelope"].encode(), TrustedKeys.load(tmp_path / "data/trusted")
        )
        assert receipt.to_document() == speculated["receipt"]["document"]
        audit = kolm.json("audit", "run")
        assert [verdict["outcome"] for verdict in audit["verdicts"]] == ["EXACT", "EXACT"]
        assert [verdict["tokens_compared"] for verdict in audit["verdicts"]] == [48, 48]
        assert kolm.json("audit", "run")["verdicts"] == []
        shown = kolm.json("receipts", "show", str(speculated["ledger_index"]))
        assert (shown["outcome"], shown["proof"]["signature"], shown["proof"]["inclusion"]) == ("EXACT", True, True)
        assert kolm.json("ledger", "verify")["kinds"] == {"key": 1, "receipt": 2, "verdict": 2}
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


def test_a_changed_byte_in_the_database_is_found_and_its_entry_named(tmp_path: Path, model: Path) -> None:
    data = tmp_path / "data"
    with up(data, model, "--audit-rate=0") as (process, kolm):
        index = kolm.json("generate", PROMPT, "--max-tokens=4")["ledger_index"]
        kolm.json("generate", PROMPT, "--max-tokens=5")
        assert kolm.json("ledger", "verify", f"--database={data / 'ledger.sqlite3'}")["ok"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        _change_a_byte(data / "ledger.sqlite3", index)
        report = kolm.json("ledger", "verify", f"--database={data / 'ledger.sqlite3'}", code=3)
        assert (report["ok"], report["bad_index"]) == (False, index)
        assert f"entry {index}" in kolm("ledger", "verify", f"--database={data / 'ledger.sqlite3'}").stdout


def _change_a_byte(database: Path, index: int) -> None:
    """One bit of the payload of an entry, as a person with the file and SQL at hand could."""
    with sqlite3.connect(database) as connection:
        (entry,) = connection.execute('SELECT entry FROM leaves WHERE "index" = ?', (index,)).fetchone()
        at = entry.index(b'"payload":"') + 40
        changed = entry[:at] + (b"A" if entry[at : at + 1] != b"A" else b"B") + entry[at + 1 :]
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f'DROP TRIGGER "{trigger}"')
        connection.execute('UPDATE leaves SET entry = ? WHERE "index" = ?', (changed, index))
    connection.close()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_one_service_that_dies_stops_all_and_says_which(tmp_path: Path, model: Path, victim: int) -> None:
    with up(tmp_path / "data", model) as (process, _):
        services = children(process)
        os.kill(services[victim], signal.SIGKILL)
        assert process.wait(PATIENCE) == 1
        assert not any(map(is_running, services))
    name = ("ledger", "generation", "auditor")[victim]
    assert f"the {name} service was killed by SIGKILL; everything was stopped" in (tmp_path / "up.log").read_text()


def test_services_do_not_outlive_a_kolm_up_that_is_killed(tmp_path: Path, model: Path) -> None:
    with up(tmp_path / "data", model) as (process, _):
        services = children(process)
        assert len(services) == 3
        process.kill()
        until(lambda: not any(map(is_running, services)))
