"""A receipt is replayed by code for another kind of CPU than the one that made it: the same profile, the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.target.canonical.kernels.machine import RESTRICTION, this_machine
from tests.e2e.command import Kolm, local_services, running, until

PROMPT = "The same bits on every machine"


@pytest.mark.slow
def test_receipts_are_exact_by_code_for_lesser_cpus(tmp_path: Path, model: Path) -> None:
    data_dir = tmp_path / "data"
    with running(local_services(data_dir, model)) as kolm:
        for temperature in ("0", "0.8"):
            kolm.json("generate", PROMPT, "--max-tokens=8", f"--temperature={temperature}", "--n=2")
        until(lambda: kinds(kolm).get("receipt") == 4)
    lesser = [name for name in ("avx2", "scalar") if name != this_machine().name]
    for number, name in enumerate(lesser, 1):
        with running(local_services(data_dir, model, environment={RESTRICTION: name})) as kolm:
            kolm.json("generate", PROMPT, "--max-tokens=8")
            until(lambda number=number, kolm=kolm: kinds(kolm).get("receipt") == 4 + number)  # type: ignore[misc]
            assert kolm("audit", "run", f"--model={model}").returncode == 0
            verified = kolm.json("ledger", "verify")
            assert verified["kinds"]["verdict"] == 4 + number
            assert verified["kinds"].get("halt", 0) == 0
            (newest,) = kolm.json("receipts", "list", "--limit=1")
            profile = kolm.json("receipts", "show", newest["receipt_id"])["document"]["profile_cid"]
            assert len(kolm.json("receipts", "list", f"--profile={profile}")) == 4 + number


def kinds(kolm: Kolm) -> dict[str, int]:
    counted: dict[str, int] = kolm.json("ledger", "verify")["kinds"]
    return counted
