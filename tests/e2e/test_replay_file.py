"""A receipt in a file is replayed by somebody who has the base and nothing else: no service."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ledger.encoding.canonical import canonical
from services.cli.jobs.running.local_services import Addresses
from tests.e2e.command import Kolm, local_services, running, until
from tests.fakes.tiny_model import make_tiny_model

PROMPT = "The ledger keeps one receipt for every request"
NOWHERE = Addresses("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")


def stored(model: Path, folder: Path, dtype: torch.dtype) -> Path:
    """A copy whose weights are what bfloat16 can hold, stored as `dtype`."""
    shutil.copytree(model, folder)
    tensors = {name: values.bfloat16().to(dtype) for name, values in load_file(model / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_an_exported_receipt_is_exact_offline(tmp_path: Path, model: Path) -> None:
    wide = stored(model, tmp_path / "wide", torch.float32)
    model = stored(model, tmp_path / "narrow", torch.bfloat16)
    file, data_dir = tmp_path / "receipt.json", tmp_path / "data"
    saved = tmp_path / "saved.json"
    exported(file, saved, data_dir, model)
    assert file.stat().st_mode & 0o77 == 0
    somebody = Kolm(NOWHERE, data_dir)
    for way, flags in (("prefill", ()), ("decode", ("--decode",))):
        found = somebody.json("replay", str(file), f"--model={model}", *flags)
        assert (found["outcome"], found["verification"], found["signature"]) == ("EXACT", way, True)
        assert (found["tokens_compared"], found["texts"]) == (24, None)  # the log has no texts
    own = somebody.json("replay", str(saved), f"--model={model}")
    assert (own["outcome"], own["signature"], own["receipt_id"]) == ("EXACT", True, found["receipt_id"])
    assert own["texts"] is True
    for each in (file, saved):
        assert somebody("verify", str(each)).returncode == 0
    stranger = Kolm(NOWHERE, tmp_path / "elsewhere")
    shown = stranger("replay", str(file), f"--model={model}")
    assert (shown.returncode, "signature not checked" in shown.stdout) == (0, True)

    other = make_tiny_model(tmp_path / "other", seed=1)
    found = somebody.json("replay", str(file), f"--model={other}", code=1)
    assert (found["outcome"], found["deviation"]) == ("UNREPLAYABLE", None)
    assert found["reason"].startswith("base_cid: the receipt names ")

    found = somebody.json("replay", str(file), f"--model={wide}", code=1)
    assert found["reason"].startswith("base_cid: the receipt names ")
    found = somebody.json("replay", str(file), f"--model={wide}", "--any-storage")
    assert (found["outcome"], found["tokens_compared"]) == ("EXACT", 24)
    assert "by the same values from other files" in found["reason"]
    found = somebody.json("replay", str(file), f"--model={other}", "--any-storage", code=1)
    assert found["reason"].startswith("profile_cid: the receipt names ")

    changed = json.loads(file.read_bytes())
    changed["content"]["output_token_ids"][3] ^= 1
    forged = tmp_path / "forged.json"
    forged.write_bytes(canonical(changed))
    refused = somebody("replay", str(forged), f"--model={model}")
    assert refused.returncode == 3
    assert "not what the receipt commits to" in " ".join(refused.stderr.split())


def exported(file: Path, saved: Path, data_dir: Path, model: Path) -> None:
    """Write files about a sampled request, an auditor's and the caller's own; afterwards no service runs."""
    with running(local_services(data_dir, model)) as kolm:
        made = kolm.json("generate", PROMPT, "--max-tokens=24", "--temperature=0.8", "--seed=5", "--method=lookahead",
                         f"--save={saved}")  # fmt: skip
        receipt_id = made["receipt"]["receipt_id"]
        until(lambda: kolm("receipts", "export", receipt_id, str(file)).returncode == 0)
        assert kolm("receipts", "export", receipt_id, str(file)).returncode == 2
