"""The main job with the real processes: serve, speculate, receipt, replay, verify, stop."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ledger.keys import TrustedKeys
from ledger.verification import verify_receipt
from tests.e2e.command import PATIENCE, children, is_running, until, up

PROMPT = "The ledger keeps one receipt for every request"


def test_one_command_serves_and_every_request_is_receipted_replayed_and_verified(tmp_path: Path, model: Path) -> None:
    data = tmp_path / "data"
    with up(data, model, "--audit-rate=0") as (process, kolm):
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
        services = children(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert not any(map(is_running, services))


def test_one_service_that_dies_stops_all_and_says_which(tmp_path: Path, model: Path) -> None:
    with up(tmp_path / "data", model) as (process, _):
        services = children(process)
        os.kill(services[0], signal.SIGKILL)
        assert process.wait(PATIENCE) == 1
        assert not any(map(is_running, services))
    assert "the ledger service was killed by SIGKILL; everything was stopped" in (tmp_path / "up.log").read_text()


def test_services_do_not_outlive_a_kolm_up_that_is_killed(tmp_path: Path, model: Path) -> None:
    with up(tmp_path / "data", model) as (process, _):
        services = children(process)
        assert len(services) == 3
        process.kill()
        until(lambda: not any(map(is_running, services)))
