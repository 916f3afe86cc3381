"""A target that breaks the contract is found, halted, refused, and resumed."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documented import RESUME, RESUME_BY_SEVERAL
from tests.e2e.command import Kolm, local_services, running, until

PROMPT = "The ledger keeps one receipt for every request"


@pytest.fixture
def fault(tmp_path: Path) -> Path:
    """The target is width-dependent while this file exists."""
    return tmp_path / "fault"


@pytest.fixture
def kolm(tmp_path: Path, model: Path, fault: Path) -> Iterator[Kolm]:
    """Services whose auditor replays everything."""
    services = local_services(
        tmp_path / "data",
        model,
        audit_rate=1.0,
        generation_module="tests.e2e.width_dependent",
        generation_settings={"halt_poll_seconds": 0.05},
        environment={"KOLM_TEST_FAULT": str(fault)},
    )
    with running(services) as kolm:
        yield kolm


def test_a_width_dependent_target_is_found_halted_refused_and_served_again_after_a_resume(
    kolm: Kolm, model: Path, fault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, bundle = tmp_path / "saved.json", tmp_path / "bundle"
    good = kolm.json("generate", PROMPT, "--max-tokens=48", "--method=lookahead")
    assert kolm.json("monitor", "--once")["ok"]
    fault.touch()
    bad = kolm.json("generate", PROMPT, "--max-tokens=48", "--method=lookahead", f"--save={saved}")
    assert bad["token_ids"] != good["token_ids"]
    halt = _open_halt(kolm)
    assert halt["scope"]["method"] == "lookahead"

    short = ("generate", PROMPT, "--max-tokens=1")  # which nothing is drafted for, so that it never deviates itself
    until(lambda: kolm(*short).returncode == 1)
    assert "kolm halts resume" in kolm(*short).stderr
    assert kolm.json("generate", PROMPT, "--max-tokens=48", "--method=off")["token_ids"] == good["token_ids"]
    assert kolm("audit", "run", f"--model={model}").returncode == 3

    shown = kolm.json("receipts", "show", str(bad["ledger_index"]))
    (verdict,) = shown["verdicts"]
    deviation = verdict["document"]["deviation"]
    assert shown["outcome"] == "DEVIATION"
    assert (verdict["document"]["verification"], verdict["document"]["replayed_by"]) == ("decode", "auditor")
    assert deviation["actual_token"] == bad["token_ids"][deviation["position"]]
    assert deviation["expected_token"] == good["token_ids"][deviation["position"]]

    own = kolm.json("replay", str(saved), f"--model={model}", code=3)
    assert (own["outcome"], own["deviation"]["position"]) == ("DEVIATION", deviation["position"])
    exported = tmp_path / "exported.json"
    assert kolm("receipts", "export", bad["receipt"]["receipt_id"], str(exported)).returncode == 0
    assert kolm.json("replay", str(exported), f"--model={model}", code=3)["deviation"] == own["deviation"]
    assert kolm("ledger", "export", str(bundle)).returncode == 0
    report = json.loads(kolm("verify", str(bundle), "--json").stdout)
    assert (report["outcomes"]["DEVIATION"], report["kinds"]["halt"]) == (1, 1)

    (told,) = kolm.json("monitor", "--once", code=3)["findings"]
    assert (told["kind"], str(bad["ledger_index"]) in told["message"]) == ("DEVIATION", True)

    fault.unlink()
    monkeypatch.chdir(tmp_path)
    first, other, together = RESUME_BY_SEVERAL
    _run(kolm, first, halt)
    _run(kolm, other, halt, f"--key={tmp_path / 'another operator.pem'}")
    _run(kolm, together, halt)
    until(lambda: kolm("generate", PROMPT, "--max-tokens=48", "--method=lookahead").returncode == 0)
    assert kolm.json("generate", PROMPT, "--max-tokens=48")["token_ids"] == good["token_ids"]
    assert kolm.json("monitor", "--once")["ok"]
    kinds = kolm.json("ledger", "verify")["kinds"]
    assert (kinds["halt"], kinds["resume"]) == (1, 1)

    fault.touch()
    assert kolm.json("generate", PROMPT, "--max-tokens=48", "--method=lookahead")["token_ids"] != good["token_ids"]
    _run(kolm, RESUME, _open_halt(kolm))
    assert kolm("halts", "list").returncode == 0


def _open_halt(kolm: Kolm) -> dict[str, Any]:
    """The only one, once there is one."""
    until(lambda: kolm("halts", "list").returncode == 3)
    (halt,) = kolm.json("halts", "list", code=3)["halts"]
    return halt  # type: ignore[no-any-return]


def _run(kolm: Kolm, line: str, halt: dict[str, Any], *more: str) -> None:
    """A line of the documentation, about this halt."""
    done = kolm(*(str(halt["halt_index"]) if word.isdigit() else word for word in shlex.split(line)[1:]), *more)
    assert done.returncode == 0, f"{line}: {done.stderr}"
