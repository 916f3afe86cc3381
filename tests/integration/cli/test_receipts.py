"""`kolm receipts`: found, proven, written to files, as statements."""

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from scitt_cose import parse_signed_statement, verify_receipt
from scitt_cose.statement import extract_receipts

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.promise import sign_promise
from ledger.documents.signed_document import sign_document
from ledger.encoding.commitment import MESSAGES_DOMAIN, commit_text
from ledger.encoding.text_forms import cid
from ledger.errors import LedgerError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from services.cli.ledger import receipt_files as receipt_saving
from services.client.errors import NotFound
from services.client.generation.completion import Receipt
from services.client.generation.request import Message
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import CoseReceipt
from tests.cli import CLOSED
from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.conftest import Kolm
from tests.mutations import replace
from tests.unit.client.test_answer_check import CONTENT, TEXT
from tests.unit.client.test_answer_check import signed as signed_receipt
from tests.unit.ledger.builders import (
    KEYS,
    PROFILE,
    STRANGER,
    at,
    content,
    promise_of,
    receipt,
    receipt_id,
    signed,
    verdict,
)

HEAD, ADAPTER, OTHER = cid(b"head"), cid(b"adapter"), cid(b"other")


@pytest.fixture
def filled(deployment: Deployment, kolm: Kolm) -> Kolm:
    """Entries 0 to 4 are receipts, 5 is a verdict on the first."""
    for document in (
        receipt(0),
        receipt(1, tenant="other"),
        receipt(2, spec_decode=replace(receipt(2).spec_decode, method="eagle3", head_cid=HEAD)),
        receipt(3, adapter_cid=ADAPTER),
        receipt(4, profile_cid=OTHER, base_cid=OTHER),
        verdict(0, 0),
    ):
        deployment.ledger.append(signed(document))
    return kolm


def listed(kolm: Kolm, *flags: object) -> list[int]:
    done = kolm("receipts", "list", "--json", *flags)
    assert done.code == 0, done.err
    return [each["ledger_index"] for each in done.document]


def test_a_method_that_there_is_not_is_refused_by_name(filled: Kolm) -> None:
    done = filled("receipts", "list", "--method", "nope")
    assert (done.code, all(word in done.err for word in ("--method", "nope", "eagle3", "lookahead"))) == (2, True)
    assert listed(filled, "--method", "rest") == []


FILTERS: list[tuple[tuple[str, ...], list[int]]] = [
    (("--tenant", "other"), [1]),
    (("--method", "eagle3"), [2]),
    (("--base", OTHER), [4]),
    (("--head", HEAD), [2]),
    (("--adapter", ADAPTER), [3]),
    (("--profile", PROFILE), [0, 1, 2, 3]),
    (("--request-id", "request-3"), [3]),
    (("--commitment", receipt(2).prompt.commitment), [2]),
    (("--commitment", receipt(4).output.commitment), [4]),
    (("--since", at(3)), [3, 4]),
    (("--until", at(1).removesuffix("Z")), [0]),
    (("--first", "1", "--last", "3"), [1, 2, 3]),
    (("--last", "3", "--limit", "2"), [2, 3]),
    (("--first", "99"), []),
]


def test_every_filter_of_the_list_narrows_and_is_proven(filled: Kolm) -> None:
    for flags, expected in FILTERS:
        for proof in ((), ("--prove",), ("--complete",)):
            assert listed(filled, *flags, *proof) == expected, flags


def test_a_list_of_another_log_than_remembered_is_exit_code_three(filled: Kolm, tmp_path: Path) -> None:
    seen = tmp_path / "seen.checkpoint"
    assert listed(filled, "--remember", seen) == [0, 1, 2, 3, 4]
    note = seen.read_bytes()
    text, _, _ = note.partition(b"\n\n")
    assert text.split(b"\n")[1] == b"6"
    seen.write_bytes(_fork(note, tmp_path))
    forked = filled("receipts", "list", "--remember", seen)
    assert (forked.code, "forked" in forked.err) == (3, True)


def _fork(note: bytes, data_dir: Path) -> bytes:
    """A checkpoint of the same size that the log's own key signed over something else."""
    head = Checkpoint.from_text(Note.from_bytes(note).text)
    return sign_checkpoint(replace(head, root=bytes(32)), SigningKey.load(data_dir / "keys" / "log.pem", "log"))


