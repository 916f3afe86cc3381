"""Logs carried away as bundles, and verified."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kolm.ledger.v1.ledger_pb2 import AppendEntryRequest
from ledger.bundle.export import Export, export_bundle
from ledger.bundle.folder import write_folder
from ledger.bundle.layout import BundleFile
from ledger.bundle.tiles import TiledTree, TileFolder
from ledger.documents.receipt import SpecDecode
from ledger.documents.signed_document import sign_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.key_scope import KeyScope
from ledger.keys.note import Note, VerifierKey
from ledger.keys.trusted_keys import RETIRED, TrustedKeys
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import inclusion_proof, leaf_hash
from ledger.tree.tile import TileHashes
from ledger.tree.tlog_proof import TlogProof
from services.cli.ledger import key_rotation
from services.cli.main import app
from services.generation.receipts.journal import Journal, Kind
from tests.fakes.tiny_head import tiny_head
from tests.integration.auditor.deployment import Deployment
from tests.mutations import replace
from tests.unit.ledger.builders import OFF, ORIGIN, content, receipt, receipt_id, signed
from tests.unit.ledger.test_mutations import FILES
from tests.unit.ledger.vectors import VECTORS
from tests.vectors.make_bundles import checkpoint as signed_head
from tests.vectors.make_bundles import exported, log_of

Kolm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def filled(deployment: Deployment, tmp_path: Path) -> Path:
    """The deployment's data directory, with receipts in its ledger."""
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    key.publish(tmp_path / "trusted")
    for number in range(12):
        deployment.ledger.append(sign_document(receipt(number), key).to_bytes(), content(number))
    return tmp_path


def verified(kolm: Kolm, path: Path, *arguments: object) -> dict[str, object]:
    code, out, err = kolm("verify", str(path), "--json", *map(str, arguments))
    assert code in (0, 3), err
    report: dict[str, object] = json.loads(out)
    assert report["ok"] == (code == 0)
    return report


def test_a_log_is_carried_away_and_verified(kolm: Kolm, filled: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "all.tar.gz", tmp_path / "all"):
        assert kolm("ledger", "export", str(path))[0] == 0
        report = verified(kolm, path)
        assert (report["ok"], report["range"]) == (True, [0, report["size"]])
    code, out, _ = kolm("verify", str(tmp_path / "all"))
    assert (code, "verified: the whole log of" in out) == (0, True)
    assert "nobody outside the log vouches for its age" in " ".join(out.split())
    code, out, _ = kolm("verify", str(tmp_path / "all"), "--max-age", "1d")
    assert (code, "at most 1 day are allowed" in " ".join(out.split())) == (3, True)
    assert kolm("verify", str(tmp_path / "all"), "--max-age", "soon")[0] == 2
    code, _, err = kolm("ledger", "export", str(tmp_path / "all.tar.gz"))
    assert (code, "exists already" in err) == (2, True)


