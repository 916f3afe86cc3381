"""The commands of the documentation, run as they stand there against the real services."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docs.outputs import steps, write_files
from docs.outputs import up as shown_up
from docs.session import shape, until_judged
from services.generation.target.model_path import model_path
from tests.documented import DEMO_BASE, ROOT, SMOLLM2
from tests.e2e.command import Kolm, up

_REQUEST = {
    "custom_id": "one",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "The ledger keeps", "max_tokens": 8},
}
_SHORT = {"generate": "--max-tokens=64", "chat": "--max-tokens=64"}
"""Answers end sooner than on the pages, where these say nothing."""


def test_every_command_for_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose output the pages show come first, as they do there, and print what has that shape."""
    shown = steps()
    assert [step.line for step in shown if step.line.startswith("$ ")] == [f"$ {line}" for line in SMOLLM2[:5]]
    with _folder(tmp_path, monkeypatch), _up(tmp_path) as kolm:
        for step in shown:
            if step.line.startswith("#"):
                until_judged(lambda: kolm.json("receipts", "list"))
            else:
                assert shape(_run(kolm, step.line[2:], tmp_path)) == shape(step.output)
        for line in SMOLLM2[5:]:
            _run(kolm, line, tmp_path)


def test_every_command_for_the_demo_s_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = [f"--adapter={name}={ROOT}/demo/adapters/{name}" for name in ("courteous", "capitals")]
    flags = (_head("head"), f"--draft-model={ROOT}/demo/draft", *beside, "--audit-rate=0")
    with _folder(tmp_path, monkeypatch), up(tmp_path / ".kolm", ROOT / "demo/base", *flags) as (_, kolm):
        for line in DEMO_BASE:
            _run(kolm, line, tmp_path)


@contextmanager
def _up(folder: Path) -> Iterator[Kolm]:
    """As the README starts the services, on free ports."""
    flags = shlex.split(shown_up())[3:]
    with up(folder / ".kolm", model_path(Path("smollm2")), *flags) as (_, kolm):
        yield kolm


def _head(place: str) -> str:
    return f"--head={ROOT}/demo/{place}"


@contextmanager
def _folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with what the pages name beside the demo's files."""
    (path / "demo").symlink_to(ROOT / "demo")
    write_files(path)
    (path / "requests.jsonl").write_text(json.dumps(_REQUEST) + "\n")
    (path / "before.py").write_text("def add(a, b):\n    return a + b\n")
    (path / "edit.txt").write_text("Rename a to x:\n\ndef add(a, b):\n    return a + b\n")
    (path / "tokens").mkdir()
    monkeypatch.chdir(path)
    yield


def _run(kolm: Kolm, line: str, folder: Path) -> str:
    """A line of a shell: pipes into, and redirections from, commands of kolm. Returns what it prints."""
    into, _, command = line.rpartition(" | ")
    given = (
        subprocess.run(shlex.split(into), cwd=ROOT, capture_output=True, text=True, check=True).stdout if into else ""
    )
    command, _, out = command.partition(" > ")
    printed = ""
    for each in command.split(" && "):
        words = [_named(word, kolm, folder) for word in shlex.split(each)[1:]]
        short = _SHORT.get(words[0], "")
        if short and not any(word.startswith("--max-tokens") for word in words):
            words.insert(1, short)
        done = kolm(*words, given="Where is my parcel?\n" if words[0] == "chat" else given[:400])
        assert done.returncode == 0, f"{each}: {done.stdout}{done.stderr}"
        if out:
            (folder / out).write_text(done.stdout)
        printed += done.stdout + done.stderr
    return printed


def _named(word: str, kolm: Kolm, folder: Path) -> str:
    """The placeholder of something that differs from run to run."""
    if word in ("RECEIPT_ID", "0199…"):
        return str(kolm.json("receipts", "list")[-1]["receipt_id"])
    if word == "my-key.pem":
        return str(folder / ".kolm/keys/receipts.pem")
    if word.endswith("<digits>"):
        (pulled,) = (folder / ".kolm/heads").glob("[0-9a-f]*")
        return str(pulled)
    return word
