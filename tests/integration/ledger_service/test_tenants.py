"""What one tenant sees of a log that it shares with another: its own, and nothing that says the other is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.bundle.folder import BundleFolder
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.keys.trusted_keys import TrustedKeys
from services.client import LedgerClient
from services.client.errors import KolmError, NotFound, PermissionDenied
from services.client.log import ReceiptQuery
from services.client.verified import VerifiedLedger
from services.ledger.settings import LedgerSettings
from services.runtime.access.principals_file import edited_principals
from tests.access import on_this_machine, token_of
from tests.integration.ledger_service.conftest import Serve
from tests.integration.ledger_service.test_appending import wire_content
from tests.integration.ledger_service.test_bundle_stream import indexes, unpacked
from tests.unit.ledger.builders import (
    erasure,
    halt,
    policy,
    receipt_id,
    retention,
    signed,
    signed_receipt,
    verdict,
)

MISSING = "01890000-0000-7000-8000-000000000000"
ACME, OTHER, ERASED = map(receipt_id, range(3))
POLICY, HALT, RETENTION, THEIRS, ERASURE = 2, 4, 5, 6, 8
"""Entries beside the receipts 0, 1 and 7; the halt is over OTHER, by the verdict 3; THEIRS is the other's retention."""


@dataclass(frozen=True)
class Log:
    """Clients of one log: of the tenants, of a reader of all of it, of an auditor, and of whoever is on the machine."""

    acme: LedgerClient
    other: LedgerClient
    reader: LedgerClient
    auditor: LedgerClient
    local: LedgerClient


@pytest.fixture
def log(serve: Serve, principals: Path) -> Iterator[Log]:
    everything = token_of(principals, "append", "operate", "read")
    tokens = {
        "acme": token_of(principals, "generate", tenant="acme"),
        "other": token_of(principals, "generate", tenant="other"),
        "reader": token_of(principals, "read"),
        "auditor": token_of(principals, "audit"),
        "local": "",
    }
    with edited_principals(principals) as credentials:
        credentials[:] = [each for each in credentials if not each.loopback]
        credentials.append(on_this_machine("generate", tenant="acme"))
    with ExitStack() as stack:
        served = stack.enter_context(serve())
        with LedgerClient.connect(served.address, wait=60, token=everything) as filling:
            filling.append(signed_receipt(0, tenant="acme"), wire_content(0))
            filling.append(signed_receipt(1, tenant="other"), wire_content(1))
            filling.append(signed(policy(0.5)))
            filling.append(signed(verdict(1, 1, "DEVIATION")))
            filling.append(signed(halt(3)))
            filling.append(signed(retention(30, "acme")))
            filling.append(signed(retention(30, "other")))
            filling.append(signed_receipt(2, tenant="other"), wire_content(2))
            filling.append(signed(erasure(7, 2)))
        yield Log(
            **{name: stack.enter_context(LedgerClient.connect(served.address, token=t)) for name, t in tokens.items()}
        )


def told(call: Callable[[str], object], name: str) -> tuple[str, str, str]:
    """All that a refusal says, with `name` taken out."""
    with pytest.raises(KolmError) as caught:
        call(name)
    return type(caught.value).__name__, caught.value.reason, caught.value.message.replace(name, "…")


def test_another_tenant_s_receipt_is_refused_in_the_words_for_none(log: Log) -> None:
    ask: dict[str, Callable[[str], object]] = {
        "receipt": log.acme.receipt,
        "content": lambda id: log.acme.receipt(id, include_content=True),
        "cose": log.acme.cose_receipt,
        "bundle": lambda id: list(log.acme.export([id])),
        "bundle with content": lambda id: list(log.acme.export([id], include_content=True)),
        "bundle of both": lambda id: list(log.acme.export([ACME, id])),
    }
    for what, call in ask.items():
        foreign = told(call, OTHER)
        assert foreign == told(call, MISSING), what
        assert foreign[0] == "NotFound"
    assert list(log.acme.verdicts(receipt_id=OTHER)) == list(log.acme.verdicts(receipt_id=MISSING)) == []
    assert len(list(log.other.verdicts(receipt_id=OTHER))) == 1


