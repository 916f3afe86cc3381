"""The files of `kolm init` are enough: services start from it, talk by mutual TLS, and take renewed certificates."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import verification
from typer.testing import CliRunner

from services.cli.main import app
from services.client import ClientTls, LedgerClient
from services.client.errors import Unauthenticated, Unavailable

PATIENCE = 240.0


def kolm(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "deployment"
    code, _, said = kolm("init", str(folder), "--host", "ledger.example", "--days", "2")
    assert code == 0, said
    return folder


def test_private_files_are_for_their_owner_alone(folder: Path) -> None:
    modes = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    public = {path for path, mode in modes.items() if mode not in (0o600, 0o700)}
    assert public
    assert all(path.suffix == ".pem" for path in public)


def test_a_folder_with_files_is_left_as_it_is(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, _, said = kolm("init", str(folder))
    assert (code, "is there already" in said) == (2, True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", ["ledger.example", "localhost", "generation"])
def test_a_certificate_is_valid_for_the_names_that_were_asked_for(folder: Path, name: str) -> None:
    authority = x509.load_pem_x509_certificate((folder / "tls" / "ca.pem").read_bytes())
    shown = x509.load_pem_x509_certificate((folder / "tls" / "generation.pem").read_bytes())
    now = datetime.now(UTC)
    policy = verification.PolicyBuilder().store(verification.Store([authority]))
    chain = policy.time(now).build_server_verifier(x509.DNSName(name)).verify(shown, [])
    assert chain == [shown, authority]
    with pytest.raises(verification.VerificationError):
        policy.time(now + timedelta(days=3)).build_server_verifier(x509.DNSName(name)).verify(shown, [])


@contextmanager
def _ledger(folder: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "services.ledger",
        "--config",
        str(folder / "kolm.toml"),
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("ledger listening on "), line
            yield line.split()[-1]
        finally:
            process.kill()


def test_a_service_starts_from_the_settings_and_takes_a_renewed_certificate(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in (folder / "client.env").read_text().splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value.strip('"'))
    settings = tomllib.loads((folder / "kolm.toml").read_text())
    assert all(Path(table["tls_key"]).is_file() for table in settings.values())
    assert settings["generation"]["ledger"] == f"https://localhost:{settings['ledger']['listen'].split(':')[1]}"
    with _ledger(folder) as address:
        target = f"https://localhost:{address.rpartition(':')[2]}"
        assert kolm("trust", "add", str(folder / "ledger" / "public"), "--data-dir", str(folder))[0] == 0
        code, out, said = kolm("ledger", "head", "--ledger", target, "--note", "--data-dir", str(folder))
        assert (code, out.startswith("kolm.local/ledger\n0\n")) == (0, True), said
        own = ClientTls.of_process()
        with LedgerClient.connect(address, tls=ClientTls(own.ca)) as nobody, pytest.raises(Unavailable):
            nobody.checkpoint()
        before = (folder / "tls" / "ledger.pem").read_bytes()
        assert kolm("init", str(folder), "--renew")[0] == 0
        assert (folder / "tls" / "ledger.pem").read_bytes() != before
        with LedgerClient.connect(address) as renewed:
            assert renewed.checkpoint().tree_size == 0
            assert list(renewed.receipts()) == []  # by the name in its certificate, a principal with every role
        front = ClientTls(own.ca, folder / "tls" / "http.pem", folder / "tls" / "http.key")
        with LedgerClient.connect(address, tls=front) as rightless, pytest.raises(Unauthenticated):
            list(rightless.receipts())
