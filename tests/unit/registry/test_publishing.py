"""Publishing into the log: owners of names, and checks of the log's answers."""

from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from ledger.documents.draft_head import DraftHeadPublication
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import sign_document, sign_rotation
from ledger.encoding.text_forms import cid
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry, entry_bytes
from ledger.tree.merkle import leaf_hash
from services.client import errors as client
from services.client.ledger.log import Appended, InclusionProof, LogEntry
from services.registry.blobs import BlobStore
from services.registry.errors import BadDocument, DatedAhead, NameTaken, UntrustedSignature
from services.registry.head_catalogue import PUBLICATION, WITHDRAWAL, Catalogue, HeadRow, Signed
from services.registry.publishing import LedgerLog, Publishing, check_name
from services.runtime.errors import KolmError, Unavailable
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, at, publication, signed, withdrawal

ENVELOPE = signed(publication())
ENTRY = Entry(0, Envelope.from_bytes(ENVELOPE)).to_bytes()


def answer(entry: bytes = ENTRY, key: SigningKey = KEYS["log"]) -> Appended:
    checkpoint = sign_checkpoint(Checkpoint(ORIGIN, 1, leaf_hash(entry)), key)
    return Appended(0, checkpoint, InclusionProof(0, 1, ()), 0)


class Ledger:
    """Says what a test wants instead of `LedgerClient`."""

    def __init__(self, appended: Appended | client.KolmError, entry: bytes = ENTRY) -> None:
        self._appended = appended
        self._entry = entry

    def append(self, envelope: bytes) -> Appended:
        if isinstance(self._appended, client.KolmError):
            raise self._appended
        return self._appended

    def entry(self, index: int) -> LogEntry:
        return LogEntry(self._entry)


class Rotating:
    """A ledger with these key entries."""

    def __init__(self, *envelopes: bytes) -> None:
        self._envelopes = envelopes

    def watch(self, start_index: int = 0, *, kinds: Sequence[str]) -> Any:
        assert kinds == ["key"]
        return nullcontext([LogEntry(entry_bytes(at, each)) for at, each in enumerate(self._envelopes)])


def test_a_rotation_counts_where_the_old_key_has_signed_it() -> None:
    old, (new, newest, thief) = KEYS["publisher"], (SigningKey.generate("publisher") for _ in range(3))

    def rotation(replaced: SigningKey, by: SigningKey, *signers: SigningKey) -> bytes:
        entry = KeyEntry("publisher", by.public, at(1), replaces=replaced.key_id)
        return sign_rotation(entry, by, *signers).to_bytes()

    ledger: Any = Rotating(rotation(old, thief), rotation(old, new, old), rotation(new, newest, new))
    expected = [(old.key_id, new.key_id), (new.key_id, newest.key_id)]
    assert LedgerLog(ledger, TRUSTED).publisher_rotations() == expected


def append(ledger: Any) -> int:
    return LedgerLog(ledger, TRUSTED).append(ENVELOPE)


def test_a_proven_entry_counts() -> None:
    assert append(Ledger(answer())) == 0


OTHER = Entry(0, Envelope.from_bytes(signed(withdrawal()))).to_bytes()


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(answer(key=SigningKey.generate("log"))),
        Ledger(answer(OTHER)),
        Ledger(answer(OTHER), OTHER),
        Ledger(replace(answer(), inclusion_proof=InclusionProof(0, 1, (b"\0" * 32,)))),
        Ledger(client.Unavailable("away")),
        Ledger(client.Internal("a bug")),
    ],
    ids=["foreign key", "another root", "another entry", "another proof", "away", "bug"],
)
def test_an_unproven_one_does_not(ledger: Ledger) -> None:
    with pytest.raises(Unavailable) as caught:
        append(ledger)
    assert caught.value.reason == "LEDGER_UNAVAILABLE"


REFUSALS = [("UNTRUSTED_SIGNATURE", UntrustedSignature), ("BAD_DOCUMENT", BadDocument), ("CLOCK_AHEAD", DatedAhead)]


@pytest.mark.parametrize(("reason", "error"), REFUSALS)
def test_what_the_ledger_will_never_take_is_told_apart(reason: str, error: type[KolmError]) -> None:
    with pytest.raises(error):
        append(Ledger(client.InvalidArgument("no", reason=reason)))


@pytest.mark.parametrize(("reason", "kind", "kept"), [
    ("CLOCK_AHEAD", PUBLICATION, 1), ("CLOCK_AHEAD", WITHDRAWAL, 1), ("UNTRUSTED_SIGNATURE", WITHDRAWAL, 1),
    ("UNTRUSTED_SIGNATURE", PUBLICATION, 0), ("BAD_DOCUMENT", WITHDRAWAL, 0),
])  # fmt: skip
def test_a_proposal_waits_for_a_ledger_that_may_take_it_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reason: str, kind: str, kept: int
) -> None:
    refusing: Any = Ledger(client.InvalidArgument("no", reason=reason))
    with closing(Catalogue.open(f"sqlite:///{tmp_path / 'registry.sqlite3'}")) as catalogue:
        catalogue.propose(HeadRow("head", "base", b"manifest"), Signed(kind, "head", "", ENVELOPE))
        publishing = Publishing(catalogue, cast(BlobStore, None), LedgerLog(refusing, TRUSTED), TRUSTED)
        assert [publishing.finish_proposals() for _ in range(2)] == [True, True]
        assert (len(catalogue.proposals()), len(caplog.records)) == (kept, 1)


OLD, NEW, NEWEST, RIVAL = (seeded_key(bytes([n]) * 32, "publisher") for n in (31, 32, 33, 34))


class Rotations:
    """A Log of which only the rotations matter."""

    def __init__(self, *rotations: tuple[SigningKey, SigningKey]) -> None:
        self._rotations = [(old.key_id, new.key_id) for old, new in rotations]

    def append(self, envelope: bytes) -> int:
        raise NotImplementedError

    def publisher_rotations(self) -> Sequence[tuple[str, str]]:
        return self._rotations


def publication(key: SigningKey) -> Signed:
    document = DraftHeadPublication(cid(b"head"), "support-head", cid(b"base"), "acme models", at(1))
    return Signed(PUBLICATION, document.manifest_cid, document.name, sign_document(document, key).to_bytes())


def test_an_unused_name_is_free() -> None:
    check_name(None, publication(RIVAL), Rotations())


def test_the_keys_that_replaced_the_first_publisher_s_have_its_name() -> None:
    log = Rotations((OLD, NEW), (NEW, NEWEST))
    for key in (OLD, NEW, NEWEST):
        check_name(publication(OLD), publication(key), log)


def test_a_new_name_does_not_end_with_a_dot_and_one_that_is_there_may() -> None:
    dotted = replace(publication(OLD), key="support-head.")
    for first in (None, publication(OLD)):
        with pytest.raises(BadDocument):
            check_name(first, dotted, Rotations())
    check_name(dotted, dotted, Rotations())


@pytest.mark.parametrize("log", [Rotations(), Rotations((OLD, NEW)), Rotations((RIVAL, NEW))])
def test_any_other_key_is_refused_by_both_names(log: Rotations) -> None:
    with pytest.raises(NameTaken) as caught:
        check_name(publication(OLD), publication(RIVAL), log)
    assert OLD.key_id in caught.value.message
    assert RIVAL.key_id in caught.value.message
