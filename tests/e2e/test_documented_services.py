"""Servers that the documentation starts one by one: they start, answer, and end, by the lines that stand there."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.cli.init import Authority
from services.generation.target.config.config import read_config
from tests import documented
from tests.documented import ROOT
from tests.e2e.command import until
from tests.e2e.shell import Shell
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_model import make_tiny_model
from tests.object_storage import CREDENTIALS, make_bucket
from tests.softhsm import Token


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """In a folder with what the pages name beside the demo's files."""
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    (tmp_path / "passphrase").write_text("correct horse battery staple\n")
    (tmp_path / "kolm.toml").write_text('[ledger]\ndata_dir = "configured"\n')
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


def test_services_by_hand(shell: Shell, s3_endpoint: str) -> None:
    make_bucket(s3_endpoint, "heads")
    bucket = {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_endpoint}
    shell.places = {"path/to/base": "smollm2", "http://127.0.0.1:9000": s3_endpoint}
    with ExitStack() as stay:
        for line in documented.BY_HAND:
            if "kolm serve" not in line:
                shell.run(line)
            elif "--principals" in line:
                ledger = {"KOLM_GENERATION_LEDGER": shell.addresses["ledger"]} if "generation" in line else {}
                stay.enter_context(shell.serving(line, **ledger))
            else:
                with shell.serving(line, **bucket):
                    pass
        until(lambda: len(shell.kolm.json("receipts", "list")) == 1)


def test_ledgers(shell: Shell) -> None:
    for line in documented.LEDGERS:
        with shell.serving(line):
            assert shell.run("kolm ledger head --trusted nobody")
    assert b"ENCRYPTED" in Path(".kolm/keys/log.pem").read_bytes()


def test_datastores_and_generation_servers(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small base is in the place of the one that is bundled: each server loads it."""
    base = make_tiny_model(shell.folder / "base")
    write_kolm(shell.folder / "head", head_config(read_config(base)))
    for asked in ("KOLM_MODEL", "KOLM_GENERATION_MODEL"):
        monkeypatch.setenv(asked, str(base))
    for name, text in (("docs/read.md", "# A page\n"), ("docs/page.css", "p {}\n"), ("src/sum.py", "def add(a, b):\n")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(20 * text)
    Path("answers.txt").write_text(20 * "The sky is blue.\n")
    library = str(Path(json.__file__).parent)
    shell.places = {
        "$(python -c 'import sysconfig; print(sysconfig.get_path(stdlib))')": library,  # a part of it
        "demo/smollm2/head": str(shell.folder / "head"),
        "smollm2": str(base),
    }
    for line in documented.DATASTORES:
        shell.run(line)
    shutil.copytree("docs.store", "acme.store")
    for line in documented.GENERATIONS:
        with shell.serving(line):
            assert "4 tokens" in shell.run('kolm generate "The sky is" --max-tokens 4')


def test_a_witness_of_a_ledger(shell: Shell) -> None:
    authority = Authority.create(datetime.now(UTC)).issue("w1", ("127.0.0.1",), datetime.now(UTC), 1)
    Path("w1.pem").write_bytes(authority.certificate)
    Path("w1.key").write_bytes(authority.key)
    shell.places = {"0.0.0.0:50055": "127.0.0.1:0"}
    ledger, witness = documented.WITNESSED
    with shell.serving(ledger):
        shutil.copy("ledger/log.vkey", "log.vkey")
    with shell.serving(witness):
        assert Path("w1/vkey").read_text().startswith("w1.example/kolm+")


def test_a_ledger_with_tls(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    init, serve, *lines = documented.WITH_TLS
    shell.run(init)
    for export in Path("deployment/client.env").read_text().splitlines():
        name, _, value = export.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, json.loads(value))
    with shell.serving(serve):
        Path("deployment/public").symlink_to("ledger/public")
        for line in lines:
            shell.run(line)


def test_a_ledger_whose_key_is_in_a_device(shell: Shell, softhsm: Token) -> None:
    shutil.copy(softhsm.pin_file, "pin")
    (line,) = documented.IN_A_DEVICE
    with shell.serving(line):
        assert shell.run("kolm ledger head --trusted nobody")
    assert not Path(".kolm/keys").exists()


def test_a_ledger_on_postgresql(shell: Shell, postgres_url: str) -> None:
    shell.places = {"postgresql+psycopg://kolm@db/kolm": postgres_url, "/mnt/other": str(shell.folder)}
    serve, fsck = documented.ON_POSTGRESQL
    with shell.serving(serve):
        shell.run("kolm trust add .kolm/public")
    shell.run(fsck)
