"""Files that outlive the services: receipts, a conversation; and other machines that check them.

The bits of every kind of CPU are compared in `tests/unit/generation/target/kernels/test_instruction_sets.py`.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ledger.encoding.canonical import canonical
from services.cli.up.local_services import Addresses
from services.generation.target.kernels.machine import RESTRICTION
from tests.documented import OWN_MODEL
from tests.e2e.command import PATIENCE, Kolm, until
from tests.e2e.shell import started
from tests.fakes.tiny_model import make_tiny_model
from tests.forked import Forked

PROMPT = "The ledger keeps one receipt for every request"
NOWHERE = Addresses("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")


@dataclass(frozen=True)
class Taken:
    """Files of a caller, and an auditor's one about the same request; `data` is the services' folder."""

    folder: Path
    model: Path
    receipt_id: str
    full: subprocess.CompletedProcess[str]

    @property
    def data(self) -> Path:
        return self.folder / ".kolm"

    def file(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Taken:
    folder = tmp_path_factory.mktemp("taken")
    narrow = stored(model, folder / "narrow", torch.bfloat16)
    with started(OWN_MODEL, folder, "--audit-rate=0", places={"path/to/model": str(narrow)}) as shell:
        kolm = shell.kolm
        for temperature in ("0", "0.8"):
            kolm.json("generate", PROMPT, "--max-tokens=8", f"--temperature={temperature}", "--n=2")
        made = kolm.json("generate", PROMPT, "--max-tokens=24", "--temperature=0.8", "--seed=5", "--method=lookahead",
                         f"--save={folder / 'saved.json'}")  # fmt: skip
        asked = ("chat", "--max-tokens=16", "--temperature=0.7", "--seed=3", f"--save={folder / 'talk'}")
        output = kolm(*asked, given="first\n/method off\nsecond\nthird\n")
        assert output.returncode == 0, output.stderr
        full = kolm("chat", "--max-tokens=4", given=f"a\n{'long ' * 400}\n")
        receipt_id, file = made["receipt"]["receipt_id"], str(folder / "receipt.json")
        until(lambda: kolm("receipts", "export", receipt_id, file).returncode == 0)
        assert kolm("receipts", "export", receipt_id, file).returncode == 2  # the file is there
    return Taken(folder, narrow, receipt_id, full)


def stored(model: Path, folder: Path, dtype: torch.dtype) -> Path:
    """A copy whose weights are what bfloat16 can hold, stored as `dtype`."""
    shutil.copytree(model, folder)
    tensors = {name: values.bfloat16().to(dtype) for name, values in load_file(model / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_an_exported_receipt_is_exact_offline(taken: Taken, model: Path) -> None:
    file, stranger, given = taken.file("receipt.json"), Kolm(NOWHERE, taken.data), f"--model={taken.model}"
    assert Path(file).stat().st_mode & 0o77 == 0
    for way, flags in (("prefill", ()), ("decode", ("--decode",))):
        found = stranger.json("replay", file, given, *flags)
        assert (found["outcome"], found["verification"], found["signature"]) == ("EXACT", way, True)
        assert (found["tokens_compared"], found["texts"]) == (24, None)  # the log has no texts
    own = stranger.json("replay", taken.file("saved.json"), given)
    assert (own["outcome"], own["signature"], own["receipt_id"]) == ("EXACT", True, taken.receipt_id)
    assert own["texts"] is True
    for each in (file, taken.file("saved.json")):
        assert stranger("verify", each).returncode == 0
    without_keys = Kolm(NOWHERE, taken.folder / "elsewhere").json("replay", file, given)
    assert (without_keys["outcome"], without_keys["signature"]) == ("EXACT", None)

    other = make_tiny_model(taken.folder / "other", seed=1)
    wide = stored(model, taken.folder / "wide", torch.float32)
    for base in (other, wide):
        found = stranger.json("replay", file, f"--model={base}", code=1)
        assert (found["outcome"], found["deviation"]) == ("UNREPLAYABLE", None)
        assert found["reason"].startswith("base_cid: ")
    found = stranger.json("replay", file, f"--model={wide}", "--any-storage")
    assert (found["outcome"], found["tokens_compared"]) == ("EXACT", 24)
    found = stranger.json("replay", file, f"--model={other}", "--any-storage", code=1)
    assert found["reason"].startswith("profile_cid: ")

    changed = json.loads(Path(file).read_bytes())
    changed["content"]["output_token_ids"][3] ^= 1
    (taken.folder / "forged.json").write_bytes(canonical(changed))
    assert stranger("replay", taken.file("forged.json"), given).returncode == 3


def test_a_conversation_is_carried_away_and_verified_word_by_word(taken: Taken) -> None:
    assert (taken.full.returncode, "--context-length" in taken.full.stderr) == (2, True)
    path = taken.folder / "talk" / "transcript.json"
    turns = json.loads(path.read_bytes())["turns"]
    assert [(turn["question"], turn["remembered"]) for turn in turns] == [("first", 0), ("second", 1), ("third", 2)]
    assert conversation(taken)["passed"] is None
    assert conversation(taken, f"--model={taken.model}")["passed"] is True
    path.write_bytes(path.read_bytes().replace(b'"question":"second"', b'"question":"secant"'))
    report = verified(taken, f"--model={taken.model}", code=3)
    assert (report["ok"], report["problem"].startswith("turn 2: ")) == (False, True)


def conversation(taken: Taken, *flags: str) -> dict[str, Any]:
    """The result of the check of conversations."""
    (check,) = (each for each in verified(taken, *flags)["checks"] if "conversation" in each["title"])
    return check  # type: ignore[no-any-return]


def verified(taken: Taken, *flags: str, code: int = 0) -> dict[str, Any]:
    """The output of `kolm verify` without any service."""
    trusted = f"--trusted={taken.data / 'trusted'}"
    found: dict[str, Any] = Kolm(NOWHERE, taken.folder / "elsewhere").json(
        "verify", taken.file("talk"), trusted, *flags, code=code
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["avx2", pytest.param("scalar", marks=pytest.mark.long)])
def test_a_receipt_is_exact_by_code_for_a_lesser_cpu(taken: Taken, instructions: str) -> None:
    replay, restricted = ("replay", taken.file("saved.json"), f"--model={taken.model}"), {RESTRICTION: instructions}
    with Forked("services.cli", *replay, "--json", environment=os.environ | restricted) as process:
        found, wrong = process.communicate(PATIENCE)
        assert (process.wait(), json.loads(found)["outcome"]) == (0, "EXACT"), wrong
