"""An operator who serves other tokens than the model's and echoes its records when audited: who finds out, and how."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.command import local_services, running, until

PROMPT = "The ledger keeps one receipt for every request"


def test_an_echo_earns_no_independent_exact_and_an_engine_of_one_s_own_finds_the_lie(
    tmp_path: Path, model: Path
) -> None:
    fault, bundle = tmp_path / "fault", tmp_path / "bundle"
    services = local_services(
        tmp_path / "data", model, generation_module="tests.e2e.echoing", environment={"KOLM_TEST_FAULT": str(fault)}
    )
    with running(services) as kolm:
        fault.touch()
        generate = ("generate", PROMPT, "--max-tokens=48", "--method=lookahead")
        kolm.json(*generate)
        until(lambda: len(kolm.json("receipts", "list")) == 1)
        (believed,) = kolm.json("audit", "run", "--by-server")["verdicts"]
        assert (believed["outcome"], believed["replayed_by"]) == ("EXACT", "server")
        assert kolm("ledger", "export", str(bundle)).returncode == 0
        report = kolm.json("verify", str(bundle))
        assert (report["outcomes"], report["independent"]) == ({"EXACT": 1}, 0)
        shown = kolm("verify", str(bundle)).stdout.replace("\n", " ")
        assert "1 of the EXACT verdicts rest on the word of the audited server" in shown

        lie = kolm.json(*generate)
        until(lambda: len(kolm.json("receipts", "list")) == 2)
        (found,) = kolm.json("audit", "run", f"--model={model}", code=3)["verdicts"]
        assert (found["outcome"], found["verification"], found["replayed_by"]) == ("DEVIATION", "decode", "auditor")
        position = found["deviation"]["position"]
        assert found["deviation"]["actual_token"] == lie["token_ids"][position]
        fault.unlink()
        honest = kolm.json("generate", PROMPT, "--max-tokens=48", "--method=off")
        assert found["deviation"]["expected_token"] == honest["token_ids"][position]
