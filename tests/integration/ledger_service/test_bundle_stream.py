"""ExportBundle over the wire: what arrives is a bundle of what was asked for, and only auditors get content."""

import io
import json
import tarfile
from collections.abc import Iterable

import pytest

from services.client import LedgerClient
from services.client.errors import InvalidArgument, NotFound, PermissionDenied
from tests.integration.ledger_service.test_appending import wire_content
from tests.unit.ledger.builders import receipt_id, signed, signed_receipt, verdict


def unpacked(pieces: Iterable[bytes]) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def indexes(files: dict[str, bytes]) -> list[int]:
    lines = [line for path in sorted(files) if path.startswith("entries/") for line in files[path].splitlines()]
    return [json.loads(line)["index"] for line in lines]


@pytest.fixture
def filled(ledger: LedgerClient) -> LedgerClient:
    for number in range(4):
        ledger.append(signed_receipt(number), wire_content(number))
    ledger.append(signed(verdict(1, 1)))
    return ledger


def test_everything_is_exported_where_nothing_is_named(filled: LedgerClient) -> None:
    files = unpacked(filled.export())
    assert indexes(files) == [0, 1, 2, 3, 4]
    assert json.loads(files["bundle.json"])["range"] == {"start": 0, "end": 5}
    assert files["checkpoint"] == filled.checkpoint().note
    assert not any(path.startswith("content/") for path in files)
    assert any(path.startswith("keys/receipts-") for path in files)


def test_receipts_come_with_what_is_needed_to_judge_them(filled: LedgerClient) -> None:
    files = unpacked(filled.export([receipt_id(1), receipt_id(3)]))
    assert indexes(files) == [1, 3, 4]  # with the verdict on the first
    assert json.loads(files["bundle.json"])["range"] == {"start": 0, "end": 0}


def test_content_is_for_auditors(filled: LedgerClient, auditor: LedgerClient) -> None:
    with pytest.raises(PermissionDenied):
        list(filled.export(include_content=True))
    files = unpacked(auditor.export([receipt_id(2)], include_content=True))
    (line,) = files["content/000000000002.jsonl"].splitlines()
    assert json.loads(line)["prompt_token_ids"] == [1, 2, 5]


def test_what_the_log_does_not_hold_is_not_found(filled: LedgerClient) -> None:
    with pytest.raises(NotFound, match=receipt_id(9)):
        list(filled.export([receipt_id(1), receipt_id(9)]))
    with pytest.raises(NotFound, match="range"):
        list(filled.export(start_index=2, end_index=99))
    with pytest.raises(InvalidArgument) as caught:
        list(filled.export(start_index=3, end_index=2))
    assert caught.value.fields == ("start_index",)
    with pytest.raises(InvalidArgument) as caught:
        list(filled.export([receipt_id(1)] * 1001))
    assert caught.value.fields == ("receipt_ids",)
