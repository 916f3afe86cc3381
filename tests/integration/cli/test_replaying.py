"""Commands that load a model or its tokenizer: none imports torch, and a person at a terminal sees what they do."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ledger.documents.signed_document import sign_document
from ledger.keys.ed25519 import SigningKey
from services.cli.ledger import receipt_files as receipt_saving
from services.client import Receipt
from services.generation.target.identity import tokenizer_cid
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.auditor.deployment import Deployment
from tests.unit.client.test_answer_check import CONTENT, TEXT, signed

COMMANDS = {
    "models list": ("models", "list", "{model}"),
    "models import": ("models", "import", "{model}", "--name", "mine"),
    "verify": ("verify", "{receipt}", "--model", "{model}"),
    "replay": ("replay", "{receipt}", "--model", "{model}"),
    "audit run": ("audit", "run", "--model", "{model}"),
}


@pytest.fixture
def names(deployment: Deployment, tmp_path: Path) -> dict[str, Path]:
    """A model, and a receipt that names its tokenizer and another base."""
    model, path = make_tiny_model(tmp_path / "model"), tmp_path / "receipt.json"
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    document = signed(tokenizer_cid=tokenizer_cid(model))
    envelope = sign_document(document, key).to_bytes()
    index = deployment.ledger.append(envelope, CONTENT).index
    receipt_saving.save(
        path, Receipt(envelope, document.receipt_id, index, False, CONTENT, TEXT), "a prompt", deployment.address
    )
    return {"model": model, "receipt": path}


def environment(deployment: Deployment, tmp_path: Path) -> dict[str, str]:
    own = {"KOLM_LEDGER": deployment.address, "KOLM_DATA_DIR": str(tmp_path), "KOLM_MODELS": str(tmp_path / "models")}
    return os.environ | own | {"TERM": "xterm"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_with_a_tokenizer_imports_torch(
    command: str, deployment: Deployment, names: dict[str, Path], tmp_path: Path
) -> None:
    words = [word.format(**names) for word in COMMANDS[command]]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "services.cli", *words],
        env=environment(deployment, tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert any(name.startswith("transformers.") for name in imported), done.stderr[-2000:]
    assert "torch" not in imported


@pytest.mark.slow
@pytest.mark.parametrize("command", ["replay", "audit run"])
def test_a_terminal_shows_what_is_being_done_and_programs_see_nothing(
    command: str, deployment: Deployment, names: dict[str, Path], tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "services.cli", *(word.format(**names) for word in COMMANDS[command])]
    own = environment(deployment, tmp_path)
    piped = subprocess.run(words, env=own, capture_output=True, text=True, check=False)
    assert "\x1b" not in piped.stderr
    shown, silent = on_a_terminal(words, own), on_a_terminal([*words, "--json"], own)
    assert "loading and probing the base" in shown
    assert "loading and probing the base" not in silent + piped.stderr


def on_a_terminal(words: list[str], own: dict[str, str]) -> str:
    """All that a command writes to stderr where that is a terminal."""
    near, far = pty.openpty()
    with subprocess.Popen(words, env=own, stdout=subprocess.DEVNULL, stderr=far) as process:
        os.close(far)
        said = b""
        try:
            while read := os.read(near, 1 << 16):
                said += read
        except OSError:  # how a terminal ends
            pass
        finally:
            os.close(near)
        process.wait()
    return said.decode()
