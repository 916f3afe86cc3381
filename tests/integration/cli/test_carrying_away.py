"""Logs carried away as bundles, and verified."""

import asyncio
import os
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kolm.ledger.v1.ledger_pb2 import AppendEntryRequest
from ledger.bundle.export import Export, export_bundle
from ledger.bundle.layout import BundleFile
from ledger.bundle.tiles import TiledTree, TileFolder
from ledger.documents.receipt import SpecDecode
from ledger.documents.signed_document import sign_document
from ledger.errors import SignatureError, StoreError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.key_scope import KeyScope
from ledger.keys.note import Note, VerifierKey
from ledger.keys.trusted_keys import RETIRED, TrustedKeys
from ledger.log.store import entries_from
from ledger.log.writer import BatchPlan
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import inclusion_proof, leaf_hash
from ledger.tree.tile import TileHashes
from ledger.tree.tlog_proof import TlogProof
from services.cli.ledger import key_rotation
from services.generation.receipts.journal import Journal, Kind
from tests import cli
from tests.cli import Ended
from tests.examples import VECTORS
from tests.fakes.tiny_head import tiny_head
from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.conftest import Kolm
from tests.integration.ledger_store.writing import writing
from tests.mutations import replace
from tests.unit.ledger.builders import ORIGIN, content, receipt, receipt_id, signed
from tests.unit.ledger.test_mutations import FILES
from tests.vectors.make_bundles import checkpoint as signed_head
from tests.vectors.make_bundles import exported, log_of, write_folder


@pytest.fixture
def filled(deployment: Deployment, tmp_path: Path) -> Path:
    """The deployment's data directory, with receipts in its ledger."""
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    for number in range(12):
        deployment.ledger.append(sign_document(receipt(number), key).to_bytes(), content(number))
    return tmp_path


def verified(kolm: Kolm, path: Path, *arguments: object) -> dict[str, Any]:
    done = kolm("verify", path, "--json", *arguments)
    assert done.code in (0, 3), done.err
    report: dict[str, Any] = done.document
    assert report["ok"] == (done.code == 0)
    return report


def test_a_log_is_carried_away_and_verified(kolm: Kolm, filled: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "all.tar.gz", tmp_path / "all"):
        assert kolm("ledger", "export", path).code == 0
        report = verified(kolm, path)
        assert (report["ok"], report["range"]) == (True, [0, report["size"]])
    assert kolm("verify", tmp_path / "all").code == 0
    assert kolm("verify", tmp_path / "all", "--max-age", "1d").code == 3
    assert kolm("verify", tmp_path / "all", "--max-age", "soon").code == 2
    assert kolm("ledger", "export", tmp_path / "all.tar.gz").code == 2


