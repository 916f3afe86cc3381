"""`kolm heads`: published, fetched, withdrawn, measured."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.draft_head import KScore
from ledger.documents.signed_document import open_document, sign_document
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from services.cli.heads.fetch import pull_head
from services.client.ledger.ledger import LedgerClient
from services.client.registry import RegistryClient
from services.generation.drafting.mtp.block_weights import read_block
from services.generation.target.adapters import adapter_cid
from services.generation.target.config.config import read_config
from tests import cli
from tests.fakes.heads import head_config, write_kolm, write_speculators
from tests.fakes.mtp_models import make_mtp_model
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_head import changed_weights, make_tiny_adapter, tensors, tiny_head
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.auditor.deployment import Deployment
from tests.unit.ledger.builders import KEYS, withdrawal

Kolm = Callable[..., tuple[int, Any, str]]
HEAD = tiny_head()


@pytest.fixture
def kolm(deployment: Deployment, registry: str, tmp_path: Path) -> Kolm:
    """Runs a command with --json; exit code, output, stderr."""
    return against(deployment, registry, tmp_path, HEAD.write_base(tmp_path / "model"))


def against(deployment: Deployment, registry: str, data_dir: Path, model: Path) -> Kolm:
    environment = {
        "KOLM_LEDGER": deployment.address, "KOLM_REGISTRY": registry, "KOLM_DATA_DIR": data_dir, "KOLM_MODEL": model,
        "XDG_CACHE_HOME": data_dir / "cache",
    }  # fmt: skip

    def run(*arguments: object, text: bool = False) -> tuple[int, Any, str]:
        done = cli.kolm(*arguments, *(() if text else ("--json",)), environment=environment)
        return done.code, done.document if done.out and not text else done.out, done.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return HEAD.write(tmp_path / "head")


def test_a_head_goes_to_the_registry_and_comes_back_byte_for_byte(kolm: Kolm, folder: Path, tmp_path: Path) -> None:
    code, pushed, err = kolm("heads", "push", str(folder), "--name", "support-head", "--publisher", "acme")
    assert (code, len(err.splitlines())) == (0, 1)  # of the publisher's key, which it has made
    assert (pushed["created"], pushed["head_cid"]) == (True, HEAD.manifest.cid)
    assert pushed["sent"] == ["config.json", "model.safetensors", "base manifest", "config.json"]
    assert pushed["publications"][0]["publisher"] == "acme"
    _, again, err = kolm("heads", "push", str(folder), "--name", "support-head")
    assert (again["created"], again["sent"], err) == (False, [], "")

    code, pulled, _ = kolm("heads", "pull", "support-head", "--out", str(tmp_path / "here"))
    assert code == 0
    assert (tmp_path / "here" / "model.safetensors").read_bytes() == HEAD.weights
    assert (tmp_path / "here" / "config.json").read_bytes() == HEAD.config
    assert pulled["head_cid"] == HEAD.manifest.cid
    code, cached, _ = kolm("heads", "pull", f"support-head@sha256:{HEAD.manifest.cid[13:23]}")
    assert Path(cached["folder"]) == tmp_path / "heads" / HEAD.manifest.cid[13:]

    code, listed, _ = kolm("heads", "list")
    assert [head["names"] for head in listed] == [["support-head"]]
    code, shown, _ = kolm("heads", "list", HEAD.manifest.cid)
    assert shown["manifest"] == HEAD.manifest.to_document()
    code, text, err = kolm("heads", "push", str(folder), "--name", "another-name", text=True)
    assert (code, "another-name" in text, "--head another-name" in err) == (0, True, True)
    for words in (("list",), ("list", "support-head"), ("pull", "--check", "support-head")):
        assert "support-head" in kolm("heads", *words, text=True)[1]


def test_a_head_for_a_gguf_file_is_held_against_the_files_sizes(kolm: Kolm, tmp_path: Path) -> None:
    base = make_tiny_gguf(tmp_path / "base.gguf", layers=6, hidden=64, storage="q8_0")
    narrow = make_tiny_gguf(tmp_path / "narrow.gguf", layers=6, hidden=32, storage="q8_0")
    write_kolm(tmp_path / "head", head_config(read_config(base)))
    assert kolm("heads", "push", str(tmp_path / "head"), "--name", "other", "--model", str(narrow))[0] == 2
    assert not list((tmp_path / "registry" / "blobs").rglob("*/*/*"))
    code, pushed, err = kolm("heads", "push", str(tmp_path / "head"), "--name", "gguf-head", "--model", str(base))
    assert (code, pushed["sent"]) == (0, ["config.json", "model.safetensors", "base manifest", "config.json"]), err


def test_a_head_in_another_layout_is_written_in_kolm_s_as_it_is_pushed(kolm: Kolm, tmp_path: Path) -> None:
    base = make_tiny_gguf(tmp_path / "base.gguf", layers=6, hidden=64, storage="q8_0")
    write_speculators(tmp_path / "theirs", head_config(read_config(base)))
    push = ("heads", "push", str(tmp_path / "theirs"), "--name", "their-head", "--model", str(base))
    code, pushed, err = kolm(*push)
    assert (code, pushed["created"]) == (0, True), err
    assert (kolm(*push)[1]["created"], kolm(*push)[1]["head_cid"]) == (False, pushed["head_cid"])
    kolm("heads", "pull", "their-head", "--out", str(tmp_path / "here"))
    assert json.loads((tmp_path / "here" / "config.json").read_bytes())["layout"] == "kolm.eagle3.v1"
    layers = ("--model", base, "--feature-layers", "0,1,2")
    assert kolm("heads", "push", tmp_path / "here", "--name", "x", *layers)[0] == 2


def test_verify_finds_every_changed_byte_and_every_foreign_key(kolm: Kolm, folder: Path, tmp_path: Path) -> None:
    kolm("heads", "push", str(folder), "--name", "support-head")
    here = tmp_path / "here"
    kolm("heads", "pull", "support-head", "--out", str(here))
    code, verified, _ = kolm("heads", "pull", "--check", str(here))
    assert (code, verified["withdrawn"]) == (0, False)
    code, verified, _ = kolm("heads", "pull", "--check", str(here), "--offline")
    assert (code, verified["withdrawn"]) == (0, None)
    for path in [path for path in here.rglob("*") if path.is_file()]:
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        assert kolm("heads", "pull", "--check", str(here))[0] == 3, path
        path.write_bytes(before)
    (tmp_path / "empty").mkdir()
    assert kolm("heads", "pull", "--check", str(here), "--trusted", str(tmp_path / "empty"))[0] == 3


def test_a_head_that_is_called_like_a_directory_here_is_found_by_its_name(
    kolm: Kolm, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "support-head").mkdir()
    kolm("heads", "push", str(folder), "--name", "support-head")
    assert kolm("heads", "pull", "--check", "support-head")[0] == 0
    kolm("heads", "pull", "support-head", "--out", "here")
    assert kolm("heads", "pull", "--check", "here", "--offline")[0] == 0
    assert kolm("heads", "pull", "--check", "./nowhere")[0] == 2


def test_a_withdrawn_head_is_neither_pulled_nor_verified(kolm: Kolm, folder: Path, tmp_path: Path) -> None:
    kolm("heads", "push", str(folder), "--name", "support-head")
    kolm("heads", "pull", "support-head", "--out", str(tmp_path / "here"))
    code, withdrawn, _ = kolm("heads", "withdraw", "support-head", "--reason", "trained on the wrong data")
    assert code == 0
    assert withdrawn["withdrawal"]["reason"] == "trained on the wrong data"
    again = kolm("heads", "withdraw", "support-head", "--reason", "another reason", text=True)
    assert (again[0], "trained on the wrong data" in again[1]) == (0, True)
    for words in (("pull", "support-head"), ("pull", HEAD.manifest.cid), ("pull", "--check", str(tmp_path / "here"))):
        code, _, err = kolm("heads", *words)
        assert code == 3, words
        assert "trained on the wrong data" in err
    assert kolm("heads", "list")[1] == []
    assert len(kolm("heads", "list", "--all")[1]) == 1
    assert kolm("heads", "list", "support-head")[1]["withdrawal"] is not None
    assert kolm("heads", "pull", "--check", str(tmp_path / "here"), "--offline")[0] == 0  # unknown offline


def test_a_registry_that_keeps_quiet_about_a_withdrawal_is_not_believed(
    kolm: Kolm, folder: Path, tmp_path: Path, deployment: Deployment
) -> None:
    kolm("heads", "push", str(folder), "--name", "support-head")
    document = sign_document(withdrawal(HEAD.manifest.cid), KEYS["operator"])
    deployment.ledger.append(document.to_bytes())  # past the registry, which shows the head as before
    assert kolm("heads", "pull", "support-head")[0] == 3
    assert not (tmp_path / "heads").exists()


def test_an_invalid_head_is_refused_and_nothing_is_published(
    kolm: Kolm, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    tiny_head(weights=changed_weights(d2t=tensors()["d2t"] + 31)).write(broken)
    (tmp_path / "nothing").mkdir()
    for words, code, what in (
        (("push", broken, "--name", "bad"), 2, "d2t"),
        (("push", folder, "--name", "../bad"), 2, "--name"),
        (("push", folder, "--name", "bad", "--annotate", "x"), 2, "--annotate"),
        (("push", tmp_path / "nothing", "--name", "bad"), 2, "config.json"),
        (("push", folder, "--name", "bad", "--model", tmp_path / "nothing"), 2, "--model"),
        (("push", folder, "--name", "bad", "--model", tmp_path / "nowhere"), 2, "--model"),
        (("pull", "missing"), 4, "missing"),
        (("pull", "a/b"), 2, "reference"),
        (("pull", "x", "--base", "y"), 2, "--base"),
        (("pull", "--check", "missing"), 4, "missing"),
        (("withdraw", "missing", "--reason", "x", "--by-operator", "--key", tmp_path / "none.pem"), 4, "missing"),
    ):
        found, _, err = kolm("heads", *words)
        assert (found, what in err) == (code, True), (words, found, err)
    assert not (tmp_path / "none.pem").exists()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 9)  # a user without a name
    code, _, err = kolm("heads", "push", folder, "--name", "good")
    assert (code, "--publisher" in err) == (2, True), err
    assert kolm("heads", "list", "--all")[1] == []


def test_a_head_is_not_published_for_another_base_than_its_own(kolm: Kolm, folder: Path, tmp_path: Path) -> None:
    for trained_on, code in (("cidv1:sha256:" + "0b" * 32, 2), (HEAD.base.cid, 0)):
        (folder / "training.json").write_text(json.dumps({"base_cid": trained_on}))
        found, _, err = kolm("heads", "push", str(folder), "--name", "support-head")
        assert (found, trained_on in err) == (code, code == 2)
    (folder / "training.json").write_text("[]")
    assert kolm("heads", "push", str(folder), "--name", "support-head")[0] == 2


def test_an_untrusted_publisher_gets_the_file_to_hand_over(kolm: Kolm, folder: Path, tmp_path: Path) -> None:
    elsewhere = ("--key", str(tmp_path / "mine" / "publisher.pem"), "--trusted", str(tmp_path / "nowhere"))
    for _ in range(2):
        code, _, err = kolm("heads", "push", str(folder), "--name", "support-head", *elsewhere)
        public = next((tmp_path / "mine").glob("publisher-*.pub"))
        assert (code, str(public) in err.replace("\n", "")) == (2, True)
    assert kolm("heads", "list")[1] == []
    (tmp_path / "trusted" / public.name).write_bytes(public.read_bytes())
    assert kolm("heads", "push", str(folder), "--name", "support-head", *elsewhere)[0] == 0


def test_a_pull_overwrites_only_what_a_pull_has_written(kolm: Kolm, folder: Path, tmp_path: Path) -> None:
    kolm("heads", "push", str(folder), "--name", "support-head")
    assert kolm("heads", "pull", "support-head", "--out", str(tmp_path / "model"))[0] == 2
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == b"weights"
    (here := tmp_path / "here").mkdir()
    (here / "config.json").write_bytes(HEAD.config)  # as an interrupted pull leaves it
    assert kolm("heads", "pull", "support-head", "--out", str(here))[0] == 0
    (here / "model.safetensors").write_bytes(b"damaged")
    assert kolm("heads", "pull", "support-head", "--out", str(here))[0] == 0
    assert (here / "model.safetensors").read_bytes() == HEAD.weights


def test_a_pull_of_a_damaged_head_leaves_nothing_behind(kolm: Kolm, folder: Path, tmp_path: Path) -> None:
    kolm("heads", "push", str(folder), "--name", "support-head")
    digest = HEAD.manifest.weights.files[0].digest.removeprefix("sha256:")
    (blob,) = (tmp_path / "registry" / "blobs").rglob(digest)
    blob.write_bytes(bytes(len(HEAD.weights)))
    (partly := tmp_path / "partly").mkdir()
    (partly / "notes.txt").write_text("mine")
    for out, left in ((tmp_path / "here", None), (partly, {"notes.txt", "config.json"})):
        assert kolm("heads", "pull", "support-head", "--out", str(out))[0] == 3
        assert ({path.name for path in out.iterdir()} if out.exists() else None) == left


def test_pulls_into_one_folder_take_turns(
    kolm: Kolm, folder: Path, deployment: Deployment, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kolm("heads", "push", str(folder), "--name", "support-head")
    whole, both, keys = RegistryClient.download, threading.Barrier(2), TrustedKeys.load(tmp_path / "trusted")

    def together(self: RegistryClient, digest: str, offset: int = 0) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(1.0)
        return whole(self, digest, offset)

    def pull(_: int) -> Path | None:
        with RegistryClient.connect(registry) as client, LedgerClient.connect(deployment.address) as log:
            return pull_head(client, log, keys, "support-head", out=tmp_path / "here", cache=tmp_path).folder

    monkeypatch.setattr(RegistryClient, "download", together)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(pull, range(2))) == [tmp_path / "here"] * 2
    assert (tmp_path / "here" / "model.safetensors").read_bytes() == HEAD.weights


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
def kscoring(deployment: Deployment, registry: str, files: Path, tmp_path: Path) -> Kolm:
    return against(deployment, registry, tmp_path, files / "base")


def measuring(files: Path, *more: str) -> tuple[str, ...]:
    return ("--prompts", str(files / "prompts.jsonl"), "--limit", "4", "--max-tokens", "12", *more)


def test_scores_are_signed_put_on_record_and_shown(
    kscoring: Kolm, deployment: Deployment, files: Path, tmp_path: Path
) -> None:
    code, pushed, err = kscoring("heads", "push", files / "head", "--name", "support-head")
    assert code == 0, err
    flags = measuring(files, "--adapters", str(files / "adapters"))
    code, scores, err = kscoring("heads", "kscore", "support-head", *flags)
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
    _, shown, _ = kscoring("heads", "list", "support-head")
    assert {score["adapter_cid"]: score["status"] for score in shown["kscores"]} == dict.fromkeys(
        cids, "NEEDS_RETRAINING"
    )


def test_the_block_inside_a_model_is_measured_and_not_put_on_record(
    kscoring: Kolm, files: Path, tmp_path: Path
) -> None:
    model = make_mtp_model(tmp_path / "model")
    flags = ("--model", str(model), *measuring(files))
    code, scores, err = kscoring("heads", "kscore", "mtp", "--no-record", *flags)
    assert code == 0, err
    block = read_block(model, read_config(model))
    assert block is not None
    assert [(each["manifest_cid"], each["ledger_index"], each["k"]) for each in scores] == [(block.cid, None, 4)]
    assert kscoring("heads", "kscore", "mtp", *flags)[0] == 2
    assert kscoring("heads", "kscore", "mtp", "--no-record", *measuring(files))[0] == 2  # of a model without a block


def test_an_adapter_for_another_base_is_refused(kscoring: Kolm, files: Path, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", hidden=96, heads=6)
    adapter = make_tiny_adapter(tmp_path / "foreign", other, base_model_name_or_path="")
    flags = ("--no-record", "--adapters", adapter, *measuring(files))
    code, _, err = kscoring("heads", "kscore", files / "head", *flags)
    assert (code, "foreign" in err) == (2, True)


def test_two_adapters_of_one_name_are_refused(kscoring: Kolm, files: Path, tmp_path: Path) -> None:
    shutil.copytree(files / "adapters" / "mild", tmp_path / "mild")
    flags = ("--no-record", "--adapters", files / "adapters", "--adapters", tmp_path, *measuring(files))
    code, _, err = kscoring("heads", "kscore", files / "head", *flags)
    assert (code, str(tmp_path / "mild") in err) == (2, True)
