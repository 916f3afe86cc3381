"""`kolm ledger export`: the manifests of the heads that receipts name, and archives of every kind that is offered."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledger.documents.receipt import SpecDecode
from services.cli.main import app
from tests.fakes.tiny_head import tiny_head
from tests.integration.auditor.deployment import Deployment
from tests.replacing import replace
from tests.unit.ledger.builders import receipt, receipt_id, signed

Kolm = Callable[..., tuple[int, str, str]]
HEAD = tiny_head()
DRAFTED = replace(receipt(0).spec_decode, method="eagle3", head_cid=HEAD.manifest.cid, fallback_reason=None)
NOBODY = "127.0.0.1:1"
UNKNOWN = "cidv1:sha256:" + "7" * 64


@pytest.fixture
def kolm(deployment: Deployment, registry: str, tmp_path: Path) -> Kolm:
    environment = {"KOLM_LEDGER": deployment.address, "KOLM_REGISTRY": registry, "KOLM_DATA_DIR": str(tmp_path)}
    environment |= {"KOLM_MODEL": str(HEAD.write_base(tmp_path / "model")), "TERM": "dumb", "COLUMNS": "400"}

    def run(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner(env=environment).invoke(app, [str(word) for word in arguments])
        return result.exit_code, result.stdout, result.stderr

    code, _, err = run("heads", "push", HEAD.write(tmp_path / "head"), "--name", "support-head")
    assert code == 0, err
    return run


def drafted(deployment: Deployment, number: int, block: SpecDecode = DRAFTED) -> None:
    """Append a receipt whose tokens a head has drafted."""
    deployment.ledger.append(signed(receipt(number, base_cid=HEAD.manifest.subject, spec_decode=block)))


def heads_check(kolm: Kolm, path: Path) -> str:
    """The result of the check of heads on a valid bundle."""
    code, out, err = kolm("verify", path, "--json")
    assert code == 0, out + err
    return str(json.loads(out)["checks"][12]["detail"])


def test_the_manifests_of_the_heads_that_receipts_name_go_along(
    kolm: Kolm, deployment: Deployment, tmp_path: Path
) -> None:
    drafted(deployment, 0)
    code, _, err = kolm("ledger", "export", tmp_path / "all")
    assert (code, "not in the bundle" in err) == (0, False)
    manifests = list((tmp_path / "all/heads").iterdir())
    assert [path.read_bytes() for path in manifests] == [HEAD.manifest.to_bytes()]
    assert heads_check(kolm, tmp_path / "all").endswith("without a publication; 1 manifest")


def test_a_range_without_heads_asks_no_registry(kolm: Kolm, deployment: Deployment, tmp_path: Path) -> None:
    deployment.receive(1)
    code, _, err = kolm("ledger", "export", tmp_path / "one.tar", "--receipt", receipt_id(1), "--registry", NOBODY)
    assert (code, "not in the bundle" in err) == (0, False)


def test_a_registry_that_is_away_is_named_and_the_verifier_says_what_is_absent(
    kolm: Kolm, deployment: Deployment, tmp_path: Path
) -> None:
    drafted(deployment, 0)
    code, _, err = kolm("ledger", "export", tmp_path / "all", "--registry", NOBODY)
    assert code == 0
    assert f"not in the bundle: the manifest of {HEAD.manifest.cid}" in err
    assert "does not answer" in err
    assert f"0 manifests, none of {HEAD.manifest.cid}" in heads_check(kolm, tmp_path / "all")


def test_a_head_that_nobody_registered_is_named(kolm: Kolm, deployment: Deployment, tmp_path: Path) -> None:
    drafted(deployment, 0)
    drafted(deployment, 1, replace(DRAFTED, head_cid=UNKNOWN))
    code, _, err = kolm("ledger", "export", tmp_path / "all")
    assert (code, f"the manifest of {UNKNOWN}" in err, "does not know this head" in err) == (0, True, True)
    assert f"1 manifest, none of {UNKNOWN}" in heads_check(kolm, tmp_path / "all")


def test_a_registry_that_gives_another_manifest_is_not_believed(
    kolm: Kolm, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted(deployment, 0)
    forged = replace(HEAD.manifest, annotations={"note": "another"}).to_bytes()
    head = "services.client.registry.RegistryClient.head"
    monkeypatch.setattr(head, lambda *_: type("Head", (), {"manifest": forged}))
    code, _, err = kolm("ledger", "export", tmp_path / "all")
    assert (code, "gave something else" in err, (tmp_path / "all/heads").exists()) == (0, True, False)


@pytest.mark.parametrize(
    ("name", "begins"),
    [("all.tar.gz", b"\x1f\x8b"), ("all.tgz", b"\x1f\x8b"), ("all.tar", b"bundle.json\0")],
)
def test_a_name_of_an_archive_gets_an_archive(
    kolm: Kolm, deployment: Deployment, tmp_path: Path, name: str, begins: bytes
) -> None:
    drafted(deployment, 0)
    assert kolm("ledger", "export", tmp_path / name)[0] == 0
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert heads_check(kolm, tmp_path / name).endswith("1 manifest")


@pytest.mark.parametrize("name", ["all.tar.xz", "all.7z", "all.gz"])
def test_an_archive_that_verify_would_not_read_is_not_written(kolm: Kolm, tmp_path: Path, name: str) -> None:
    code, _, err = kolm("ledger", "export", tmp_path / name)
    assert (code, "write .tar.gz, .tar" in err, (tmp_path / name).exists()) == (2, True, False)
