"""The commands of the documentation, run as they stand there against the real services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.outputs import steps, write_files
from docs.outputs import up as shown_up
from docs.session import shape, until_judged
from ledger.keys.ed25519 import SigningKey
from tests.documented import DEMO_BASE, ROOT, SMOLLM2, TRAINED_HEAD
from tests.e2e.shell import Shell, started

_REQUEST = {
    "custom_id": "one",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "The ledger keeps", "max_tokens": 8},
}


def test_every_command_for_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose output the pages show come first, as they do there, and print what has that shape."""
    shown = steps()
    assert [step.line for step in shown if step.line.startswith("$ ")] == [f"$ {line}" for line in SMOLLM2[:5]]
    with _folder(tmp_path, monkeypatch), started(shown_up()[2:], tmp_path) as (_, shell):
        for step in shown:
            if step.line.startswith("#"):
                until_judged(lambda: shell.kolm.json("receipts", "list"))
            else:
                assert shape(shell.run(step.line[2:])) == shape(step.output)
        shell.places = _places(shell)
        for line in SMOLLM2[5:]:
            if line.startswith("kolm serve"):
                with shell.serving(line):
                    pass
            else:
                shell.run(line)


def test_every_command_for_the_demo_s_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, *lines = DEMO_BASE
    with _folder(tmp_path, monkeypatch), started(start, tmp_path, "--audit-rate=0") as (_, shell):
        for line in lines:
            shell.run(line)


def test_a_head_is_trained_tried_published_and_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, try_it, *publish, serve = TRAINED_HEAD
    with _folder(tmp_path, monkeypatch):
        Shell(tmp_path).run(train)
        with started(try_it, tmp_path, "--audit-rate=0") as (_, shell):
            for line in publish:
                shell.run(line)
        with started(serve, tmp_path, "--audit-rate=0") as (_, shell):
            answer = shell.kolm.json("generate", "def area(", "--method=eagle3", "--max-tokens=4")
            (head,) = shell.kolm.json("heads", "list")
        assert answer["receipt"]["document"]["spec_decode"]["head_cid"] == head["head_cid"]


@contextmanager
def _folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with what the pages name beside the demo's files."""
    (path / "demo").symlink_to(ROOT / "demo")
    write_files(path)
    (path / "requests.jsonl").write_text(json.dumps(_REQUEST) + "\n")
    (path / "before.py").write_text("def add(a, b):\n    return a + b\n")
    (path / "edit.txt").write_text("Rename a to x:\n\ndef add(a, b):\n    return a + b\n")
    prompts = [json.dumps({"prompt": f"The ledger keeps {number}"}) + "\n" for number in range(12)]
    for name in ("prompts.jsonl", "prompts/held-out/code.jsonl"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("".join(prompts))
    monkeypatch.chdir(path)
    yield


def _places(shell: Shell) -> dict[str, str]:
    """What words of the pages stand for, where the bundled model is served."""
    Path("keys").symlink_to(".kolm/trusted")
    Path("ledger.sqlite3").symlink_to(".kolm/ledger.sqlite3")
    Path("promises").mkdir()
    Path("policy").write_text(f"log {Path('.kolm/log.vkey').read_text()}quorum none\n")
    other = SigningKey.load_or_create(Path("other.pem"), "auditor").publish(Path("mnt/other/public"))
    return {
        "/mnt/other/public/auditor-3f0c2a9d1b7e4c55.pub": str(other),
        "3f0c2a9d": other.stem.partition("-")[2],
        "my-key.pem": str(shell.folder / ".kolm/keys/receipts.pem"),
        "cidv1:sha256:…": f"cidv1:sha256:{64 * '0'}",
        "https://log.example/": f"http://{shell.addresses['explorer']}/",
    }
