"""An auditor's promises, draws and verdicts, with the real processes; recomputed from the log alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.command import Kolm, local_services, running, until

PROMPT = "The ledger keeps one receipt for every request"


def test_every_receipt_that_was_drawn_is_replayed_in_time_and_anybody_can_recompute_it(
    tmp_path: Path, model: Path
) -> None:
    environment = {"KOLM_AUDITOR_DRAW_SECONDS": "0.2", "KOLM_AUDITOR_DECODE_SHARE": "1"}
    with running(local_services(tmp_path / "data", model, audit_rate=0.5, environment=environment)) as kolm:
        until(lambda: obligations(kolm)["policies"])
        kolm.json("generate", PROMPT, "--max-tokens=4", "--temperature=0.8", "--n=12")
        until(lambda: kolm.kinds().get("receipt") == 12)
        until(lambda: settled(obligations(kolm)))
        done = obligations(kolm)
        assert (done["kept"], done["policies"][0]["rate"], done["unpromised"]) == (True, 0.5, 0)
        assert len(done["obligations"]) == done["outcomes"]["EXACT"] == kolm.kinds().get("verdict", 0)
        assert {one["draw_index"] is not None for one in done["obligations"]} <= {True}
        assert kolm.kinds()["draw"] >= 1
        assert done["independent"] == done["outcomes"]["EXACT"]
        assert kolm("audit", "run", f"--model={model}").returncode == 0
        assert kolm.kinds()["verdict"] == 12
        drawn = {one["index"] for one in done["obligations"]}
        assert ways(kolm) == {index: "decode" if index in drawn else "prefill" for index in ways(kolm)}


def ways(kolm: Kolm) -> dict[int, str]:
    """How each receipt was computed again, by its entry."""
    shown = [kolm.json("receipts", "show", one["receipt_id"]) for one in kolm.json("receipts", "list", "--limit=100")]
    return {each["ledger_index"]: each["verdicts"][0]["document"]["verification"] for each in shown}


def obligations(kolm: Kolm) -> dict[str, Any]:
    found: dict[str, Any] = kolm.json("ledger", "verify", "--obligations")["obligations"]
    return found


def settled(found: dict[str, Any]) -> bool:
    return bool(found["undrawn"] == found["owed"] == 0)
