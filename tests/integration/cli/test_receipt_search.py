"""`kolm receipts list` with filters and proofs, `kolm ledger erase`, against a real ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledger.encoding.cid import cid
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from services.client import LedgerClient
from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.conftest import Kolm
from tests.replacing import replace
from tests.unit.ledger.builders import PROFILE, at, receipt, receipt_id, signed, verdict

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


def listed(kolm: Kolm, *flags: str) -> list[int]:
    code, out, err = kolm("receipts", "list", "--json", *flags)
    assert code == 0, err
    return [each["ledger_index"] for each in json.loads(out)]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--tenant", "other"], [1]),
        (["--method", "eagle3"], [2]),
        (["--base", OTHER], [4]),
        (["--head", HEAD], [2]),
        (["--adapter", ADAPTER], [3]),
        (["--profile", PROFILE], [0, 1, 2, 3]),
        (["--request-id", "request-3"], [3]),
        (["--commitment", receipt(2).prompt.commitment], [2]),
        (["--commitment", receipt(4).output.commitment], [4]),
        (["--since", at(3)], [3, 4]),
        (["--until", at(1).removesuffix("Z")], [0]),
        (["--first", "1", "--last", "3"], [1, 2, 3]),
        (["--last", "3", "--limit", "2"], [2, 3]),
        (["--first", "99"], []),
    ],
)
def test_every_filter_of_the_list_narrows_and_is_proven(filled: Kolm, flags: list[str], expected: list[int]) -> None:
    assert listed(filled, *flags) == expected
    assert listed(filled, *flags, "--prove") == expected
    assert listed(filled, *flags, "--complete") == expected


def test_outcomes_narrow_and_cannot_be_proven_complete(filled: Kolm) -> None:
    assert listed(filled, "--outcome", "EXACT", "--prove") == [0]
    code, _, err = filled("receipts", "list", "--outcome", "EXACT", "--complete")
    assert (code, "--outcome" in err) == (2, True)
    assert filled("receipts", "list", "--outcome", "FINE")[0] == 2


def test_a_time_that_is_none_is_a_usage_error(filled: Kolm) -> None:
    code, _, err = filled("receipts", "list", "--since", "yesterday")
    assert (code, "--since: expected a time like 2026-01-02" in err) == (2, True)


def test_what_was_checked_is_said_beside_the_list(filled: Kolm) -> None:
    said = filled("receipts", "list", "--complete")[2]
    assert "5 receipts, each signed and in the signed log of 6 entries, and none of the newest was left out" in (
        " ".join(said.split())
    )
    assert filled("receipts", "list")[2] == ""


def test_a_list_of_another_log_than_remembered_is_exit_code_three(filled: Kolm, tmp_path: Path) -> None:
    seen = tmp_path / "seen.checkpoint"
    assert listed(filled, "--remember", str(seen)) == [0, 1, 2, 3, 4]
    note = seen.read_bytes()
    text, _, _ = note.partition(b"\n\n")
    assert text.split(b"\n")[1] == b"6"
    seen.write_bytes(_fork(note, tmp_path))
    code, _, err = filled("receipts", "list", "--remember", str(seen))
    assert (code, "forked" in err) == (3, True)


def _fork(note: bytes, data_dir: Path) -> bytes:
    """A checkpoint of the same size that the log's own key signed over something else."""
    head = Checkpoint.from_text(Note.from_bytes(note).text)
    return sign_checkpoint(replace(head, root=bytes(32)), SigningKey.load(data_dir / "keys" / "log.pem", "log"))


def test_without_keys_nothing_can_be_proven(filled: Kolm, tmp_path: Path) -> None:
    assert filled("receipts", "list", "--prove", "--trusted", str(tmp_path / "none"))[0] == 2
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    SigningKey.generate("log").publish(elsewhere)
    assert filled("receipts", "list", "--prove", "--trusted", str(elsewhere))[0] == 3


def erased(deployment: Deployment, number: int) -> bool:
    with LedgerClient.connect(deployment.address) as auditor:
        return auditor.receipt(receipt_id(number), include_content=True).content is None


def test_erasing_takes_the_content_and_is_on_record(deployment: Deployment, kolm: Kolm, tmp_path: Path) -> None:
    deployment.receive(0)
    deployment.receive(1)
    code, out, _ = kolm("ledger", "erase", receipt_id(1), "--reason", "the tenant asked for it", "--json")
    assert code == 0
    assert json.loads(out) == {
        "receipt_id": receipt_id(1), "receipt_index": 1, "erasure_index": 2, "proven": True,
    }  # fmt: skip
    assert [erased(deployment, 0), erased(deployment, 1)] == [False, True]
    assert _document(deployment, 2)["reason"] == "the tenant asked for it"
    assert kolm("ledger", "verify")[0] == 0
    assert kolm("receipts", "list", "--complete")[0] == 0
    # By its entry, and with a key of one's own.
    own = tmp_path / "keys" / "operator.pem"
    assert kolm("ledger", "erase", "0", "--reason", "all of it", "--operator-key", str(own))[1].startswith("erased")
    assert erased(deployment, 0)


def _document(deployment: Deployment, index: int) -> Any:
    return json.loads(Envelope.from_bytes(deployment.ledger.entry(index).envelope).payload)


def test_a_replay_of_what_was_erased_says_unreplayable(deployment: Deployment, kolm: Kolm) -> None:
    deployment.receive(0)
    assert kolm("ledger", "erase", "0", "--reason", "asked for")[0] == 0
    list(deployment.auditor().run_pass())
    assert [each.outcome for each in deployment.ledger.verdicts()] == ["UNREPLAYABLE"]


def test_what_cannot_be_erased_says_why(deployment: Deployment, kolm: Kolm) -> None:
    deployment.receive(0)
    assert kolm("ledger", "erase", receipt_id(9), "--reason", "x")[0] == 4
    assert kolm("ledger", "erase", "7", "--reason", "x")[0] == 4
    code, _, err = kolm("ledger", "erase", "0")
    assert (code, "--reason" in err) == (2, True)
    assert not erased(deployment, 0)
