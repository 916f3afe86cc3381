"""One tenant's view of a log that it shares with another: its own entries, and no sign of the other."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from ledger.audit.log_verification import verify_log
from ledger.bundle.folder import BundleFolder
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.documents.erasure import Erasure
from ledger.documents.promise import open_answer, read_promise, sign_promise
from ledger.documents.signed_document import open_document, read_document
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import FormatError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import Admitted
from ledger.log.reader import LedgerReader
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.recovery import recover
from ledger.log.tree_head import TreeHead
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from services.client.errors import FailedPrecondition, InvalidArgument, KolmError, NotFound, PermissionDenied
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.promised import look_up
from services.client.ledger.verified import VerifiedLedger
from services.ledger.settings import LedgerSettings
from services.runtime.credentials import edited_principals
from tests.access import token_of, without_credential
from tests.cli import kolm
from tests.integration.ledger_service.conftest import Serve
from tests.integration.ledger_service.test_reading import indexes, unpacked
from tests.unit.ledger.builders import (
    KEYS,
    ORIGIN,
    at,
    content,
    engine_profile,
    erasure,
    halt,
    of_a_later_version,
    policy,
    promise_of,
    receipt,
    receipt_id,
    retention,
    signed,
    signed_receipt,
    verdict,
)

MISSING = "01890000-0000-7000-8000-000000000000"
ACME, OTHER, ERASED = map(receipt_id, range(3))
POLICY, HALT, RETENTION, THEIRS, ERASURE, ENGINE = 2, 4, 5, 6, 8, 9
SIZE = 11
"""Entries beside the receipts 0, 1 and 7, and a second verdict on OTHER. The halt is over OTHER, by the verdict 3;
THEIRS is the other's retention.
"""


@dataclass(frozen=True)
class Log:
    """Clients of one log: of the tenants, of a reader of all of it, of an auditor, and of any process on the
    machine.
    """

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
        credentials[:] = [each for each in credentials if not each.anybody]
        credentials.append(without_credential("generate", tenant="acme"))
    with ExitStack() as stack:
        served = stack.enter_context(serve())
        with LedgerClient.connect(served.address, wait=60, token=everything) as filling:
            filling.append(signed_receipt(0, tenant="acme"), content(0))
            filling.append(signed_receipt(1, tenant="other"), content(1))
            filling.append(signed(policy(0.5)))
            filling.append(signed(verdict(1, 1, "DEVIATION")))
            filling.append(signed(halt(3)))
            filling.append(signed(retention(30, "acme")))
            filling.append(signed(retention(30, "other")))
            filling.append(signed_receipt(2, tenant="other"), content(2))
            filling.append(signed(erasure(7, 2)))
            filling.append(signed(engine_profile()))
            filling.append(signed(verdict(1, 1, "DEVIATION", replayed_at=at(200))))
        yield Log(
            **{name: stack.enter_context(LedgerClient.connect(served.address, token=t)) for name, t in tokens.items()}
        )


def told(call: Callable[[str], object], name: str) -> tuple[str, str, str]:
    """Type, reason and message of a refusal, with `name` taken out."""
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
    assert len(list(log.other.verdicts(receipt_id=OTHER))) == 2


def promised(number: int, tenant: str, nonce: str | None = None) -> bytes:
    """The promise of `receipt(number)`, signed; with a nonce nothing keeps it."""
    promise = promise_of(receipt(number, tenant=tenant), due=at(1), nonce=nonce)
    return sign_promise(promise, KEYS["receipts"]).to_bytes()


def test_a_tenant_can_show_others_that_its_own_receipt_is_missing(
    log: Log, settings: LedgerSettings, tmp_path: Path
) -> None:
    trusted = TrustedKeys.load(settings.trusted_directory)
    kept, broken = promised(0, "acme"), promised(0, "acme", nonce="mine")
    found = {
        envelope: look_up(VerifiedLedger(log.acme, trusted), read_promise(envelope), datetime.now(UTC), envelope)
        for envelope in (kept, broken)
    }
    assert (found[kept].state, found[kept].answer) == ("KEPT", None)
    assert (found[broken].state, found[broken].tree_size) == ("BROKEN", SIZE)
    assert found[broken].answer is not None
    answer = open_answer(found[broken].answer.envelope, broken, trusted)
    assert (answer.entries, answer.tree_size, answer.breaks(read_promise(broken))) == ((None,), SIZE, True)
    assert open_answer(log.acme.promise_answer(kept)[0], kept, trusted).entries == (0,)
    with pytest.raises(FormatError):
        open_answer(found[broken].answer.envelope, kept, trusted)
    with pytest.raises(PermissionDenied):
        log.acme.promise_answer(promised(1, "other"))
    with pytest.raises(InvalidArgument):
        log.acme.promise_answer(b"junk")
    _a_stranger_reads_it(tmp_path, found[broken].answer.envelope, broken, kept)


def test_an_answer_about_a_promise_is_dated_before_its_tree(
    log: Log, settings: LedgerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, looked = LedgerReader.head, list[datetime]()

    def slow(reader: LedgerReader) -> TreeHead:
        """An entry appended after this look is not in the tree."""
        looked.append(datetime.now(UTC))
        while datetime.now(UTC) < looked[-1] + timedelta(milliseconds=2):
            pass
        return head(reader)

    monkeypatch.setattr(LedgerReader, "head", slow)
    data = log.acme.promise_answer(promise := promised(0, "acme", nonce="mine"))[0]
    answer = open_answer(data, promise, TrustedKeys.load(settings.trusted_directory))
    assert parse_timestamp(answer.answered_at) <= looked[-1]


def _a_stranger_reads_it(folder: Path, answer: bytes, broken: bytes, kept: bytes) -> None:
    """`kolm verify`, with the public keys alone."""
    for name, data in {"answer.json": answer, "broken.json": broken, "kept.json": kept}.items():
        (folder / name).write_bytes(data)
    verify = partial(kolm, "verify", folder / "answer.json", "--trusted", folder / "trusted")
    assert verify(f"--promise={folder}/broken.json").code == 3
    assert verify(f"--promise={folder}/kept.json").code == 3
    assert verify().code == 2
    (folder / "answer.json").write_bytes(answer.replace(b"keyid", b"keyId"))
    assert verify(f"--promise={folder}/broken.json").code == 3


def test_a_tenant_has_its_own_content_erased_and_the_log_says_that_it_asked(
    log: Log, settings: LedgerSettings, tmp_path: Path
) -> None:
    trusted = TrustedKeys.load(settings.trusted_directory)
    for who, reason in ((log.reader, "ROLE_MISSING"), (log.auditor, "ROLE_MISSING"), (log.local, "ERASURE_DENIED")):
        with pytest.raises(PermissionDenied) as caught:
            who.erase_own(ACME)
        assert caught.value.reason == reason
    with pytest.raises(PermissionDenied):
        log.acme.erase(signed(erasure(0, 0)))
    assert told(log.acme.erase_own, OTHER) == told(log.acme.erase_own, MISSING)
    assert log.acme.receipt(ACME, include_content=True).content is not None

    index = VerifiedLedger(log.acme, trusted).erase_own(ACME).index
    entry = log.acme.entry(index).envelope
    document = open_document(entry, trusted)
    assert isinstance(document, Erasure)
    assert (document.receipt_index, document.reason) == (0, "asked for by the tenant acme")
    assert [each.key_id for each in entry.signatures] == [key.key_id for key in trusted.keys("log")]
    details = log.acme.receipt(ACME, include_content=True)
    assert (details.content, details.content_state, details.erasure_index) == (None, "ERASED", index)
    with pytest.raises(FailedPrecondition):
        log.acme.erase_own(ACME)
    with pytest.raises(NotFound):
        log.other.entry(index)


def test_lists_show_the_own_tenant_s_and_refuse_to_show_another_s(log: Log) -> None:
    assert [each.receipt_id for each in log.acme.receipts()] == [ACME]
    assert [each.receipt_id for each in log.acme.receipts(ReceiptFilter(tenant="acme"))] == [ACME]
    assert [each.receipt_id for each in log.acme.receipts(ReceiptFilter(max_index=0))] == [ACME]
    assert list(log.acme.receipts(ReceiptFilter(request_id="request-1"))) == []
    for tenant in ("other", "unknown", ""):
        with pytest.raises(PermissionDenied):
            list(log.acme.receipts(ReceiptFilter(tenant=tenant)))
    for whole in (
        lambda: list(log.acme.receipt_pages(ReceiptFilter(), complete=True)),
        lambda: list(log.acme.verdicts()),
        lambda: list(log.acme.watch(0)),
        lambda: list(log.acme.export()),
        lambda: list(log.acme.export(start_index=0, end_index=1)),
        lambda: list(log.acme.export([ACME], start_index=0)),
    ):
        with pytest.raises(PermissionDenied):
            whole()
    assert [each.receipt_id for each in log.reader.receipts()] == [ACME, OTHER, ERASED]
    assert len(list(log.reader.watch(0))) == SIZE


def test_entries_about_another_tenant_are_not_there(log: Log) -> None:
    seen = {0: "receipt", POLICY: "audit_policy", HALT: "halt", RETENTION: "retention", ENGINE: "engine_profile"}
    assert {index: log.acme.entry(index).kind for index in seen} == seen
    for index in {*range(SIZE + 1)} - seen.keys():
        with pytest.raises(NotFound) as caught:
            log.acme.entry(index)
        assert caught.value.message == f"no entry '{index}'"
    assert [each.index for each in log.acme.watch(kinds=["erasure", "retention", "halt"])] == [HALT, RETENTION]
    assert [each.index for each in log.other.watch(kinds=["erasure", "retention", "halt"])] == [HALT, THEIRS, ERASURE]


def test_content_is_for_auditors_and_for_a_token_of_the_tenant(log: Log) -> None:
    for may in (log.acme, log.auditor):
        assert may.receipt(ACME, include_content=True).content == content(0)
    for may_not in (log.reader, log.local):  # on this machine, for the tenant acme, and without a token
        assert may_not.receipt(ACME).content is None
        with pytest.raises(PermissionDenied):
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
    assert indexes(files) == [0, 1, 3, HALT, RETENTION, ENGINE]  # with the evidence of the halt
    (opened,) = (data for path, data in files.items() if path.startswith("content/"))
    assert [json.loads(line)["index"] for line in opened.splitlines()] == [0]
    for name, data in files.items():
        file = tmp_path / "bundle" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    report = verify_bundle(BundleFolder(tmp_path / "bundle"), Trust(TrustedKeys.load(settings.trusted_directory)))
    assert report.ok, report


def test_rpcs_open_to_every_caller_verify_a_receipt(log: Log, settings: LedgerSettings) -> None:
    proven = VerifiedLedger(log.acme, TrustedKeys.load(settings.trusted_directory))
    assert [each.receipt_id for each in proven.receipts(ReceiptFilter())] == [ACME]
    assert proven.receipt(ACME).receipt.document.tenant == "acme"


def test_an_entry_of_an_unknown_kind_is_only_for_readers_of_the_whole_log(
    serve: Serve, settings: LedgerSettings, principals: Path
) -> None:
    """The ledger takes none; an entry that a later version has taken is carried, and its tenant is not known."""
    data = of_a_later_version(KEYS["operator"])
    everything, own = token_of(principals, "append", "read"), token_of(principals, "generate", tenant="acme")
    with serve() as served, LedgerClient.connect(served.address, wait=60, token=everything) as filling:
        filling.append(signed_receipt(0, tenant="acme"))
        with pytest.raises(InvalidArgument) as refused:
            filling.append(data)
        assert refused.value.reason == "BAD_DOCUMENT"
    key = SigningKey.load(settings.log_key, "log")
    trusted = TrustedKeys.load(settings.trusted_directory)
    with closing(SqlEntryStore.open(settings.database)) as store, closing(SqlGuard.open(settings.guard)) as guard:
        document = read_document(Envelope.from_bytes(data))
        recover(store, key, trusted, ORIGIN, guard).write([Admitted(data, sha256(data).digest(), document)])
    with (
        serve() as served,
        LedgerClient.connect(served.address, wait=60, token=everything) as reader,
        LedgerClient.connect(served.address, wait=60, token=own) as tenant,
    ):
        assert reader.append(signed_receipt(1, tenant="acme")).index == 2
        assert [entry.kind for entry in reader.watch(0)] == ["receipt", "unknown", "receipt"]
        report = verify_log((entry.entry for entry in reader.watch(0)), reader.checkpoint().note, trusted)
        assert (report.ok, report.kinds["unknown"]) == (True, 1)
        assert VerifiedLedger(reader, trusted).entry(1).kind == "unknown"
        with pytest.raises(NotFound):
            tenant.entry(1)
        assert tenant.entry(2).kind == "receipt"
