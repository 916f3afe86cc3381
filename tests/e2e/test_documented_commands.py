"""The commands of the documentation, run as they stand there against the real services."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from docs.outputs import up as shown_up
from docs.outputs import write_files
from ledger.keys.ed25519 import SigningKey
from services.generation.target.config.config import read_config
from tests.documented import ROOT, SMOLLM2, TRAINED_HEAD, WITH_ADAPTERS
from tests.e2e.shell import Shell, started
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_adapter import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model


def test_every_command_for_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _folder(tmp_path, monkeypatch), started(shown_up(), tmp_path) as shell:
        assert _asked_by_curl(shell.addresses["http"])["kolm"]["receipts"]
        shell.places = _places(shell)
        for line in SMOLLM2:
            if line.startswith("kolm serve"):
                with shell.serving(line):
                    pass
            else:
                shell.run(line)


def test_a_base_with_all_that_goes_with_it_and_a_head_that_is_trained_tried_published_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, try_it, *publish, serve = TRAINED_HEAD
    start, *lines = WITH_ADAPTERS
    with _folder(tmp_path, monkeypatch):
        base = str(_small_base(tmp_path, monkeypatch))
        Shell(tmp_path, places={"smollm2": base}).run(train)
        places, flags = {"demo/smollm2/head": "head", "path/to/smaller": base}, ("--model", base, "--audit-rate=0")
        with started(f"{start} {try_it.removeprefix('kolm up ')}", tmp_path, *flags, places=places) as shell:
            for line in (*lines, *publish):
                shell.run(line)
        with started(serve, tmp_path, *flags) as shell:
            answer = shell.kolm.json("generate", "def area(", "--method=eagle3", "--max-tokens=4")
            newest = shell.kolm.json("heads", "list")[0]
        assert answer["receipt"]["document"]["spec_decode"]["head_cid"] == newest["head_cid"]


def _small_base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base of random weights in the place of the bundled one, with a head and adapters."""
    base = make_tiny_model(folder / "base")
    write_kolm(folder / "head", head_config(read_config(base)))
    for name in ("courteous", "capitals"):
        make_tiny_adapter(folder / "adapters" / name, base)
    monkeypatch.setenv("KOLM_MODEL", str(base))
    return base


@contextmanager
def _folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with what the pages name beside the demo's files."""
    (path / "demo").symlink_to(ROOT / "demo")
    write_files(path)
    (path / "before.py").write_text("def add(a, b):\n    return a + b\n")
    (path / "edit.txt").write_text("Rename a to x:\n\ndef add(a, b):\n    return a + b\n")
    prompts = [json.dumps({"prompt": f"The ledger keeps {number}"}) + "\n" for number in range(12)]
    for name in ("prompts.jsonl", "held-out.jsonl", "prompts/held-out/code.jsonl"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("".join(prompts))
    monkeypatch.chdir(path)
    yield


def _asked_by_curl(front: str) -> Any:
    """The answer to the README's own line, which stands there for the front's usual port."""
    (line,) = re.findall(r"^ {4}(curl (?:.*\\\n)*.*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    asked = line.replace("127.0.0.1:50057", front)
    return json.loads(subprocess.check_output(["bash", "-c", asked], text=True))


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