def test_receipts_ranges_and_content_are_carried_away(kolm: Kolm, filled: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.tar.gz"
    assert kolm("ledger", "export", chosen, "--receipt", receipt_id(3), "--content").code == 0
    report = verified(kolm, chosen)
    assert (report["ok"], report["kinds"]) == (True, {"receipt": 1})
    assert report["checks"][10]["passed"] is True
    ranged = tmp_path / "range"
    assert kolm("ledger", "export", ranged, "--start", "2", "--end", "7").code == 0
    assert verified(kolm, ranged)["range"] == [2, 7]


def test_a_proof_file_stands_for_itself(kolm: Kolm, filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.tlog-proof"
    assert kolm("ledger", "export", path, "--receipt", receipt_id(5)).code == 0
    assert Entry.from_bytes(TlogProof.from_bytes(path.read_bytes()).extra or b"").index == verified(kolm, path)["index"]
    proof = TlogProof.from_bytes(path.read_bytes())
    path.write_bytes(TlogProof(proof.index, proof.hashes[:-1], proof.checkpoint, proof.extra).to_bytes())
    assert kolm("verify", path).code == 3
    path.write_bytes(TlogProof(proof.index, proof.hashes, proof.checkpoint).to_bytes())
    assert kolm("verify", path).code == 3
    assert kolm("ledger", "export", tmp_path / "two.tlog-proof").code == 2


def test_tiles_are_those_of_the_log_and_grow_with_it(
    kolm: Kolm, filled: Path, deployment: Deployment, tmp_path: Path
) -> None:
    folder = tmp_path / "tiles"
    for added in (0, 1):
        if added:
            key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
            deployment.ledger.append(sign_document(receipt(50), key).to_bytes())
            (folder / ".draft-a1b2c3").touch()  # of a run that a power cut ended
        done = kolm("ledger", "export", "--format=tiles", folder, "--json")
        size = deployment.ledger.checkpoint().tree_size
        assert (done.code, done.document) == (0, {"before": size - 1 if added else 0, "size": size})
        assert (folder / "checkpoint").read_bytes() == deployment.ledger.checkpoint().note
        hashes = (folder / f"tile/0/000.p/{size}").read_bytes()
        entries = TiledTree(TileFolder(folder), size).entries(0)
        assert hashes == deployment.ledger.tile(0, 0) == b"".join(map(leaf_hash, entries))
    (folder / "index.html").write_text("another site")
    assert kolm("ledger", "export", "--format=tiles", folder).code == 2


def test_an_earlier_checkpoint_holds_the_log_to_its_word(
    kolm: Kolm, filled: Path, deployment: Deployment, tmp_path: Path
) -> None:
    printed = kolm("ledger", "head", "--note").out
    assert printed.encode() == deployment.ledger.checkpoint().note
    assert kolm("ledger", "head", "--note", "--json").code == 2
    (tmp_path / "then").write_text(printed, encoding="utf-8")
    key = SigningKey.load(tmp_path / "keys/receipts.pem", "receipts")
    deployment.ledger.append(sign_document(receipt(20), key).to_bytes())
    assert kolm("ledger", "export", tmp_path / "now.tar.gz").code == 0
    assert verified(kolm, tmp_path / "now.tar.gz", "--checkpoint", tmp_path / "then")["ok"]
    assert kolm("verify", tmp_path / "now.tar.gz", "--checkpoint", "nothing").code == 2


vector = partial(cli.kolm, "verify")


def failed(done: Ended) -> list[int]:
    """The numbers of the checks of `kolm verify --json` that have failed."""
    assert done.code == 3, done
    return [check["number"] for check in done.document["checks"] if check["passed"] is False]


def test_trust_is_named_on_the_command_line() -> None:
    good, keys = VECTORS / "bundles/good.tar.gz", VECTORS / "log/keys"
    policy, one_unreplayable = VECTORS / "bundles/policy", ("--max-unreplayable", "1")
    assert vector(good, "--trusted", keys, "--policy", policy, *one_unreplayable).code == 0
    one = VECTORS / "bundles/cosigned_by_one.tar.gz"
    assert vector(one, "--trusted", keys, *one_unreplayable).code == 0
    assert vector(one, "--trusted", keys, "--policy", policy).code == 3
    for wrong in (
        *(("--policy", keys / "log.pub"), ("--policy", "nothing")),
        *(("--as-of", "soon"), ("--as-of", "0001-01-01T00:00:00+23:00"), ("--checkpoint", keys / "log.pub")),
    ):
        assert vector(good, "--trusted", keys, *wrong).code == 2
    assert vector(good, "--trusted", keys, "--as-of", "2030-01-01", *one_unreplayable).code == 0


def test_a_log_that_stopped_before_its_audits_is_green_by_its_own_clock_alone(tmp_path: Path) -> None:
    unjudged = log_of(drop=1)  # the last verdict never came
    write_folder(
        (BundleFile(path, data) for path, data in exported(unjudged, checkpoint=signed_head(log_of(), 13, "")).items()),
        tmp_path / "bundle",
    )
    known = (tmp_path / "bundle", "--trusted", VECTORS / "log/keys", "--max-unreplayable", "1")
    assert failed(vector(*known, "--json")) == [10]
    assert vector(*known, "--as-of", "log", "--json").document["size"] == 13


def test_replays_that_were_impossible_are_not_green_unless_they_are_accepted() -> None:
    known = (VECTORS / "bundles/good.tar.gz", "--trusted", VECTORS / "log/keys")
    assert failed(vector(*known, "--json")) == [14]
    accepted = vector(*known, "--max-unreplayable", "1", "--json")
    assert (accepted.code, accepted.document["outcomes"]["UNREPLAYABLE"]) == (0, 1)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data directory of a deployment whose services have stopped."""
    keys = {
        role: SigningKey.load_or_create(tmp_path / f"keys/{role}.pem", role) for role in ("log", "receipts", "operator")
    }
    for key in keys.values():
        key.publish(tmp_path / "trusted")
    fill(tmp_path, 0)
    return tmp_path


def fill(data_dir: Path, number: int) -> None:
    """As the ledger service would: only keys that have not been replaced may sign."""
    trusted = TrustedKeys.load(data_dir / "trusted", retired=False)
    log, receipts = (SigningKey.load(data_dir / f"keys/{role}.pem", role) for role in ("log", "receipts"))
    guard = data_dir / "guard.sqlite3"
    with writing(data_dir / "ledger.sqlite3", guard=guard, key=log, trusted=trusted) as (_, sequencer):
        sequencer.append(sign_document(receipt(number), receipts).to_bytes()).result()


def rotate(data_dir: Path, *arguments: object) -> Ended:
    return cli.kolm("ledger", "rotate-key", *arguments, "--data-dir", data_dir, "--json")


def checked_log(data_dir: Path) -> Ended:
    return cli.kolm("ledger", "verify", "--database", data_dir / "ledger.sqlite3", "--trusted", data_dir / "trusted")


def log_holds(data_dir: Path) -> bool:
    return checked_log(data_dir).code == 0


@pytest.mark.parametrize("role", ["receipts", "log"])
def test_a_key_is_replaced_and_both_entries_verify(stopped: Path, role: str) -> None:
    old = SigningKey.load(stopped / f"keys/{role}.pem", role)
    first = rotate(stopped, role).document
    assert (first["index"], first["old"]) == (1, old.key_id)
    fill(stopped, 1)
    assert SigningKey.load(stopped / f"keys/{role}.pem", role).key_id == first["new"]
    assert [key.key_id for key in TrustedKeys.load(stopped / "trusted", retired=False).keys(role)] == [first["new"]]
    assert len(list((stopped / "trusted" / RETIRED).iterdir())) == 1
    assert log_holds(stopped)
    again = rotate(stopped, role).document
    assert (again["index"], again["old"]) == (3, first["new"])
    fill(stopped, 2)
    assert log_holds(stopped)


def test_a_key_that_replaces_one_for_some_tenants_is_for_them_alone(stopped: Path) -> None:
    old = SigningKey.load(stopped / "keys/receipts.pem", "receipts").public
    scope = KeyScope.of(tenant=[receipt(0).tenant])
    (file,) = (stopped / "trusted").glob("receipts-*.pub")
    file.write_bytes(old.scoped(scope).to_pem())
    assert rotate(stopped, "receipts").code == 0
    assert [key.scope for key in TrustedKeys.load(stopped / "trusted").keys("receipts")] == [scope, scope]


def test_the_log_s_verifier_key_is_the_new_one_at_once(stopped: Path) -> None:
    (stopped / "log.vkey").write_text("of the key before", encoding="utf-8")
    assert rotate(stopped, "log").code == 0
    new = SigningKey.load(stopped / "keys/log.pem", "log").public
    assert VerifierKey.from_text((stopped / "log.vkey").read_text().strip()) == VerifierKey(ORIGIN, new)


def test_one_operator_of_two_replaces_no_key(stopped: Path) -> None:
    (stopped / "trusted/operator.threshold").write_text("2\n", encoding="utf-8")
    second = stopped / "keys/second.pem"
    SigningKey.load_or_create(second, "operator").publish(stopped / "trusted")
    assert rotate(stopped, "receipts", "--by-operator").code == 3
    both = ("--operator-key", stopped / "keys/operator.pem", "--operator-key", second)
    assert rotate(stopped, "receipts", *both).code == 2
    assert rotate(stopped, "receipts", "--by-operator", *both).code == 0
    fill(stopped, 1)
    assert log_holds(stopped)


@pytest.mark.parametrize("other", [False, True])
def test_operators_replace_a_lost_key_by_its_public_half(stopped: Path, other: bool) -> None:
    (published,) = (stopped / "trusted").glob("receipts-*.pub")
    named: tuple[object, ...] = ()
    if other:  # of which two is lost?
        SigningKey.load_or_create(stopped / "other/receipts.pem", "receipts").publish(stopped / "trusted")
        named = ("--key-file", published)
    old = SigningKey.load(stopped / "keys/receipts.pem", "receipts").key_id
    (stopped / "keys/receipts.pem").unlink()
    assert rotate(stopped, "receipts").code == 4
    assert rotate(stopped, "receipts", "--key-file", published).code == 2
    if other:
        assert rotate(stopped, "receipts", "--by-operator").code == 2
    assert rotate(stopped, "receipts", "--by-operator", *named).document["old"] == old
    fill(stopped, 1)
    assert log_holds(stopped)


def test_operators_replace_a_key_of_another_server_and_leave_the_local_one(stopped: Path) -> None:
    remote = SigningKey.load_or_create(stopped / "other/receipts.pem", "receipts")
    named = ("--by-operator", "--key-file", remote.publish(stopped / "trusted"))
    local = (stopped / "keys/receipts.pem").read_bytes()
    assert rotate(stopped, "receipts", *named).code == 2
    assert rotate(stopped, "receipts", *named, "--new-key", stopped / "new.pem").document["old"] == remote.key_id
    assert (stopped / "keys/receipts.pem").read_bytes() == local
    fill(stopped, 1)
    assert log_holds(stopped)


def test_what_a_replaced_key_signs_is_refused_and_flagged(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = SigningKey.load(stopped / "keys/receipts.pem", "receipts")
    assert rotate(stopped, "receipts", "--by-operator").code == 0
    log = SigningKey.load(stopped / "keys/log.pem", "log")
    careless = TrustedKeys.load(stopped / "trusted")  # a ledger that still trusts what was replaced
    guard = stopped / "guard.sqlite3"
    with writing(stopped / "ledger.sqlite3", guard=guard, key=log, trusted=careless) as (store, sequencer):
        with pytest.raises(SignatureError):
            sequencer.append(sign_document(receipt(7), old).to_bytes()).result()
        monkeypatch.setattr(BatchPlan, "_check_signers", lambda *_: None)  # as by an earlier version
        sequencer.append(sign_document(receipt(7), old).to_bytes()).result()
        assert len(list(entries_from(store))) == 3
    assert checked_log(stopped).code == 3


@pytest.mark.parametrize("role", ["receipts", "log"])
@pytest.mark.parametrize("place", ["before the checkpoint", "before the files", "before the new key"])
def test_an_interrupted_rotation_is_completed_by_running_it_again(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, place: str, role: str
) -> None:
    whole = os.replace

    def cut(source: Path, target: Path) -> None:
        if str(source).endswith(".next.pem"):
            raise OSError("power cut")
        whole(source, target)

    with monkeypatch.context() as broken:
        if place == "before the checkpoint":
            broken.setattr(SqlEntryStore, "record_checkpoint", Mock(side_effect=StoreError("power cut")))
        elif place == "before the files":
            broken.setattr(key_rotation, "_swap", Mock(side_effect=OSError("power cut")))
        else:
            broken.setattr(os, "replace", cut)
        assert rotate(stopped, role).code != 0
    assert rotate(stopped, role).document["index"] == 1
    fill(stopped, 1)
    assert log_holds(stopped)


def test_a_rotation_waits_for_receipts_on_their_way_and_for_the_ledger_to_stop(stopped: Path) -> None:
    left = Journal(stopped / "generation/outbox")
    asyncio.run(left.keep(Kind.WAITING, {receipt_id(0): AppendEntryRequest()}))
    assert rotate(stopped, "receipts").code == 1

    async def arrived() -> None:
        left.settle(receipt_id(0))
        await left.written()

    asyncio.run(arrived())
    with closing(SqlEntryStore.open(stopped / "ledger.sqlite3")):
        assert rotate(stopped, "receipts").code == 1
    assert rotate(stopped, "witness").code == 2
    assert rotate(stopped, "publisher").code == 4


def proof_and_history(stopped: Path, index: int) -> tuple[Path, Path]:
    """A proof of an entry under the newest checkpoint, and a bundle of the whole log."""
    with closing(SqlEntryStore.open_for_reading(stopped / "ledger.sqlite3")) as store:
        note = store.latest_checkpoint() or b""
        size = store.size()
        proof = TlogProof(index, inclusion_proof(index, size, TileHashes(store)), note, store.entry(index))
        wanted = Export(checkpoint=note, start=0, end=size, exported_at="2026-01-02T03:04:05.000Z")
        shutil.rmtree(stopped / "history", ignore_errors=True)
        write_folder(export_bundle(store, wanted), stopped / "history")
    (stopped / "r.tlog-proof").write_bytes(proof.to_bytes())
    return stopped / "r.tlog-proof", stopped / "history"


def test_a_proof_from_after_a_rotation_is_checked_with_the_key_of_before(stopped: Path, tmp_path: Path) -> None:
    years_ago = tmp_path / "years-ago"
    for role in ("log", "receipts", "operator"):
        SigningKey.load(stopped / f"keys/{role}.pem", role).publish(years_ago)
    for role in ("log", "receipts"):
        assert rotate(stopped, role).code == 0
    fill(stopped, 1)
    proof, history = proof_and_history(stopped, 3)
    alone = vector(proof, "--trusted", years_ago)
    assert (alone.code, "--history" in alone.err) == (3, True)
    assert vector(proof, "--trusted", years_ago, "--history", history).code == 0
    assert vector(proof, "--trusted", stopped / "trusted").code == 0
    assert vector(history, "--trusted", years_ago, "--history", history).code == 2


def test_a_replaced_log_key_signs_no_newer_proof(stopped: Path, tmp_path: Path) -> None:
    old = SigningKey.load(stopped / "keys/log.pem", "log")
    assert rotate(stopped, "log").code == 0
    fill(stopped, 1)
    proof, history = proof_and_history(stopped, 2)
    known = (proof, "--trusted", stopped / "trusted", "--history", history)
    assert vector(*known).code == 0
    read = TlogProof.from_bytes(proof.read_bytes())
    head = Checkpoint.from_text(Note.from_bytes(read.checkpoint).text)
    proof.write_bytes(TlogProof(2, read.hashes, sign_checkpoint(head, old), read.extra).to_bytes())
    assert vector(*known).code == 3
    (history / "checkpoint").write_bytes(sign_checkpoint(head, old))
    assert vector(*known).code == 3


def test_a_proof_and_a_history_of_two_logs_under_one_name_are_distinguished(
    stopped: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fork = tmp_path_factory.mktemp("fork") / "data"
    shutil.copytree(stopped, fork)
    fill(stopped, 1)
    longer, history = proof_and_history(stopped, 1)
    known = ("--trusted", stopped / "trusted", "--history", history)
    assert vector(longer, *known).code == 0
    fill(fork, 2)
    forked, other = proof_and_history(fork, 1)
    assert vector(forked, *known).code == 3
    fill(stopped, 3)
    newer, _ = proof_and_history(stopped, 2)
    shorter = vector(newer, "--trusted", stopped / "trusted", "--history", other)
    assert shorter.code == 3


BUNDLE, KEYS = VECTORS / "bundles/good.tar.gz", VECTORS / "log/keys"
NO_KEY = KEYS / "log.pub"
NAMES = {"proof": "p.tlog-proof", "SCITT": "s.cose", "answer": "a.json"}


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        (None, ("--prompt", NO_KEY), 2),
        ("proof", ("--output", NO_KEY), 2),
        (None, ("--history", BUNDLE), 2),
        ("SCITT", ("--promise", "p"), 2),
        ("answer", (), 2),
        (None, ("--promise", NO_KEY), 2),
        (None, ("--policy", NO_KEY), 2),
        (None, ("--checkpoint", NO_KEY), 2),
        (None, ("--policy", "nothing"), 2),
        ("proof", ("--history", "nothing"), 4),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    name: str | None, options: tuple[object, ...], code: int, tmp_path: Path
) -> None:
    path = BUNDLE
    if name is not None:
        path = tmp_path / NAMES[name]
        path.write_bytes(FILES[name].data)
    assert vector(path, "--trusted", KEYS, *options).code == code


HEAD = tiny_head()
DRAFTED = replace(receipt(0).spec_decode, method="eagle3", head_cid=HEAD.manifest.cid, fallback_reason=None)
UNKNOWN = "cidv1:sha256:" + "7" * 64


@pytest.fixture
def kolm_with_head(deployment: Deployment, registry: str, tmp_path: Path) -> Kolm:
    environment = {"KOLM_LEDGER": deployment.address, "KOLM_REGISTRY": registry, "KOLM_DATA_DIR": tmp_path}
    environment |= {"KOLM_MODEL": HEAD.write_base(tmp_path / "model")}
    run = partial(cli.kolm, environment=environment)
    assert run("heads", "push", HEAD.write(tmp_path / "head"), "--name", "support-head").code == 0
    return run


def drafted(deployment: Deployment, number: int, block: SpecDecode = DRAFTED) -> None:
    """Append a receipt whose tokens a head has drafted."""
    deployment.ledger.append(signed(receipt(number, base_cid=HEAD.manifest.subject, spec_decode=block)))


def heads_check(kolm_with_head: Kolm, path: Path) -> str:
    """The result of the check of heads on a valid bundle."""
    return str(verified(kolm_with_head, path)["checks"][11]["detail"])


def carried(folder: Path) -> list[bytes]:
    """The manifests in a bundle."""
    return [path.read_bytes() for path in folder.glob("heads/*")]


def test_the_manifests_of_the_heads_that_receipts_name_go_along(
    kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path
) -> None:
    drafted(deployment, 0)
    done = kolm_with_head("ledger", "export", tmp_path / "all")
    assert (done.code, HEAD.manifest.cid in done.err) == (0, False)
    assert carried(tmp_path / "all") == [HEAD.manifest.to_bytes()]
    assert HEAD.manifest.cid not in heads_check(kolm_with_head, tmp_path / "all")


def test_an_unregistered_head_is_named(kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path) -> None:
    drafted(deployment, 0)
    drafted(deployment, 1, replace(DRAFTED, head_cid=UNKNOWN))
    done = kolm_with_head("ledger", "export", tmp_path / "all")
    assert (done.code, UNKNOWN in done.err, HEAD.manifest.cid in done.err) == (0, True, False)
    assert UNKNOWN in heads_check(kolm_with_head, tmp_path / "all")


def test_a_registry_that_gives_another_manifest_is_not_believed(
    kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted(deployment, 0)
    forged = replace(HEAD.manifest, annotations={"note": "another"}).to_bytes()
    head = "services.client.registry.RegistryClient.head"
    monkeypatch.setattr(head, lambda *_: type("Head", (), {"manifest": forged}))
    done = kolm_with_head("ledger", "export", tmp_path / "all")
    assert (done.code, HEAD.manifest.cid in done.err, carried(tmp_path / "all")) == (0, True, [])
