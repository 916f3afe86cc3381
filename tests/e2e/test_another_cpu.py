"""A receipt is replayed by code for another kind of CPU than the one that made it: the same profile, the same bits.

The bits of every kind of CPU are compared in `tests/unit/generation/target/kernels/test_instruction_sets.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.generation.target.kernels.machine import RESTRICTION
from tests.e2e.command import Kolm, local_services, running, until

PROMPT = "The same bits on every machine"


@pytest.mark.slow
def test_receipts_are_exact_by_code_for_lesser_cpus(tmp_path: Path, model: Path) -> None:
    data_dir = tmp_path / "data"
    with running(local_services(data_dir, model)) as kolm:
        for temperature in ("0", "0.8"):
            kolm.json("generate", PROMPT, "--max-tokens=8", f"--temperature={temperature}", "--n=2")
        kolm.json("generate", PROMPT, "--max-tokens=8", "--temperature=0.8", f"--save={tmp_path / 'receipt.json'}")
        until(lambda: kinds(kolm).get("receipt") == 5)
    replay = [sys.executable, "-m", "services.cli", "replay", str(tmp_path / "receipt.json"), f"--model={model}"]
    done = subprocess.run(replay, env=os.environ | {RESTRICTION: "avx2"}, capture_output=True, text=True, check=False)
    assert (done.returncode, "EXACT" in done.stdout) == (0, True), done.stdout + done.stderr
    with running(local_services(data_dir, model, environment={RESTRICTION: "scalar"})) as kolm:
        kolm.json("generate", PROMPT, "--max-tokens=8")
        until(lambda: kinds(kolm).get("receipt") == 6)
        assert kolm("audit", "run", f"--model={model}").returncode == 0
        verified = kolm.json("ledger", "verify")
        assert verified["kinds"]["verdict"] == 6
        assert verified["kinds"].get("halt", 0) == 0
        (newest,) = kolm.json("receipts", "list", "--limit=1")
        profile = kolm.json("receipts", "show", newest["receipt_id"])["document"]["profile_cid"]
        assert len(kolm.json("receipts", "list", f"--profile={profile}")) == 6


def kinds(kolm: Kolm) -> dict[str, int]:
    counted: dict[str, int] = kolm.json("ledger", "verify")["kinds"]
    return counted
