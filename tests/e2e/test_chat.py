"""A conversation with the real processes: said, carried away with its receipts, and verified by somebody else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.documented import OWN_MODEL
from tests.e2e.command import ENVIRONMENT, KOLM, PATIENCE, Kolm
from tests.e2e.shell import started


def chat(kolm: Kolm, lines: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """`kolm chat` with these lines piped in."""
    stack = (
        f"--generation={kolm.addresses.generation}", f"--ledger={kolm.addresses.ledger}",
        f"--token-file={kolm.token_file}",
    )  # fmt: skip
    command = [*KOLM, "chat", *stack, *flags]
    return subprocess.run(
        command, env=ENVIRONMENT, input=lines, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_a_conversation_is_carried_away_and_verified_word_by_word(tmp_path: Path, model: Path) -> None:
    bundle, lines = tmp_path / "talk", "first\n/method off\nsecond\nthird\n"
    with started(OWN_MODEL, tmp_path, "--audit-rate=0", places={"path/to/model": str(model)}) as (_, shell):
        kolm = shell.kolm
        done = chat(kolm, lines, "--max-tokens=16", "--temperature=0.7", "--seed=3", f"--save={bundle}")
        assert done.returncode == 0, done.stderr
        full = chat(kolm, f"a\n{'long ' * 400}\n", "--max-tokens=4")
    assert (full.returncode, "maximum context length is 512 tokens" in full.stderr) == (2, True), full.stderr
    assert "--context-length" in full.stderr

    turns = json.loads((bundle / "transcript.json").read_bytes())["turns"]
    assert [(turn["question"], turn["remembered"]) for turn in turns] == [("first", 0), ("second", 1), ("third", 2)]
    trusted = str(tmp_path / ".kolm/trusted")
    read = conversation_check(verified(bundle, trusted, "--model", str(model)))
    assert (read["passed"], "3 turns" in read["detail"]) == (True, True)
    assert conversation_check(verified(bundle, trusted))["passed"] is None

    path = bundle / "transcript.json"
    path.write_bytes(path.read_bytes().replace(b'"question":"second"', b'"question":"secant"'))
    report = verified(bundle, trusted, "--model", str(model))
    assert (report["ok"], report["problem"].startswith("turn 2: ")) == (False, True)


def conversation_check(report: dict[str, Any]) -> dict[str, Any]:
    """The results of `kolm verify` on the conversation."""
    (check,) = (each for each in report["checks"] if "conversation" in each["title"])
    return check  # type: ignore[no-any-return]


def verified(bundle: Path, trusted: str, *flags: str) -> dict[str, Any]:
    """The output of `kolm verify`, without any service."""
    command = [*KOLM, "verify", str(bundle), "--trusted", trusted, "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return json.loads(done.stdout)  # type: ignore[no-any-return]
