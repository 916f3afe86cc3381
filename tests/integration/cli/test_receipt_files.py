"""`kolm generate --save` and `kolm verify`: one file is the customer's whole evidence."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.promise import Promise, sign_promise
from ledger.documents.signed_document import sign_document
from ledger.encoding.commitment import MESSAGES_DOMAIN, commit_text
from ledger.keys.ed25519 import SigningKey
from services.cli.frame.exits import UsageError
from services.cli.ledger import receipt_files as receipt_saving
from services.client import Message, Receipt
from tests.integration.auditor.deployment import Deployment
from tests.replacing import replace
from tests.unit.client.test_answer_check import CONTENT, TEXT, signed
from tests.unit.ledger.builders import STRANGER, at, content, receipt

Kolm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def answered(deployment: Deployment, tmp_path: Path) -> Receipt:
    """A receipt as a client has it, in the ledger."""
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    key.publish(tmp_path / "trusted")
    envelope = sign_document(signed(), key).to_bytes()
    index = deployment.ledger.append(envelope, CONTENT).index
    deployment.ledger.append(sign_document(receipt(5), key).to_bytes(), content(5))
    return Receipt(envelope, signed().receipt_id, index, False, CONTENT, TEXT)


def test_it_is_saved_and_verified_offline(
    kolm: Kolm, deployment: Deployment, answered: Receipt, tmp_path: Path
) -> None:
    path = tmp_path / "receipt.json"
    assert not receipt_saving.save(path, answered, "a prompt", deployment.address)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code, out, err = kolm("verify", str(path))
    assert (code, err) == (0, "")
    assert "3 tokens of this prompt gave these 2 tokens" in " ".join(out.split())
    (tmp_path / "prompt").write_text("a prompt")
    (tmp_path / "output").write_text(TEXT)
    own = ("--prompt", str(tmp_path / "prompt"), "--output", str(tmp_path / "output"))
    assert kolm("verify", str(path), *own, "--json")[0] == 0
    (tmp_path / "output").write_text("something else")
    code, _, err = kolm("verify", str(path), *own)
    assert (code, "text: is not the output" in err) == (3, True)
    with pytest.raises(UsageError, match="exists already"):
        receipt_saving.check_writable(path)


def test_a_file_that_was_changed_is_refused(
    kolm: Kolm, deployment: Deployment, answered: Receipt, tmp_path: Path
) -> None:
    path = tmp_path / "receipt.json"
    receipt_saving.save(path, answered, "a prompt", deployment.address)
    file = ReceiptFile.from_bytes(path.read_bytes())
    assert file.proof is not None
    for changed in (
        replace(file, text="another"),
        replace(file, sent="another"),
        replace(file, content=replace(CONTENT, output_token_ids=(7, 9))),
        replace(file, proof=replace(file.proof, index=file.proof.index + 1)),
        replace(file, proof=replace(file.proof, hashes=())),
        replace(file, proof=None),
    ):
        path.write_bytes(changed.to_bytes())
        assert kolm("verify", str(path))[0] == 3
    data = file.to_bytes()
    for other, said in (
        (b'{"content":null' + data[data.index(b',"envelope"') :], "content: expected a JSON object"),
        (b" " + data, "not in canonical form"),
        (data[:400], "no receipt file or statement, or only a part of one"),
        (file.envelope.to_bytes(), "no receipt file or statement"),
    ):
        path.write_bytes(other)
        code, _, shown = kolm("verify", str(path))
        assert (code, said in " ".join(shown.split())) == (3, True), shown


def test_without_a_ledger_it_is_saved_without_a_proof(kolm: Kolm, answered: Receipt, tmp_path: Path) -> None:
    why = receipt_saving.save(tmp_path / "receipt.json", answered, "a prompt", "127.0.0.1:1")
    assert "does not answer" in (why or "")
    code, _, err = kolm("verify", str(tmp_path / "receipt.json"))
    assert (code, "holds no proof" in err) == (3, True)
    assert kolm("generate", "hello", "--save", str(tmp_path / "receipt.json"))[0] == 2
    assert kolm("generate", "hello", "--n=2", "--save", str(tmp_path / "other.json"))[0] == 2
    (tmp_path / "bundle").mkdir()
    assert kolm("verify", str(tmp_path / "bundle"), "--output", str(tmp_path / "receipt.json"))[0] == 2


def test_a_conversation_is_compared_with_its_messages(kolm: Kolm, deployment: Deployment, tmp_path: Path) -> None:
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    key.publish(tmp_path / "trusted")
    text = commit_text(MESSAGES_DOMAIN, CONTENT.prompt_salt, '[{"content":"hello","role":"user"}]')
    part = replace(signed().prompt, text_commitment=text, chat_template=text)
    envelope = sign_document(signed(prompt=part), key).to_bytes()
    deployment.ledger.append(envelope, CONTENT)
    came = Receipt(envelope, signed().receipt_id, 0, False, CONTENT, TEXT)
    receipt_saving.save(tmp_path / "receipt.json", came, [Message("user", "hello")], deployment.address)
    for own, code in (
        ('[ {"role": "user", "content": "hello"} ]', 0),
        ('[{"role": "user", "content": "goodbye"}]', 3),
        ("hello", 2),
        ('{"role": 1}', 2),
    ):
        (tmp_path / "own.json").write_text(own)
        found = kolm("verify", str(tmp_path / "receipt.json"), "--prompt", str(tmp_path / "own.json"))
        assert found[0] == code, found


def test_a_promise_is_held_against_the_receipt_and_against_the_whole_log(
    kolm: Kolm, deployment: Deployment, answered: Receipt, tmp_path: Path
) -> None:
    key = SigningKey.load_or_create(tmp_path / "keys/receipts.pem", "receipts")
    document, saved, bundle = signed(), tmp_path / "receipt.json", tmp_path / "log.tar.gz"
    promise = Promise(
        promised_at=at(0), due=at(60), tenant=document.tenant, request_id=document.request_id, nonce=document.nonce,
        base_cid=document.base_cid, profile_cid=document.profile_cid, prompt=document.prompt, choices=1,
    )  # fmt: skip
    files = {name: tmp_path / f"{name}.promise" for name in ("kept", "broken", "forged")}
    files["kept"].write_bytes(sign_promise(promise, key).to_bytes())
    files["broken"].write_bytes(sign_promise(replace(promise, request_id="left out"), key).to_bytes())
    files["forged"].write_bytes(sign_promise(promise, STRANGER).to_bytes())
    receipt_saving.save(saved, answered, "a prompt", deployment.address)
    deployment.ledger.append(sign_document(receipt(6, issued_at=at(61)), key).to_bytes(), content(6))
    assert kolm("ledger", "export", str(bundle))[0] == 0

    code, out, _ = kolm("verify", str(saved), f"--promise={files['kept']}")
    assert (code, "keeps the promise" in out) == (0, True)
    code, _, err = kolm("verify", str(saved), f"--promise={files['kept']}", f"--promise={files['broken']}")
    assert (code, "not kept by this receipt" in " ".join(err.split())) == (3, True)
    assert kolm("verify", str(saved), f"--promise={files['forged']}")[0] == 3

    code, out, _ = kolm("verify", str(bundle), f"--promise={files['kept']}")
    assert (code, "1 of your 1 promises kept" in " ".join(out.split())) == (0, True)
    code, out, _ = kolm("verify", str(bundle), f"--promise={files['kept']}", f"--promise={files['broken']}", "--json")
    assert (code, [each["state"] for each in json.loads(out)["promises"]]) == (3, ["KEPT", "BROKEN"])
    assert "proof of omission" in json.loads(out)["problem"]
    assert kolm("verify", str(bundle), f"--promise={files['forged']}")[0] == 3
    code, _, err = kolm("verify", str(bundle), f"--promise={bundle}")
    assert (code, "is no promise" in err) == (2, True)
    proof = tmp_path / "entry.tlog-proof"
    assert kolm("ledger", "export", str(proof), "--receipt", answered.receipt_id)[0] == 0
    assert kolm("verify", str(proof), f"--promise={files['kept']}")[0] == 2
