"""`kolm receipts export --format cose`, read and verified by a library that is not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scitt_cose import parse_signed_statement, verify_receipt
from scitt_cose.statement import extract_receipts

from ledger.errors import LedgerError
from ledger.keys.ed25519 import SigningKey
from ledger.tree.entry import Entry
from services.cli.ledger import receipt_files as statement_export
from services.client import LedgerClient
from services.client.ledger.log import CoseReceipt
from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.conftest import Kolm
from tests.unit.ledger.builders import KEYS, receipt, receipt_id

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
    code, out, _ = kolm("receipts", "export", receipt_id(1), str(path), "--format", "cose", "--json")
    key = SigningKey.load(tmp_path / KEY, "receipts")
    assert (code, json.loads(out)["issuer"]) == (0, key.key_id)
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
        assert kolm("receipts", "export", str(number), str(tmp_path / f"{number}.cose"), "--format", "cose")[0] == 0
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
    SigningKey.load(tmp_path / KEY, "receipts").publish(tmp_path / "trusted")
    path = tmp_path / "r.cose"
    assert kolm("receipts", "export", "1", str(path), "--format", "cose")[0] == 0
    code, out, err = kolm("verify", str(path), "--json")
    assert code == 0, err
    said = json.loads(out)
    assert (said["receipt"], said["index"]) == (receipt(1).to_document(), 1)
    assert said["size"] == judged.ledger.checkpoint().tree_size
    assert "entry 1 of" in kolm("verify", str(path))[1]

    data = path.read_bytes()
    for place in (40, len(data) // 2, len(data) - 20):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert kolm("verify", str(path))[0] == 3
    path.write_bytes(data)
    (tmp_path / "theirs").mkdir(exist_ok=True)
    for key in (tmp_path / "trusted").glob("receipts-*.pub"):  # of the issuer, but not of who states it
        if KEYS["receipts"].key_id[8:24] in key.name:
            (tmp_path / "theirs" / key.name).write_bytes(key.read_bytes())
    (tmp_path / "theirs" / "log.pub").write_bytes(pem_of_log(tmp_path))
    code, _, err = kolm("verify", str(path), "--trusted", str(tmp_path / "theirs"))
    assert (code, "by none of the keys that you trust" in err) == (3, True)
    assert kolm("verify", str(path), "--promise", str(path))[0] == 2


def test_statements_hold_no_content(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    assert kolm("receipts", "export", "0", str(tmp_path / "cose"), "--format", "cose")[0] == 0
    data = (tmp_path / "cose").read_bytes()
    assert b"token_ids" not in data
    assert b"salt" not in data


def test_what_cannot_be_exported_says_what_to_do(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    target = str(tmp_path / "r.cose")
    code, _, err = kolm("receipts", "export", "0", target, "--format", "cose", "--key", str(tmp_path / "none.pem"))
    assert (code, "none.pem" in err) == (2, True)
    assert kolm("receipts", "export", "0", target, "--format", "cose", "--trusted", str(tmp_path / "none"))[0] == 2
    assert kolm("receipts", "export", "0", target, "--key", str(tmp_path / KEY))[0] == 2
    assert kolm("receipts", "export", receipt_id(9), target, "--format", "cose")[0] == 4
    (tmp_path / "r.cose").write_bytes(b"kept")
    assert kolm("receipts", "export", "0", target, "--format", "cose")[0] == 2
    assert (tmp_path / "r.cose").read_bytes() == b"kept"


def test_nothing_is_signed_that_is_not_by_a_trusted_key(judged: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    SigningKey.generate("receipts").publish(elsewhere)
    target = tmp_path / "cose"
    code = kolm("receipts", "export", "0", str(target), "--format", "cose", "--trusted", str(elsewhere))[0]
    assert (code, target.exists()) == (3, False)


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer, other: CoseReceipt(other.cose_receipt, answer.entry, answer.checkpoint, answer.proof),
        lambda answer, other: other,
        lambda answer, other: CoseReceipt(answer.cose_receipt[:-1], answer.entry, answer.checkpoint, answer.proof),
        lambda answer, other: CoseReceipt(b"", answer.entry, answer.checkpoint, answer.proof),
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
        statement_export.export_statement(liar, "0", tmp_path / "r", tmp_path / KEY, tmp_path / "trusted")
    assert not (tmp_path / "r").exists()
