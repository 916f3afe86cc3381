"""From a hub's names to a drafted token: `kolm up hf:BASE --head auto`, from empty folders."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.generation.target.config.config import read_config
from services.generation.target.identity import base_cid
from tests.cli import FREE, kolm
from tests.e2e.command import PATIENCE, own_environment
from tests.fakes.heads import head_config, write_speculators
from tests.fakes.hub import FakeHub, serving
from tests.fakes.tiny_model import make_tiny_model

BASE, HEAD = "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3"


def committed(repo: str, folder: Path) -> FakeHub:
    hub = FakeHub(repo=repo)
    hub.commit({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
    return hub


def test_a_base_and_its_known_head_are_fetched_by_name_and_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KOLM_TOKEN")  # commands find the token of the start by themselves
    model = make_tiny_model(tmp_path / "model")
    config = read_config(model)
    write_speculators(tmp_path / "head", head_config(config))
    data_dir, log = tmp_path / "data", tmp_path / "up.log"
    with serving(committed(BASE, model)) as hub:
        hub.others[HEAD] = committed(HEAD, tmp_path / "head")
        environment = {
            **own_environment(), "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "hub"),
            "XDG_CACHE_HOME": str(tmp_path / "xdg"), "HF_HUB_OFFLINE": "0",
        }  # fmt: skip
        forking = (sys.executable, "-m", "tests.e2e.forking_up", str(log))
        command = (*forking, f"hf:{BASE}", "--head=auto", f"--data-dir={data_dir}", "--json", *FREE)
        # A new process, for huggingface_hub reads its variables when it is imported.
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), log.read_text()
            place = ("--json", "--data-dir", data_dir)
            done = kolm("generate", "The ledger", "--method=eagle3", "--max-tokens=8", *place)
            assert done.code == 0, done.err
            receipts = kolm("receipts", "list", *place)
            assert receipts.code == 0, receipts.err
            process.terminate()
            assert process.wait(PATIENCE) == 0
    shown = json.dumps(receipts.document)
    (kept,) = (tmp_path / "xdg" / "kolm" / "heads").glob("RedHatAI--*")
    assert json.loads((kept / "origin.json").read_text())["repository"] == HEAD
    assert base_cid(model) in shown
    assert '"method": "eagle3"' in shown
    assert done.document["usage"]["completion_tokens"] == 8
