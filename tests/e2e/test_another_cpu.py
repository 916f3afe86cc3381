"""A receipt is replayed by code for another kind of CPU than the one that made it: the same profile, the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.cli.jobs.running.local_services import LocalServices, bring_up
from services.cli.jobs.running.supervisor import Supervisor
from services.generation.target.canonical.kernels.machine import RESTRICTION, this_machine
from tests.e2e.command import Kolm, until

PROMPT = "The same bits on every machine"


@contextmanager
def services(data_dir: Path, model: Path, **environment: str) -> Iterator[Kolm]:
    """All services on free ports, their environment amended; nothing is audited unless somebody asks."""
    described = LocalServices(
        data_dir, model, generation_port=0, ledger_port=0, registry_port=0, auditor_port=0, audit_rate=0.0,
        environment={"OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    supervisor = Supervisor(lambda name, line: print(name, line))
    try:
        yield Kolm(bring_up(described, supervisor), data_dir)
    finally:
        supervisor.stop(10.0)


@pytest.mark.slow
def test_receipts_are_exact_by_code_for_lesser_cpus(tmp_path: Path, model: Path) -> None:
    data_dir = tmp_path / "data"
    with services(data_dir, model) as kolm:
        for temperature in ("0", "0.8"):
            kolm.json("generate", PROMPT, "--max-tokens=8", f"--temperature={temperature}", "--n=2")
        until(lambda: kinds(kolm).get("receipt") == 4)
    lesser = [name for name in ("avx2", "scalar") if name != this_machine().name]
    for number, name in enumerate(lesser, 1):
        with services(data_dir, model, **{RESTRICTION: name}) as kolm:
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