def test_receipts_ranges_and_content_are_carried_away(kolm: Kolm, filled: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.tar.gz"
    assert kolm("ledger", "export", str(chosen), "--receipt", receipt_id(3), "--content")[0] == 0
    report = verified(kolm, chosen)
    assert (report["ok"], report["kinds"]) == (True, {"receipt": 1})
    assert report["checks"][11]["passed"] is True  # type: ignore[index]
    ranged = tmp_path / "range"
    assert kolm("ledger", "export", str(ranged), "--start", "2", "--end", "7")[0] == 0
    assert verified(kolm, ranged)["range"] == [2, 7]


def test_receipts_of_an_unproven_profile_are_counted(
    kolm: Kolm, filled: Path, deployment: Deployment, tmp_path: Path
) -> None:
    key = SigningKey.load(filled / "keys/receipts.pem", "receipts")
    for number, proven in ((20, False), (21, True), (22, False)):
        deployment.ledger.append(sign_document(receipt(number, profile_proven=proven, spec_decode=OFF), key).to_bytes())
    assert kolm("ledger", "export", str(tmp_path / "all"))[0] == 0
    assert verified(kolm, tmp_path / "all")["unproven_profiles"] == 2
    shown = kolm("verify", str(tmp_path / "all"))[1]
    assert "2 receipts are from servers whose numerics profile had failed its probe" in shown


def test_speedups_above_the_tokens_of_a_pass_are_told_and_the_bundle_verifies(
    kolm: Kolm, filled: Path, deployment: Deployment, tmp_path: Path
) -> None:
    key = SigningKey.load(filled / "keys/receipts.pem", "receipts")
    block = replace(receipt().spec_decode, wall_clock_speedup=10.78, speedup_basis="calibrated")
    boasting = receipt(20, spec_decode=block)
    deployment.ledger.append(sign_document(boasting, key).to_bytes())
    assert kolm("ledger", "export", str(tmp_path / "all"))[0] == 0
    assert verified(kolm, tmp_path / "all")["overclaimed_speedups"] == 1
    assert "1 receipts claim a speedup that no replay can have measured" in kolm("verify", str(tmp_path / "all"))[1]
    shown = kolm("receipts", "show", boasting.receipt_id)[1]
    assert "claims a speedup of 10.78 at 2.00 tokens per pass" in " ".join(shown.split())


def test_a_proof_file_stands_for_itself(kolm: Kolm, filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.tlog-proof"
    assert kolm("ledger", "export", str(path), "--receipt", receipt_id(5))[0] == 0
    assert Entry.from_bytes(TlogProof.from_bytes(path.read_bytes()).extra or b"").index == verified(kolm, path)["index"]
    proof = TlogProof.from_bytes(path.read_bytes())
    path.write_bytes(TlogProof(proof.index, proof.hashes[:-1], proof.checkpoint, proof.extra).to_bytes())
    code, _, err = kolm("verify", str(path))
    assert (code, "inclusion proof" in err) == (3, True)
    path.write_bytes(TlogProof(proof.index, proof.hashes, proof.checkpoint).to_bytes())
    assert kolm("verify", str(path))[0] == 3
    assert kolm("ledger", "export", str(tmp_path / "two.tlog-proof"))[0] == 2


def test_tiles_are_those_of_the_log_and_grow_with_it(
    kolm: Kolm, filled: Path, deployment: Deployment, tmp_path: Path
) -> None:
    folder = tmp_path / "tiles"
    for added in (0, 1):
        if added:
            key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
            deployment.ledger.append(sign_document(receipt(50), key).to_bytes())
        code, out, _ = kolm("ledger", "export", "--format=tiles", str(folder), "--json")
        size = deployment.ledger.checkpoint().tree_size
        assert (code, json.loads(out)) == (0, {"before": size - 1 if added else 0, "size": size})
        assert (folder / "checkpoint").read_bytes() == deployment.ledger.checkpoint().note
        hashes = (folder / f"tile/0/000.p/{size}").read_bytes()
        assert hashes == deployment.ledger.tile(0, 0) == b"".join(map(leaf_hash, tiled_entries(folder, size)))
    (folder / "index.html").write_text("somebody else's")
    assert kolm("ledger", "export", "--format=tiles", str(folder))[0] == 2


def test_tiles_of_another_log_are_not_overwritten(kolm: Kolm, filled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiles"
    assert kolm("ledger", "export", "--format=tiles", str(folder))[0] == 0
    other = Checkpoint(ORIGIN, 3, b"\x01" * 32)
    (folder / "checkpoint").write_bytes(sign_checkpoint(other, SigningKey.from_seed(b"\x01" * 32, "log")))
    (folder / "tile/0/000.p/3").write_bytes(b"\x01" * 96)
    code, _, err = kolm("ledger", "export", "--format=tiles", str(folder))
    assert (code, "the log has forked" in err) == (3, True), err


def tiled_entries(folder: Path, size: int) -> list[bytes]:
    return list(TiledTree(TileFolder(folder), size).entries(0))


def test_an_earlier_checkpoint_holds_the_log_to_its_word(
    kolm: Kolm, filled: Path, deployment: Deployment, tmp_path: Path
) -> None:
    code, printed, _ = kolm("ledger", "head", "--note")
    assert (code, printed.encode()) == (0, deployment.ledger.checkpoint().note)
    assert kolm("ledger", "head", "--note", "--json")[0] == 2
    (tmp_path / "then").write_text(printed, encoding="utf-8")
    key = SigningKey.load(tmp_path / "keys/receipts.pem", "receipts")
    deployment.ledger.append(sign_document(receipt(20), key).to_bytes())
    assert kolm("ledger", "export", str(tmp_path / "now.tar.gz"))[0] == 0
    assert verified(kolm, tmp_path / "now.tar.gz", "--checkpoint", tmp_path / "then")["ok"]
    code, _, err = kolm("verify", str(tmp_path / "now.tar.gz"), "--checkpoint", "nothing")
    assert (code, "cannot read nothing" in err) == (2, True)


def vector(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def test_trust_is_named_on_the_command_line() -> None:
    good, keys = VECTORS / "bundles/good.tar.gz", VECTORS / "log/keys"
    policy, one_unreplayable = VECTORS / "bundles/policy", ("--max-unreplayable", "1")
    assert vector(good, "--trusted", keys, "--policy", policy, *one_unreplayable).exit_code == 0
    one = VECTORS / "bundles/cosigned_by_one.tar.gz"
    assert vector(one, "--trusted", keys, *one_unreplayable).exit_code == 0
    refused = vector(one, "--trusted", keys, "--policy", policy)
    assert (refused.exit_code, "no quorum" in refused.stdout) == (3, True)
    claimed = vector(good, "--as-claimed", *one_unreplayable)
    assert (claimed.exit_code, "agrees with itself" in claimed.stdout) == (0, True)
    for wrong in (
        *(("--policy", keys / "log.pub"), ("--policy", "nothing"), ("--tsa", "nothing")),
        *(("--as-of", "soon"), ("--as-of", "0001-01-01T00:00:00+23:00"), ("--checkpoint", keys / "log.pub")),
    ):
        assert vector(good, "--trusted", keys, *wrong).exit_code == 2
    late = vector(good, "--trusted", keys, "--as-of", "2030-01-01", *one_unreplayable)
    assert late.exit_code == 0


def test_a_log_that_stopped_before_its_audits_is_green_by_its_own_clock_alone(tmp_path: Path) -> None:
    unjudged = log_of(drop=1)  # the last verdict never came
    write_folder(
        (BundleFile(path, data) for path, data in exported(unjudged, checkpoint=signed_head(log_of(), 13, "")).items()),
        tmp_path / "bundle",
    )
    known = (tmp_path / "bundle", "--trusted", VECTORS / "log/keys", "--max-unreplayable", "1")
    today = vector(*known)
    assert (today.exit_code, "has no verdict, promised by" in today.stdout) == (3, True)
    then = vector(*known, "--as-of", "log")
    assert (then.exit_code, "verified: the whole log of 13 entries" in then.stdout) == (0, True)


def test_replays_that_were_impossible_are_not_green_unless_they_are_accepted() -> None:
    known = (VECTORS / "bundles/good.tar.gz", "--trusted", VECTORS / "log/keys")
    refused = vector(*known)
    assert (refused.exit_code, "1 receipts could not be replayed" in refused.stdout) == (3, True)
    accepted = vector(*known, "--max-unreplayable", "1")
    assert (accepted.exit_code, "1 UNREPLAYABLE" in " ".join(accepted.stdout.split())) == (0, True)


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
    with (
        closing(SqlEntryStore.open(data_dir / "ledger.sqlite3")) as store,
        closing(SqlGuard.open(data_dir / "guard.sqlite3")) as guard,
        closing(Sequencer(store, log, trusted, ORIGIN, guard=guard)) as sequencer,
    ):
        sequencer.append(sign_document(receipt(number), receipts).to_bytes()).result()


def rotate(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["ledger", "rotate-key", *arguments, "--data-dir", str(data_dir), "--json"])


def log_holds(data_dir: Path) -> Result:
    database = str(data_dir / "ledger.sqlite3")
    return CliRunner().invoke(app, ["ledger", "verify", "--database", database, "--trusted", str(data_dir / "trusted")])


@pytest.mark.parametrize("role", ["receipts", "log"])
def test_a_key_is_replaced_and_both_entries_verify(stopped: Path, role: str) -> None:
    old = SigningKey.load(stopped / f"keys/{role}.pem", role)
    done = rotate(stopped, role)
    said = json.loads(done.stdout)
    assert (done.exit_code, said["index"], said["old"]) == (0, 1, old.key_id)
    fill(stopped, 1)
    assert SigningKey.load(stopped / f"keys/{role}.pem", role).key_id == said["new"]
    assert [key.key_id for key in TrustedKeys.load(stopped / "trusted", retired=False).keys(role)] == [said["new"]]
    assert len(list((stopped / "trusted" / RETIRED).iterdir())) == 1
    assert log_holds(stopped).exit_code == 0, log_holds(stopped).stdout
    again = json.loads(rotate(stopped, role).stdout)
    assert (again["index"], again["old"]) == (3, said["new"])
    fill(stopped, 2)
    assert log_holds(stopped).exit_code == 0


def test_a_key_that_replaces_one_for_some_tenants_is_for_them_alone(stopped: Path) -> None:
    old = SigningKey.load(stopped / "keys/receipts.pem", "receipts").public
    scope = KeyScope.of(tenant=[receipt(0).tenant])
    (file,) = (stopped / "trusted").glob("receipts-*.pub")
    file.write_bytes(old.scoped(scope).to_pem())
    assert rotate(stopped, "receipts").exit_code == 0
    assert [key.scope for key in TrustedKeys.load(stopped / "trusted").keys("receipts")] == [scope, scope]


def test_the_log_s_verifier_key_is_the_new_one_at_once(stopped: Path) -> None:
    (stopped / "log.vkey").write_text("of the key before", encoding="utf-8")
    assert rotate(stopped, "log").exit_code == 0
    new = SigningKey.load(stopped / "keys/log.pem", "log").public
    assert VerifierKey.from_text((stopped / "log.vkey").read_text().strip()) == VerifierKey(ORIGIN, new)


def test_one_operator_of_two_replaces_no_key(stopped: Path) -> None:
    (stopped / "trusted/operator.threshold").write_text("2\n", encoding="utf-8")
    second = stopped / "keys/second.pem"
    SigningKey.load_or_create(second, "operator").publish(stopped / "trusted")
    refused = rotate(stopped, "receipts", "--by-operator")
    assert (refused.exit_code, "its own holder or by 2 of the operators" in refused.stderr) == (3, True)
    both = ("--operator-key", str(stopped / "keys/operator.pem"), "--operator-key", str(second))
    assert rotate(stopped, "receipts", *both).exit_code == 2
    assert rotate(stopped, "receipts", "--by-operator", *both).exit_code == 0
    fill(stopped, 1)
    assert log_holds(stopped).exit_code == 0


def test_what_a_replaced_key_signs_is_refused_and_flagged(stopped: Path) -> None:
    old = SigningKey.load(stopped / "keys/receipts.pem", "receipts")
    assert rotate(stopped, "receipts", "--by-operator").exit_code == 0
    log = SigningKey.load(stopped / "keys/log.pem", "log")
    careless = TrustedKeys.load(stopped / "trusted")  # a ledger that still trusts what was replaced
    with (
        closing(SqlEntryStore.open(stopped / "ledger.sqlite3")) as store,
        closing(SqlGuard.open(stopped / "guard.sqlite3")) as guard,
        closing(Sequencer(store, log, careless, ORIGIN, guard=guard)) as sequencer,
    ):
        sequencer.append(sign_document(receipt(7), old).to_bytes()).result()
        assert len(list(entries_from(store))) == 3
    flagged = log_holds(stopped)
    assert flagged.exit_code == 3
    assert "entry 1 had replaced by then" in " ".join(flagged.stdout.split())


def test_an_interrupted_rotation_is_completed_by_running_it_again(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(key_rotation, "_swap", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
        assert rotate(stopped, "receipts").exit_code != 0
    done = json.loads(rotate(stopped, "receipts").stdout)
    assert done["index"] == 1
    fill(stopped, 1)
    assert log_holds(stopped).exit_code == 0


def test_a_rotation_waits_for_receipts_on_their_way_and_for_the_ledger_to_stop(stopped: Path) -> None:
    left = Journal(stopped / "generation/outbox")
    asyncio.run(left.keep(Kind.WAITING, {receipt_id(0): AppendEntryRequest()}))
    assert rotate(stopped, "receipts").exit_code == 1

    async def arrived() -> None:
        left.settle(receipt_id(0))
        await left.written()

    asyncio.run(arrived())
    with closing(SqlEntryStore.open(stopped / "ledger.sqlite3")):
        assert rotate(stopped, "receipts").exit_code == 1
    assert rotate(stopped, "witness").exit_code == 2
    assert rotate(stopped, "publisher").exit_code == 4


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
        assert rotate(stopped, role).exit_code == 0
    fill(stopped, 1)
    proof, history = proof_and_history(stopped, 3)
    alone = vector(proof, "--trusted", years_ago)
    assert (alone.exit_code, "--history" in alone.stderr) == (3, True)
    assert vector(proof, "--trusted", years_ago, "--history", history).exit_code == 0
    assert vector(proof, "--trusted", stopped / "trusted").exit_code == 0
    assert vector(history, "--trusted", years_ago, "--history", history).exit_code == 2


def test_a_replaced_log_key_signs_no_newer_proof(stopped: Path, tmp_path: Path) -> None:
    old = SigningKey.load(stopped / "keys/log.pem", "log")
    assert rotate(stopped, "log").exit_code == 0
    fill(stopped, 1)
    proof, history = proof_and_history(stopped, 2)
    read = TlogProof.from_bytes(proof.read_bytes())
    head = Checkpoint.from_text(Note.from_bytes(read.checkpoint).text)
    proof.write_bytes(TlogProof(2, read.hashes, sign_checkpoint(head, old), read.extra).to_bytes())
    stolen = vector(proof, "--trusted", stopped / "trusted", "--history", history)
    assert (stolen.exit_code, "entry 1 had replaced by then" in stolen.stderr) == (3, True)
    (history / "checkpoint").write_bytes(sign_checkpoint(head, old))
    broken = vector(proof, "--trusted", stopped / "trusted", "--history", history)
    assert (broken.exit_code, "does not hold" in broken.stderr) == (3, True)


def test_a_proof_and_a_history_of_two_logs_under_one_name_are_told_apart(
    stopped: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fork = tmp_path_factory.mktemp("fork") / "data"
    shutil.copytree(stopped, fork)
    fill(stopped, 1)
    longer, history = proof_and_history(stopped, 1)
    known = ("--trusted", str(stopped / "trusted"), "--history", str(history))
    assert vector(longer, *known).exit_code == 0
    fill(fork, 2)
    forked, other = proof_and_history(fork, 1)
    said = vector(forked, *known)
    assert (said.exit_code, "two trees of 2 entries" in said.stderr) == (3, True)
    fill(stopped, 3)
    newer, _ = proof_and_history(stopped, 2)
    said = vector(newer, "--trusted", stopped / "trusted", "--history", other)
    assert (said.exit_code, "holds 2 entries, the proof is over 3" in said.stderr) == (3, True)


BUNDLE, KEYS = str(VECTORS / "bundles/good.tar.gz"), VECTORS / "log/keys"
NO_KEY = str(KEYS / "log.pub")
NAMES = {"proof": "p.tlog-proof", "SCITT": "s.cose", "answer": "a.json"}


@pytest.mark.parametrize(
    ("name", "options", "code", "said"),
    [
        (None, ("--prompt", NO_KEY), 2, "--prompt and --output belong to a receipt file"),
        ("proof", ("--output", NO_KEY), 2, "--prompt and --output belong to a receipt file"),
        (None, ("--history", BUNDLE), 2, "--history: belongs to a proof file; a bundle brings its own"),
        ("proof", ("--as-claimed",), 2, "--as-claimed: a proof file holds no keys"),
        ("SCITT", ("--as-claimed",), 2, "--as-claimed: a statement holds no keys"),
        ("SCITT", ("--promise", "p"), 2, "--promise belongs to a bundle or a receipt file"),
        ("answer", (), 2, "which promise is this the answer to?"),
        (None, ("--promise", NO_KEY), 2, "is not a promise: "),
        (None, ("--policy", NO_KEY), 2, "--policy: "),
        (None, ("--checkpoint", NO_KEY), 2, "is not a checkpoint: "),
        (None, ("--tsa", NO_KEY), 2, "holds no certificates: "),
        (None, ("--policy", "nothing"), 2, "--policy: cannot read nothing: No such file or directory"),
        ("proof", ("--history", "nothing"), 4, "there is no bundle at nothing"),
    ],
)
def test_it_is_named(name: str | None, options: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    path = Path(BUNDLE)
    if name is not None:
        path = tmp_path / NAMES[name]
        path.write_bytes(FILES[name].data)
    done = CliRunner().invoke(app, ["verify", str(path), "--trusted", str(KEYS), *options])
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "pipe"), "--trusted", str(KEYS)])
    assert (done.exit_code, "is neither a file nor a folder" in done.stderr) == (2, True)


Kolm = Callable[..., tuple[int, str, str]]
HEAD = tiny_head()
DRAFTED = replace(receipt(0).spec_decode, method="eagle3", head_cid=HEAD.manifest.cid, fallback_reason=None)
NOBODY = "127.0.0.1:1"
UNKNOWN = "cidv1:sha256:" + "7" * 64


@pytest.fixture
def kolm_with_head(deployment: Deployment, registry: str, tmp_path: Path) -> Kolm:
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


def heads_check(kolm_with_head: Kolm, path: Path) -> str:
    """The result of the check of heads on a valid bundle."""
    code, out, err = kolm_with_head("verify", path, "--json")
    assert code == 0, out + err
    return str(json.loads(out)["checks"][12]["detail"])


def test_the_manifests_of_the_heads_that_receipts_name_go_along(
    kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path
) -> None:
    drafted(deployment, 0)
    code, _, err = kolm_with_head("ledger", "export", tmp_path / "all")
    assert (code, "not in the bundle" in err) == (0, False)
    manifests = list((tmp_path / "all/heads").iterdir())
    assert [path.read_bytes() for path in manifests] == [HEAD.manifest.to_bytes()]
    assert heads_check(kolm_with_head, tmp_path / "all").endswith("without a publication; 1 manifest")


def test_a_range_without_heads_asks_no_registry(kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path) -> None:
    deployment.receive(1)
    code, _, err = kolm_with_head(
        "ledger", "export", tmp_path / "one.tar", "--receipt", receipt_id(1), "--registry", NOBODY
    )
    assert (code, "not in the bundle" in err) == (0, False)


def test_a_registry_that_is_away_is_named_and_the_verifier_says_what_is_absent(
    kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path
) -> None:
    drafted(deployment, 0)
    code, _, err = kolm_with_head("ledger", "export", tmp_path / "all", "--registry", NOBODY)
    assert code == 0
    assert f"not in the bundle: the manifest of {HEAD.manifest.cid}" in err
    assert "does not answer" in err
    assert f"0 manifests, none of {HEAD.manifest.cid}" in heads_check(kolm_with_head, tmp_path / "all")


def test_a_head_that_nobody_registered_is_named(kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path) -> None:
    drafted(deployment, 0)
    drafted(deployment, 1, replace(DRAFTED, head_cid=UNKNOWN))
    code, _, err = kolm_with_head("ledger", "export", tmp_path / "all")
    assert (code, f"the manifest of {UNKNOWN}" in err, "does not know this head" in err) == (0, True, True)
    assert f"1 manifest, none of {UNKNOWN}" in heads_check(kolm_with_head, tmp_path / "all")


def test_a_registry_that_gives_another_manifest_is_not_believed(
    kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted(deployment, 0)
    forged = replace(HEAD.manifest, annotations={"note": "another"}).to_bytes()
    head = "services.client.registry.RegistryClient.head"
    monkeypatch.setattr(head, lambda *_: type("Head", (), {"manifest": forged}))
    code, _, err = kolm_with_head("ledger", "export", tmp_path / "all")
    assert (code, "gave something else" in err, (tmp_path / "all/heads").exists()) == (0, True, False)


@pytest.mark.parametrize(
    ("name", "begins"),
    [("all.tar.gz", b"\x1f\x8b"), ("all.tgz", b"\x1f\x8b"), ("all.tar", b"bundle.json\0")],
)
def test_a_name_of_an_archive_gets_an_archive(
    kolm_with_head: Kolm, deployment: Deployment, tmp_path: Path, name: str, begins: bytes
) -> None:
    drafted(deployment, 0)
    assert kolm_with_head("ledger", "export", tmp_path / name)[0] == 0
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert heads_check(kolm_with_head, tmp_path / name).endswith("1 manifest")


@pytest.mark.parametrize("name", ["all.tar.xz", "all.7z", "all.gz"])
def test_an_archive_that_verify_would_not_read_is_not_written(kolm_with_head: Kolm, tmp_path: Path, name: str) -> None:
    code, _, err = kolm_with_head("ledger", "export", tmp_path / name)
    assert (code, "write .tar.gz, .tar" in err, (tmp_path / name).exists()) == (2, True, False)
