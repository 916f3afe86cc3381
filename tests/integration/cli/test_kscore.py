"""`kolm heads kscore` on a real engine, registry and ledger: measured, signed, on record, shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ledger.documents.draft_head import KScore
from ledger.documents.signed_document import open_document
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from services.cli.main import app
from services.generation.target.adapters import adapter_cid
from services.generation.target.config.config import read_config
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_adapter import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.auditor.deployment import Deployment

Kolm = Callable[..., tuple[int, Any, str]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a head for it, two adapters, prompts."""
    folder = tmp_path_factory.mktemp("files")
    base = make_tiny_model(folder / "base")
    write_kolm(folder / "head", head_config(read_config(base)))
    for seed, name in enumerate(("mild", "wide")):
        make_tiny_adapter(folder / "adapters" / name, base, seed=seed)
    lines = [json.dumps({"prompt": f"The ledger keeps {number}"}) for number in range(6)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture
def kolm(deployment: Deployment, registry: str, files: Path, tmp_path: Path) -> Kolm:
    """Runs `kolm heads …`; exit code, what it printed (parsed after --json), stderr."""
    environment = {
        "KOLM_LEDGER": deployment.address, "KOLM_REGISTRY": registry, "KOLM_DATA_DIR": str(tmp_path),
        "KOLM_MODEL": str(files / "base"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TERM": "dumb",
    }  # fmt: skip

    def run(*arguments: str) -> tuple[int, Any, str]:
        result = CliRunner(env=environment).invoke(app, ["heads", *arguments])
        printed = json.loads(result.stdout) if "--json" in arguments and result.stdout else result.stdout
        return result.exit_code, printed, result.stderr

    return run


def measuring(files: Path, *more: str) -> tuple[str, ...]:
    return ("--prompts", str(files / "prompts.jsonl"), "--limit", "4", "--max-tokens", "12", *more)


def test_scores_are_signed_put_on_record_and_shown(
    kolm: Kolm, deployment: Deployment, files: Path, tmp_path: Path
) -> None:
    code, pushed, err = kolm("push", str(files / "head"), "--name", "support-head", "--json")
    assert code == 0, err
    flags = measuring(files, "--adapters", str(files / "adapters"), "--json")
    code, scores, err = kolm("kscore", "support-head", *flags)
    assert code == 0, err
    cids = [None, *(adapter_cid(files / "adapters" / name) for name in ("mild", "wide"))]
    assert [(each["adapter"], each["adapter_cid"]) for each in scores] == list(
        zip((None, "mild", "wide"), cids, strict=True)
    )
    for each in scores:
        assert (each["manifest_cid"], each["k"], each["status"]) == (pushed["head_cid"], 4, "NEEDS_RETRAINING")
        entry = Entry.from_bytes(deployment.ledger.entry(each["ledger_index"]).entry)
        document = open_document(entry.envelope, TrustedKeys.load(tmp_path / "trusted"))
        assert isinstance(document, KScore)
        assert document.to_document().items() <= each.items()
    _, shown, _ = kolm("list", "support-head", "--json")
    assert {score["adapter_cid"]: score["status"] for score in shown["kscores"]} == dict.fromkeys(
        cids, "NEEDS_RETRAINING"
    )


def test_a_folder_is_measured_without_anybody_and_recorded_nowhere(
    kolm: Kolm, deployment: Deployment, files: Path
) -> None:
    before = deployment.ledger.checkpoint().tree_size
    code, printed, err = kolm("kscore", str(files / "head"), "--no-record", *measuring(files))
    assert (code, "needs retraining" in printed) == (0, True), err
    assert deployment.ledger.checkpoint().tree_size == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--adapters", "/no/such"), "--adapters: no adapter_config.json in /no/such"),
        (("--prompts", "/no/such.jsonl"), "--prompts: /no/such.jsonl: no such file"),
        (("--model", "/no/such"), "--model: there is no model /no/such"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_is_not_there_is_named(kolm: Kolm, files: Path, flags: tuple[str, ...], words: str) -> None:
    code, _, err = kolm("kscore", str(files / "head"), *measuring(files), "--no-record", *flags)
    assert code == 2
    assert words in err


def test_a_head_that_was_never_published_gets_no_score(kolm: Kolm, files: Path) -> None:
    code, _, err = kolm("kscore", str(files / "head"), *measuring(files))
    assert code == 4
    assert "no head 'cidv1:sha256:" in err


def test_an_adapter_for_another_base_is_refused(kolm: Kolm, files: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", hidden=96, heads=6)
    adapter = make_tiny_adapter(tmp_path / "foreign", other, base_model_name_or_path="")
    code, _, err = kolm("kscore", str(files / "head"), "--no-record", "--adapters", str(adapter), *measuring(files))
    assert code == 2
    assert "adapter foreign: " in err
    assert "is the adapter for another base?" in err
