"""Imports of a command before it asks anybody: a call may cost a quarter of a second of CPU, torch costs two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ledger.keys.ed25519 import SigningKey

_HEAVY = ("torch", "numpy", "numba", "sqlalchemy", "matplotlib", "pydantic", "transformers")
_PROBE = """
import json, sys
from services.cli.main import app
try:
    app(sys.argv[1:], prog_name="kolm")
except SystemExit as end:
    print(json.dumps([end.code, [name for name in sys.modules if "." not in name]]))
"""


def imported(*words: str | Path) -> tuple[int, set[str]]:
    """Exit code, and the packages that are there at the end."""
    command = [sys.executable, "-c", _PROBE, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    code, names = json.loads(done.stdout.splitlines()[-1])
    return code, set(names)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("generate", "x", "--max-tokens", "8", "-t", "0.5", "--stop", "y", "--generation", "127.0.0.1:1"), 5),
        (("generate", "x", "--stream", "--generation", "127.0.0.1:1"), 5),
        (("receipts", "list", "-n", "3", "--ledger", "127.0.0.1:1"), 5),
        (("up", "--model", "no/such/model"), 2),
        (("models", "list"), 0),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_call_imports_nothing_heavy_before_it_asks(words: tuple[str, ...], code: int) -> None:
    found, names = imported(*words)
    assert found == code
    assert names.isdisjoint(_HEAVY), names.intersection(_HEAVY)


def test_verifying_needs_no_server_and_no_engine(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    SigningKey.generate("log").publish(tmp_path / "trusted")
    code, names = imported("verify", tmp_path / "bundle", "--trusted", tmp_path / "trusted")
    assert code == 3
    assert "ledger" in names
    assert names.isdisjoint({*_HEAVY, "grpc", "google"}), names


@pytest.mark.parametrize(
    "words",
    [
        ("heads", "train"),
        ("heads", "train", "{model}", "--prompts", "{prompts}", "--out", "{out}"),
        ("heads", "train", "{model}", "--prompts", "{prompts}", "--out", "{out}", "--steps", "0"),
        ("heads", "train", "{model}", "--prompts", "{none}", "--out", "{out}", "--steps", "1"),
        ("heads", "train", "{model}", "--prompts", "{prompts}", "--out", "{model}", "--steps", "1"),
        ("heads", "train", "{none}", "--prompts", "{prompts}", "--out", "{out}", "--steps", "1"),
        ("heads", "train", "{model}", "--prompts", "{prompts}", "--out", "{out}", "--steps", "1", "--held-out", "7"),
        ("heads", "train", "{model}", "--prompts", "{prompts}", "--out", "{out}", "--steps", "1", "--max-tokens", "0"),
        (
            "heads",
            "train",
            "{model}",
            "--prompts",
            "{prompts}",
            "--out",
            "{out}",
            "--steps",
            "1",
            "--start-from",
            "{none}",
        ),
        ("heads", "kscore", "{none}", "--model", "{model}", "--prompts", "{prompts}"),
        ("heads", "kscore", "x", "--model", "{none}"),
        ("datastore", "build", "{none}", "--out", "{out}", "--base", "{model}"),
        ("datastore", "build", "{prompts}", "--out", "{out}", "--base", "{none}"),
        ("doctor", "--model", "{none}"),
        ("replay", "{none}"),
        ("up", "--model", "{model}", "--head", "{none}/"),
    ],
    ids=" ".join,
)
def test_flags_and_files_are_checked_before_torch_is_imported(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "prompts").write_text("{}")
    names = {name: tmp_path / name for name in ("model", "prompts", "out", "none")}
    code, imports = imported(*(word.format(**names) for word in words))
    assert code in (2, 4)
    assert imports.isdisjoint({"torch", "numpy", "numba", "transformers"})
    assert not (tmp_path / "out").exists()