def test_lists_show_the_own_tenant_s_and_refuse_to_show_another_s(log: Log) -> None:
    assert [each.receipt_id for each in log.acme.receipts()] == [ACME]
    assert [each.receipt_id for each in log.acme.receipts(tenant="acme")] == [ACME]
    assert [each.receipt_id for each in log.acme.receipts(max_index=0)] == [ACME]
    assert list(log.acme.receipts(request_id="request-1")) == []
    for tenant in ("other", "nobody", ""):
        with pytest.raises(PermissionDenied, match="one of the roles audit, read"):
            list(log.acme.receipts(tenant=tenant))
    for whole in (
        lambda: list(log.acme.receipt_pages(ReceiptQuery(), complete=True)),
        lambda: list(log.acme.verdicts()),
        lambda: list(log.acme.watch(0)),
        lambda: list(log.acme.export()),
        lambda: list(log.acme.export(start_index=0, end_index=1)),
        lambda: list(log.acme.export([ACME], start_index=0)),
    ):
        with pytest.raises(PermissionDenied, match="one of the roles audit, read"):
            whole()
    assert [each.receipt_id for each in log.reader.receipts()] == [ACME, OTHER, ERASED]
    assert len(list(log.reader.watch(0))) == 9


def test_entries_about_another_tenant_are_not_there(log: Log) -> None:
    seen = {0: "receipt", POLICY: "audit_policy", HALT: "halt", RETENTION: "retention"}
    assert {index: log.acme.entry(index).kind for index in seen} == seen
    for index in {*range(10)} - seen.keys():
        with pytest.raises(NotFound) as caught:
            log.acme.entry(index)
        assert caught.value.message == f"no entry '{index}'"
    assert [each.index for each in log.acme.watch(kinds=["erasure", "retention", "halt"])] == [HALT, RETENTION]
    assert [each.index for each in log.other.watch(kinds=["erasure", "retention", "halt"])] == [HALT, THEIRS, ERASURE]


def test_content_is_for_auditors_and_for_a_token_of_the_tenant(log: Log) -> None:
    for may in (log.acme, log.auditor):
        assert may.receipt(ACME, include_content=True).content == wire_content(0)
    for may_not in (log.reader, log.local):  # on this machine, for the tenant acme, and without a token
        assert may_not.receipt(ACME).content is None
        with pytest.raises(PermissionDenied, match="a token of the receipts' own tenant"):
            may_not.receipt(ACME, include_content=True)
        with pytest.raises(PermissionDenied):
            list(may_not.export([ACME], include_content=True))
    with pytest.raises(PermissionDenied):
        list(log.reader.export(include_content=True))
    assert len(list(log.auditor.export(include_content=True))) > 0


def test_a_tenant_s_bundle_verifies_and_has_no_content_but_its_own(
    log: Log, settings: LedgerSettings, tmp_path: Path
) -> None:
    files = unpacked(log.acme.export([ACME], include_content=True))
    assert indexes(files) == [0, 1, 3, HALT, RETENTION]  # with the evidence of the halt
    (content,) = (data for path, data in files.items() if path.startswith("content/"))
    assert [json.loads(line)["index"] for line in content.splitlines()] == [0]
    for name, data in files.items():
        file = tmp_path / "bundle" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    report = verify_bundle(BundleFolder(tmp_path / "bundle"), Trust(TrustedKeys.load(settings.trusted_directory)))
    assert report.ok, report


def test_what_is_open_to_anybody_verifies_a_receipt(log: Log, settings: LedgerSettings) -> None:
    proven = VerifiedLedger(log.acme, TrustedKeys.load(settings.trusted_directory))
    assert [each.receipt_id for each in proven.receipts(ReceiptQuery())] == [ACME]
    assert proven.receipt(ACME).receipt.tenant == "acme"