def test_without_keys_nothing_can_be_proven(filled: Kolm, tmp_path: Path) -> None:
    assert filled("receipts", "list", "--prove", "--trusted", tmp_path / "none").code == 2
    elsewhere = tmp_path / "elsewhere"
    SigningKey.generate("log").publish(elsewhere)
    assert filled("receipts", "list", "--prove", "--trusted", elsewhere).code == 3


def erased(deployment: Deployment, number: int) -> bool:
    with LedgerClient.connect(deployment.address) as auditor:
        return auditor.receipt(receipt_id(number), include_content=True).content is None


def test_erasing_takes_the_content_and_is_on_record(deployment: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    deployment.receive(0)
    deployment.receive(1)
    done = kolm("ledger", "erase", receipt_id(1), "--reason", "the tenant asked for it", "--json")
    found = {"receipt_id": receipt_id(1), "receipt_index": 1, "erasure_index": 2, "proven": True}
    assert (done.code, done.document) == (0, found)
    assert [erased(deployment, 0), erased(deployment, 1)] == [False, True]
    assert json.loads(deployment.ledger.entry(2).envelope.payload)["reason"] == "the tenant asked for it"
    assert kolm("ledger", "verify").code == 0
    assert kolm("receipts", "list", "--complete").code == 0
    # By its entry, and with a key of one's own.
    own = tmp_path / "keys" / "operator.pem"
    assert kolm("ledger", "erase", "0", "--reason", "all of it", "--operator-key", own).code == 0
    assert erased(deployment, 0)


@pytest.fixture
def answered(deployment: Deployment, tmp_path: Path) -> Receipt:
    """A receipt as a client has it, in the ledger."""
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    envelope = sign_document(signed_receipt(), key).to_bytes()
    index = deployment.ledger.append(envelope, CONTENT).index
    deployment.ledger.append(sign_document(receipt(5), key).to_bytes(), content(5))
    return Receipt(envelope, signed_receipt().receipt_id, index, False, CONTENT, TEXT)


def test_it_is_saved_and_verified_offline(
    kolm: Kolm, deployment: Deployment, answered: Receipt, tmp_path: Path
) -> None:
    path = tmp_path / "receipt.json"
    assert not receipt_saving.save(path, answered, "a prompt", deployment.address)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kolm("verify", path).code == 0
    (tmp_path / "prompt").write_text("a prompt")
    (tmp_path / "output").write_text(TEXT)
    own = ("--prompt", str(tmp_path / "prompt"), "--output", str(tmp_path / "output"))
    assert kolm("verify", path, *own, "--json").code == 0
    (tmp_path / "output").write_text("something else")
    changed = kolm("verify", path, *own)
    assert (changed.code, changed.err.startswith("kolm: text: ")) == (3, True)


def test_without_a_ledger_it_is_saved_without_a_proof(kolm: Kolm, answered: Receipt, tmp_path: Path) -> None:
    assert receipt_saving.save(tmp_path / "receipt.json", answered, "a prompt", CLOSED)
    unproven = kolm("verify", tmp_path / "receipt.json")
    assert (unproven.code, "kolm receipts export" in unproven.err) == (3, True)
    assert kolm("generate", "hello", "--save", tmp_path / "receipt.json").code == 2
    assert kolm("generate", "hello", "--n=2", "--save", tmp_path / "other.json").code == 2
    (tmp_path / "bundle").mkdir()
    assert kolm("verify", tmp_path / "bundle", "--output", tmp_path / "receipt.json").code == 2


def test_control_c_while_its_proof_is_awaited_leaves_the_file(
    deployment: Deployment, answered: Receipt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object, receipt_id: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise NotFound(receipt_id)

    monkeypatch.setattr(LedgerClient, "receipt", interrupted)
    path = tmp_path / "receipt.json"
    assert receipt_saving.save(path, answered, "a prompt", deployment.address) == "interrupted"
    assert ReceiptFile.from_bytes(path.read_bytes()).text == TEXT


def test_a_conversation_is_compared_with_its_messages(kolm: Kolm, deployment: Deployment, tmp_path: Path) -> None:
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    text = commit_text(MESSAGES_DOMAIN, CONTENT.prompt_salt, '[{"content":"hello","role":"user"}]')
    part = replace(signed_receipt().prompt, text_commitment=text, chat_template=text)
    envelope = sign_document(signed_receipt(prompt=part), key).to_bytes()
    deployment.ledger.append(envelope, CONTENT)
    came = Receipt(envelope, signed_receipt().receipt_id, 0, False, CONTENT, TEXT)
    receipt_saving.save(tmp_path / "receipt.json", came, [Message("user", "hello")], deployment.address)
    for own, code in (
        ('[ {"role": "user", "content": "hello"} ]', 0),
        ('[{"role": "user", "content": "goodbye"}]', 3),
        ("hello", 2),
        ('{"role": 1}', 2),
    ):
        (tmp_path / "own.json").write_text(own)
        assert kolm("verify", tmp_path / "receipt.json", "--prompt", tmp_path / "own.json").code == code


def test_a_promise_is_held_against_the_receipt_and_against_the_whole_log(
    kolm: Kolm, deployment: Deployment, answered: Receipt, tmp_path: Path
) -> None:
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    saved, bundle = tmp_path / "receipt.json", tmp_path / "log.tar.gz"
    promise = promise_of(signed_receipt(), due=at(60))
    files = {name: tmp_path / f"{name}.promise" for name in ("kept", "broken", "forged")}
    files["kept"].write_bytes(sign_promise(promise, key).to_bytes())
    files["broken"].write_bytes(sign_promise(replace(promise, request_id="left out"), key).to_bytes())
    files["forged"].write_bytes(sign_promise(promise, STRANGER).to_bytes())
    receipt_saving.save(saved, answered, "a prompt", deployment.address)
    deployment.ledger.append(sign_document(receipt(6, issued_at=at(361)), key).to_bytes(), content(6))
    assert kolm("ledger", "export", bundle).code == 0

    assert kolm("verify", saved, f"--promise={files['kept']}").code == 0
    assert kolm("verify", saved, f"--promise={files['kept']}", f"--promise={files['broken']}").code == 3
    assert kolm("verify", saved, f"--promise={files['forged']}").code == 3

    assert kolm("verify", bundle, f"--promise={files['kept']}").code == 0
    done = kolm("verify", bundle, f"--promise={files['kept']}", f"--promise={files['broken']}", "--json")
    assert (done.code, [each["state"] for each in done.document["promises"]]) == (3, ["KEPT", "BROKEN"])
    assert kolm("verify", bundle, f"--promise={files['forged']}").code == 3
    assert kolm("verify", bundle, f"--promise={bundle}").code == 2
    proof = tmp_path / "entry.tlog-proof"
    assert kolm("ledger", "export", proof, "--receipt", answered.receipt_id).code == 0
    assert kolm("verify", proof, f"--promise={files['kept']}").code == 2


KEY = Path("keys/receipts.pem")


@pytest.fixture
def judged(deployment: Deployment, tmp_path: Path) -> Deployment:
    """Three receipts with verdicts, and a key for statements."""
    for number in range(3):
        deployment.receive(number)
    list(deployment.auditor().run_pass())
    SigningKey.load_or_create(tmp_path / KEY, "receipts")
    return deployment


def pem_of_log(folder: Path) -> bytes:
    (path,) = (folder / "trusted").glob("log-*.pub")
    return path.read_bytes()


def test_a_transparent_statement_holds_for_an_outside_library(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    path = tmp_path / "r.cose"
    done = kolm("receipts", "export", receipt_id(1), path, "--format", "cose", "--json")
    key = SigningKey.load(tmp_path / KEY, "receipts")
    assert (done.code, done.document["issuer"]) == (0, key.key_id)
    read = parse_signed_statement(path.read_bytes(), public_key_pem=key.public.to_pem())
    assert read["signature_verified"] is True
    assert (read["issuer"], read["subject"]) == (key.key_id, f"urn:uuid:{receipt_id(1)}")
    entry = Entry.from_bytes(read["payload"])
    assert (entry.index, json.loads(entry.envelope.payload)) == (1, receipt(1).to_document())

    (proof,) = extract_receipts(path.read_bytes())
    leaf = read["payload"].hex()  # the payload is the leaf: nothing of ours is needed to tie the two
    held = verify_receipt(proof, leaf_entry_hex=leaf, log_public_key_pem=pem_of_log(tmp_path))
    assert (held.ok, held.errors) == (True, [])
    assert (held.leaf_index, held.root) == (1, judged.ledger.checkpoint().root_hash.hex())
    assert held.subject == read["subject"]
    assert held.tree_size == judged.ledger.checkpoint().tree_size


def test_the_outside_library_refuses_other_keys_and_other_leaves(
    judged: Deployment, kolm: Kolm, tmp_path: Path
) -> None:
    for number in (0, 1):
        assert kolm("receipts", "export", number, tmp_path / f"{number}.cose", "--format", "cose").code == 0
    stranger = SigningKey.generate("log").public.to_pem()
    first, second = ((tmp_path / f"{number}.cose").read_bytes() for number in (0, 1))
    assert parse_signed_statement(first, public_key_pem=stranger)["signature_verified"] is False
    key = SigningKey.load(tmp_path / KEY, "receipts").public.to_pem()
    leaf = parse_signed_statement(first, public_key_pem=key)["payload"].hex()
    (own,), (other,) = extract_receipts(first), extract_receipts(second)
    log = pem_of_log(tmp_path)
    assert verify_receipt(own, leaf_entry_hex=leaf, log_public_key_pem=log).ok
    assert not verify_receipt(own, leaf_entry_hex=leaf, log_public_key_pem=stranger).ok
    assert not verify_receipt(other, leaf_entry_hex=leaf, log_public_key_pem=log).ok


def test_kolm_verify_reads_it(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    path = tmp_path / "r.cose"
    assert kolm("receipts", "export", "1", path, "--format", "cose").code == 0
    done = kolm("verify", path, "--json").document
    assert (done["receipt"], done["index"]) == (receipt(1).to_document(), 1)
    assert done["size"] == judged.ledger.checkpoint().tree_size

    data = path.read_bytes()
    for place in (40, len(data) // 2, len(data) - 20):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert kolm("verify", path).code == 3
    path.write_bytes(data)
    (tmp_path / "theirs").mkdir(exist_ok=True)
    for key in (tmp_path / "trusted").glob("receipts-*.pub"):  # of the issuer, but not of who states it
        if KEYS["receipts"].key_id[8:24] in key.name:
            (tmp_path / "theirs" / key.name).write_bytes(key.read_bytes())
    (tmp_path / "theirs" / "log.pub").write_bytes(pem_of_log(tmp_path))
    stranger = kolm("verify", path, "--trusted", tmp_path / "theirs")
    assert stranger.code == 3
    assert kolm("verify", path, "--promise", path).code == 2


def test_nothing_is_signed_that_is_not_by_a_trusted_key(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    SigningKey.generate("receipts").publish(elsewhere)
    target = tmp_path / "cose"
    assert kolm("receipts", "export", "0", target, "--format", "cose", "--trusted", elsewhere).code == 3
    assert not target.exists()


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer, other: replace(answer, cose_receipt=other.cose_receipt),
        lambda answer, other: other,
        lambda answer, other: replace(answer, cose_receipt=answer.cose_receipt[:-1]),
        lambda answer, other: replace(answer, cose_receipt=b""),
    ],
    ids=["of another receipt", "another entry", "cut off", "nothing"],
)
def test_a_lying_ledgers_cose_receipt_is_not_passed_on(
    judged: Deployment, tmp_path: Path, lie: Callable[[CoseReceipt, CoseReceipt], CoseReceipt]
) -> None:
    class Liar(LedgerClient):
        def cose_receipt(self, asked: str) -> CoseReceipt:
            return lie(super().cose_receipt(asked), super().cose_receipt(receipt_id(2)))

    with Liar.connect(judged.address) as liar, pytest.raises(LedgerError):
        receipt_saving.export_statement(liar, "0", tmp_path / "r", tmp_path / KEY, tmp_path / "trusted")
    assert not (tmp_path / "r").exists()
